"""Commit the offsets that a stream has reached to brokers of 0.9 and later, for tools that show lag.

Strategy: like `consumerd.spark.source.v07.commits` for ZooKeeper. The group must not be in use: its coordinator is
asked for members at the start of a stream, and rejects offsets from outside a group that has any. A cluster that is
unavailable for a while does not end the stream: the failure is logged, and the next write retries.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeVar

from consumerd.net.client.channel import Channel
from consumerd.net.client.cluster import ClusterClient
from consumerd.net.client.errors import error_of
from consumerd.net.errors import ConnectError, ConnectionClosedError
from consumerd.operate.admin.errors import RefusedError
from consumerd.spark.source.errors import BrokerReadError
from consumerd.spark.source.offsets import Offsets, entries
from consumerd.spark.source.option_values import BootstrapLocation
from consumerd.spark.source.v08.client import KafkaClient
from consumerd.spark.source.v08.origin import with_password
from consumerd.wire.v08.apis import DESCRIBE_GROUPS, OFFSET_COMMIT
from consumerd.wire.v08.error_codes import ErrorCode

if TYPE_CHECKING:
    from consumerd.wire.v08.message_types import (
        DescribeGroupsRequest,
        OffsetCommitRequest,
        OffsetCommitRequestPartition,
    )

log = logging.getLogger(__name__)

_T = TypeVar("_T")

#: The last version that has topics by their names.
_LAST_COMMIT: Final = 9
#: The errors with which a coordinator refuses offsets from outside of a group with members.
_IN_USE: Final = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.REBALANCE_IN_PROGRESS})


class V08Committer:
    """Writes the offsets of `group`. `timeout`: seconds that brokers may take.

    Methods raise RefusedError for a group that is in use, and BrokerReadError.
    """

    def __init__(self, cluster: BootstrapLocation, group: str, timeout: float) -> None:
        self._cluster = cluster
        self._group = group
        self._timeout = timeout

    def check(self) -> None:
        """Raise RefusedError if the group has members, BrokerRejectedError for brokers that know of no groups."""

        async def ask(client: ClusterClient, coordinator: Channel) -> None:
            body: DescribeGroupsRequest = {"groups": [self._group]}
            answer = await coordinator.call(DESCRIBE_GROUPS, body)
            for found in answer["groups"]:
                if found["error_code"] != ErrorCode.GROUP_ID_NOT_FOUND:
                    self._raise_for(found["error_code"], client, f"broker {coordinator.address} does not describe")
                if found["members"]:
                    raise self._in_use(f"member {found['members'][0]['member_id']} is alive")

        self._at_coordinator(ask)

    def commit(self, offsets: Offsets) -> int:
        """Write where a stream is; returns how many offsets were written."""
        by_topic: dict[str, list[OffsetCommitRequestPartition]] = {}
        for (topic, name), offset in entries(offsets):
            by_topic.setdefault(topic, []).append(
                {"partition_index": int(name), "committed_offset": offset, "committed_metadata": ""}
            )
        body: OffsetCommitRequest = {
            "group_id": self._group,
            "topics": [{"name": topic, "partitions": partitions} for topic, partitions in by_topic.items()],
        }

        async def ask(client: ClusterClient, coordinator: Channel) -> int:
            version = coordinator.versions.pick(OFFSET_COMMIT, at_most=_LAST_COMMIT)
            answer = await coordinator.call(OFFSET_COMMIT, body, version=version)
            codes = [part["error_code"] for topic in answer["topics"] for part in topic["partitions"]]
            for code in codes:
                if code in _IN_USE:
                    raise self._in_use("it has members")
                self._raise_for(code, client, f"broker {coordinator.address} rejected the offsets of")
            return len(codes)

        return self._at_coordinator(ask) if by_topic else 0

    def commit_if_possible(self, offsets: Offsets) -> None:
        """`commit`, but only log a warning if the brokers are unavailable or reject it."""
        try:
            self.commit(offsets)
        except BrokerReadError as error:
            log.warning("cannot commit the offsets of %s, which the next batch will retry: %s", self._name, error)

    @property
    def _name(self) -> str:
        return f"group {self._group}"

    def _in_use(self, who: str) -> RefusedError:
        return RefusedError(
            f"the {self._name} is in use ({who}), so its offsets are not overwritten; "
            "use another groupId, or remove commitOffsets"
        )

    def _raise_for(self, code: int, client: ClusterClient, what: str) -> None:
        """Raise BrokerRefusedError for an error code; the coordinator may have moved."""
        if error := error_of(code, f"{what} {self._name}"):
            client.forget_coordinator(self._group)
            raise error

    def _at_coordinator(self, ask: Callable[[ClusterClient, Channel], Awaitable[_T]]) -> _T:
        async def attempt(client: ClusterClient) -> _T:
            node_id = await client.coordinator(self._group)
            try:
                return await ask(client, await client.node_channel(node_id))
            except (ConnectError, ConnectionClosedError):
                client.forget_coordinator(self._group)
                raise

        with KafkaClient(with_password(self._cluster), self._timeout) as client:
            return client.ask(f"reach the coordinator of {self._name}", attempt)
