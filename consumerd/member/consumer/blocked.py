"""Assigned partitions that are not consumed: claims that wait for another owner, and what else is in the way.

Strategy: every answer to a claim is noted, and costs no request: it was read with the answer. A rebalance blocks claims
for a moment, so one is logged only after 10 s, and then after twice the time each: one line for each owner and
session, however many partitions it holds. Claims are repeated every few seconds, and so are the answers: no timer. What
else keeps a partition from being claimed, the machine says (`ZooKeeperMember.why_not_consumed`); it is logged alike.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import structlog

from consumerd.base.partition import TopicPartition
from consumerd.net.cluster.reading import ZNode
from consumerd.wire.registry.errors import RegistryError
from consumerd.wire.registry.values import parse_owner

log = structlog.get_logger(__name__)

#: Seconds after which a claim that waits is logged for the first time.
FIRST_AFTER: Final = 10.0
#: Characters of an owner node that is not in the usual form.
_SHOWN: Final = 200


class Holder(NamedTuple):
    """The owner that an owner node names. Each is None as long as it is not known."""

    owner: str | None
    #: The session that the node ends with; 0 for a persistent node, which never ends.
    session_id: int | None
    #: Why ZooKeeper does not let us create the node, where that is in the way and not an owner.
    denied: str | None = None


@dataclass(slots=True)
class BlockedClaim:
    """A claim of ours that waits."""

    holder: Holder
    #: Time of the first answer of this kind, on the clock.
    since: float
    #: Seconds after which it is logged next.
    due: float = FIRST_AFTER


def holder_of(node: ZNode | None) -> Holder:
    """Return the owner by its node; None: the node changed since it was read."""
    if node is None:
        return Holder(None, None)
    try:
        owner = parse_owner(node.data)[0]
    except RegistryError:
        owner = node.data[:_SHOWN].decode("utf-8", "replace")
    return Holder(owner, node.stat.ephemeral_owner)


class BlockedClaims:
    """The claims of one member that wait for other owners."""

    def __init__(self, group: str) -> None:
        self._group = group
        self.by_partition: dict[TopicPartition, BlockedClaim] = {}
        #: When the others were first seen to wait, and after how many seconds each is logged next.
        self._unclaimed: dict[TopicPartition, tuple[float, float]] = {}

    def answered(
        self,
        claimed: Iterable[TopicPartition],
        blocked: Iterable[TopicPartition],
        holder: Callable[[TopicPartition], Holder],
        now: float,
    ) -> None:
        """Note the answer to a claim, and log those that have waited for long."""
        for partition in claimed:
            self.by_partition.pop(partition, None)
        due: defaultdict[tuple[Holder, float], list[TopicPartition]] = defaultdict(list)
        for partition in sorted(blocked):
            found = holder(partition)
            claim = self.by_partition.get(partition)
            if claim is None:
                claim = self.by_partition[partition] = BlockedClaim(found, now)
            if found.owner is not None or found.denied is not None:
                claim.holder = found
            if now - claim.since >= claim.due:
                due[claim.holder, claim.since].append(partition)
                while claim.due <= now - claim.since:
                    claim.due *= 2
        for (each, since), partitions in due.items():
            log.warning(
                "claim_blocked",
                group=self._group,
                partition=str(partitions[0]),
                more=len(partitions) - 1,
                owner=each.owner,
                session=None if each.session_id is None else f"{each.session_id:#x}",
                seconds=round(now - since, 1),
                **({} if each.denied is None else {"reason": each.denied}),
            )

    def unclaimed(self, reasons: Mapping[TopicPartition, str], now: float) -> None:
        """Note why assigned partitions are not consumed, and log those that have waited for long for no owner."""
        times = {
            each: self._unclaimed.get(each, (now, FIRST_AFTER)) for each in reasons.keys() - self.by_partition.keys()
        }
        due: defaultdict[tuple[str, float], list[TopicPartition]] = defaultdict(list)
        for partition, (since, after) in times.items():
            if now - since >= after:
                due[reasons[partition], since].append(partition)
                times[partition] = since, 2 * (now - since)
        self._unclaimed = times
        for (reason, since), partitions in sorted(due.items()):
            log.warning(
                "partition_not_claimed",
                group=self._group,
                partition=str(min(partitions)),
                more=len(partitions) - 1,
                reason=reason,
                seconds=round(now - since, 1),
            )

    def keep(self, wanted: Iterable[TopicPartition]) -> None:
        """Forget the claims that are no longer made."""
        if self.by_partition:
            kept = self.by_partition.keys() & set(wanted)
            self.by_partition = {partition: self.by_partition[partition] for partition in sorted(kept)}
