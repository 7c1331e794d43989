"""The offsets that a stream has reached, written to brokers of 0.9 and later for tools that show lag.

Strategy: as `consumerd.spark.source.commits` for ZooKeeper. The group must be nobody else's: its coordinator is asked
for members at the start of a stream, and refuses by itself to take offsets from outside of a group that has any. A
cluster that cannot be reached for a while must not end the stream for that: it is logged, and the next write carries
on.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from consumerd.admin import RefusedError
from consumerd.spark.source.errors import BrokerReadError
from consumerd.spark.source.logical_cluster import Cluster
from consumerd.spark.source.logical_origin import with_password
from consumerd.spark.source.offsets import entries
from consumerd.wire.v08.apis import DESCRIBE_GROUPS, GROUP_COORDINATOR, OFFSET_COMMIT
from consumerd.wire.v08.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from consumerd.spark.source.logical_connection import LogicalConnection
    from consumerd.spark.source.offsets import Offsets
    from consumerd.spark.source.option_values import BootstrapPlace

log = logging.getLogger(__name__)

#: The last version that asks for one group, and that which has topics by their names.
_ONE_GROUP: Final = 3
_LAST_COMMIT: Final = 9
#: How a coordinator refuses offsets from outside of a group with members.
_IN_USE: Final = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.REBALANCE_IN_PROGRESS})


class LogicalCommitter:
    """Writes the offsets of `group`. `timeout`: seconds that brokers may take.

    Methods raise RefusedError for a group that is in use, and BrokerReadError.
    """

    def __init__(self, place: BootstrapPlace, group: str, timeout: float) -> None:
        self._place = place
        self._group = group
        self._timeout = timeout

    def check(self) -> None:
        """Raise RefusedError if the group has members, BrokerRefusesError for brokers that know of no groups."""

        def ask(cluster: Cluster, coordinator: LogicalConnection) -> None:
            version = coordinator.version(DESCRIBE_GROUPS)
            answer = cluster.call(coordinator, DESCRIBE_GROUPS, {"group_ids": [self._group]}, self._name, version)
            for found in answer["groups"]:
                code = found["error_code"]
                if code and code != ErrorCode.GROUP_ID_NOT_FOUND:
                    raise cluster.refused(code, f"broker {coordinator.name} tells nothing of {self._name}")
                if found["members"]:
                    raise self._in_use(f"member {found['members'][0]['member_id']} lives")

        self._at_coordinator(ask)

    def commit(self, offsets: Offsets) -> int:
        """Write where a stream is; returns how many offsets were written."""
        topics = [
            {
                "topic": topic,
                "partitions": [{"partition": int(n), "offset": at, "metadata": ""} for n, at in each.items()],
            }
            for topic, each in offsets.items()
        ]

        def ask(cluster: Cluster, coordinator: LogicalConnection) -> int:
            version = coordinator.version(OFFSET_COMMIT, _LAST_COMMIT)
            body: dict[str, Any] = {"group_id": self._group, "topics": topics}
            answer = cluster.call(coordinator, OFFSET_COMMIT, body, self._name, version)
            codes = [part["error_code"] for topic in answer["responses"] for part in topic["partition_responses"]]
            for code in filter(None, codes):
                if code in _IN_USE:
                    raise self._in_use("it has members")
                raise cluster.refused(code, f"broker {coordinator.name} does not take offsets of {self._name}")
            return len(codes)

        return self._at_coordinator(ask) if any(entries(offsets)) else 0

    def commit_if_possible(self, offsets: Offsets) -> None:
        """`commit`, but only a warning where the brokers cannot be asked now, or do not take them."""
        try:
            self.commit(offsets)
        except BrokerReadError as error:
            log.warning("the offsets of %s are not written this time: %s", self._name, error)

    @property
    def _name(self) -> str:
        return f"group {self._group}"

    def _in_use(self, who: str) -> RefusedError:
        return RefusedError(
            f"the {self._name} is in use ({who}), and its offsets are not overwritten; "
            "give another groupId, or leave out commitOffsets"
        )

    def _at_coordinator(self, ask: Callable[[Cluster, LogicalConnection], Any]) -> Any:
        with Cluster(with_password(self._place), self._timeout) as cluster:
            return cluster.retried(lambda: ask(cluster, self._coordinator(cluster)))

    def _coordinator(self, cluster: Cluster) -> LogicalConnection:
        broker = cluster.any()
        version = broker.version(GROUP_COORDINATOR, _ONE_GROUP)
        answer = cluster.call(broker, GROUP_COORDINATOR, {"group_id": self._group}, self._name, version)
        if code := answer["error_code"]:
            raise cluster.refused(code, f"broker {broker.name} names no coordinator of {self._name}")
        found = answer["coordinator"]
        return cluster.connection((found["host"], found["port"]))
