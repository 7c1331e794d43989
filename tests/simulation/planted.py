"""Defects that the daemon once had, or nearly, put back in memory: what random schedules have to find.

    with MUTATIONS["latest_not_written"]():
        Schedule(3, "faulty").run()  # raises ScheduleError

Strategy: see `tests.simulation.defects`.
`python -m tests.simulation.planted [name ...] [--kind KIND] [--seeds FIRST-END]` says which seeds find what.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

from consumerd.base.ports import SetData
from consumerd.group import events as e
from consumerd.group.membership import ZooKeeperMember
from consumerd.group.membership_snapshots import Jitter
from consumerd.group.membership_tables import Phase
from consumerd.member.consumer.commits import Commits
from consumerd.member.consumer.coordination import GroupCoordination
from consumerd.member.consumer.fence import Fence
from consumerd.member.consumer.owned_partition import OwnedPartition
from consumerd.member.consumer.partitions import OwnedPartitions
from consumerd.member.consumer.snapshot import SnapshotReader
from consumerd.member.fetch.v07.link import BrokerLink
from consumerd.member.offsets.guards import OwnedGuard
from consumerd.member.offsets.store import _Commit
from consumerd.net.zk.supervisor import SessionSupervisor
from consumerd.wire.registry.paths import owner_path
from tests.simulation.daemon import ProcessClock
from tests.simulation.defects import Defects, main
from tests.simulation.schedule import KINDS, NODES, Schedule

_PATCH = mock.patch.object
MUTATIONS = Defects()


# -- draining and committing


async def _commit_one_by_one(self: OwnedPartitions, leaving: list[OwnedPartition], deadline: float) -> None:
    try:
        async with asyncio.timeout(max(deadline - self._clock.monotonic(), 0.0)):
            for owned in leaving:
                await self._commit([owned])
    except TimeoutError:
        pass
    self._log_uncommitted(leaving)


@MUTATIONS.add
def drain_by_partition() -> Iterator[None]:
    """A drain commits one position after the other, each with a look before it, until its deadline."""
    with _PATCH(OwnedPartitions, "_commit_last", _commit_one_by_one), _look_by_requests():
        yield


@contextmanager
def _look_by_requests() -> Iterator[None]:
    """Before each commit the owner nodes are asked for."""
    make = OwnedGuard.__init__
    with _PATCH(OwnedGuard, "__init__", lambda self, zk, group, ownership=None: make(self, zk, group)):
        yield


@MUTATIONS.add
def released_while_committed() -> Iterator[None]:
    """A drain's deadline ends its last commit, without waiting for a commit in flight."""

    async def go_on(self: Commits, owned: Iterable[OwnedPartition]) -> None:
        """Wait for nothing."""

    async def commit_until(self: OwnedPartitions, leaving: list[OwnedPartition], deadline: float) -> None:
        try:
            async with asyncio.timeout(max(deadline - self._clock.monotonic(), 0.0)):
                await self._commit(leaving)
        except TimeoutError:
            pass

    with _PATCH(OwnedPartitions, "_commit_last", commit_until), _PATCH(Commits, "wait_for", go_on):
        yield


@MUTATIONS.add
def fence_by_owner_version() -> Iterator[None]:
    """The owner node's version is all that a commit checks; it is 0 for every owner."""
    write = _Commit._write

    def unfenced(self: _Commit, partition: Any) -> Any:
        return tuple(
            SetData(each.path, each.data, -1) if isinstance(each, SetData) else each for each in write(self, partition)
        )

    with _PATCH(_Commit, "_write", unfenced):
        yield


@MUTATIONS.add
def fence_without_look() -> Iterator[None]:
    """The same, without reading the owner node before."""

    async def all_ours(self: OwnedGuard, partitions: Any, session_id: int) -> set[Any]:
        return set()

    with fence_by_owner_version(), _PATCH(OwnedGuard, "find_lost", all_ours):
        yield


@MUTATIONS.instead(OwnedPartitions, "_write_down")
async def latest_not_written(self: OwnedPartitions, owned: OwnedPartition) -> None:
    """The start offset of a partition is not committed before the first fetch."""


@MUTATIONS.instead(OwnedPartitions, "check_committed")
async def set_back_stays(self: OwnedPartitions) -> None:
    """The offsets of idle partitions are not checked for writes of another process."""


# -- handing over


@MUTATIONS.add
def no_fence() -> Iterator[None]:
    """A member with a session delivers without checking right before whether its lease has ended."""
    with _PATCH(Fence, "allows", lambda self, session_id: self._lease.session_id == session_id):
        yield


@MUTATIONS.add
def no_lease() -> Iterator[None]:
    """The same, and nothing happens when the lease runs out."""

    async def never(self: Fence, expired: Callable[[int], None]) -> None:
        await asyncio.Event().wait()

    with no_fence(), _PATCH(Fence, "watch", never):
        yield


@MUTATIONS.around(Fence, "watch")
async def lease_told_once(watch: Any, self: Fence, expired: Callable[[int], None]) -> None:
    """Only the first end of a lease in the life of a process is reported."""
    told: list[int] = []

    def first(session_id: int) -> None:
        if not told:
            told.append(session_id)
            expired(session_id)

    await watch(self, first)


@MUTATIONS.instead(ProcessClock, "monotonic")
def clock_stands_still(self: Any) -> Any:
    """The clock of a process does not count the time for which its machine was suspended."""
    return self._loop.time()


@MUTATIONS.instead(OwnedPartition, "close")
def swallowed_cancellation(self: OwnedPartition) -> None:
    """A lane is not closed when its partition is lost: it is enough to cancel the handler."""


# -- reading and watching


@MUTATIONS.add
def reads_anew() -> Iterator[None]:
    """Every snapshot reads everything again, watches or not."""
    children, node = SnapshotReader._children, SnapshotReader._node

    async def children_anew(self: SnapshotReader, path: str) -> list[str]:
        self._nodes.refresh(path)
        return await children(self, path)

    async def node_reread(self: SnapshotReader, path: str, *, reread: bool = False) -> Any:
        return await node(self, path, reread=True)

    with _PATCH(SnapshotReader, "_children", children_anew), _PATCH(SnapshotReader, "_node", node_reread):
        yield


@MUTATIONS.around(Jitter, "factor")
def no_settling(factor: Any, self: Any, width: Any) -> Any:
    """A snapshot follows the other without a pause."""
    return 0.0 if width == 0.5 else factor(self, width)


@MUTATIONS.around(SessionSupervisor, "_resolve")
async def first_address_only(resolve: Any, self: SessionSupervisor, host: Any) -> list[str]:
    """Of a ZooKeeper host name the first address is tried, and no other."""
    return sorted(await resolve(self, host))[:1]  # "nowhere" comes first in the alphabet, too


@MUTATIONS.instead(SnapshotReader, "_topic_or_before")
async def unreadable_topic_ends_snapshots(self: SnapshotReader, topic: str) -> Any:
    """A topic's node that cannot be read makes the whole snapshot fail."""
    return await self._topic(topic)


@MUTATIONS.instead(GroupCoordination, "_watch_only")
def retries_forget_watches(self: GroupCoordination, wanted: Iterable[Any]) -> None:
    """A claim keeps watches on what it wants, and loses those on what is owned already."""
    keep = {owner_path(self._group, partition) for partition in wanted}
    for path in self._owners.paths() - keep:
        self._owners.forget(path)


@MUTATIONS.around(BrokerLink, "_leave_old_address")
def moved_broker_kept(leave: Any, self: BrokerLink, *news: object) -> None:
    """News of a broker's new address do not end the connection to its old one, nor the fetch in flight there."""
    if not news:
        leave(self)


# -- the membership machine


@MUTATIONS.around(ZooKeeperMember, "handle")
def released_before_drained(original: Any, self: ZooKeeperMember, event: e.Event, now: float) -> Any:
    """A partition is released when its drain begins."""
    actions: list[e.Action] = original(self, event, now)
    for action in list(actions):
        if isinstance(action, e.Drain):
            actions += original(self, e.Drained(action.ticket, action.partitions), now)
    return actions


@MUTATIONS.around(ZooKeeperMember, "handle")
def blocked_taken(original: Any, self: ZooKeeperMember, event: e.Event, now: float) -> Any:
    """A partition with another owner counts as claimed."""
    if isinstance(event, e.Claimed):
        event = e.Claimed(event.ticket, event.claimed | event.blocked, frozenset())
    return original(self, event, now)


@MUTATIONS.around(ZooKeeperMember, "handle")
def blocked_not_claimed_again(original: Any, self: ZooKeeperMember, event: e.Event, now: float) -> Any:
    """After a claim that was blocked there is no other one."""
    actions = original(self, event, now)
    if isinstance(event, e.Claimed) and event.blocked:
        self._snapshots.forget()
    return actions


@MUTATIONS.instead(ZooKeeperMember, "_lose")
def loss_ignored(self: Any, holding: Any) -> None:
    """What another member took, or is held without a lease, stays in work."""


@MUTATIONS.around(ZooKeeperMember, "handle")
def never_reconciles(original: Any, self: ZooKeeperMember, event: e.Event, now: float) -> Any:
    """There is no snapshot without a watch that fires."""
    self._snapshots._reconcile_at = None
    return original(self, event, now)


def _with_own_id(self: ZooKeeperMember, event: e.SnapshotTaken) -> e.SnapshotTaken:
    return replace(event, snapshot=replace(event.snapshot, own_id_session=self._session_id))


@MUTATIONS.around(ZooKeeperMember, "handle")
def id_of_former_session_adopted(original: Any, self: ZooKeeperMember, event: e.Event, now: float) -> Any:
    """An id node of this consumer id is taken for our own, whatever its session."""
    if isinstance(event, e.SnapshotTaken) and event.snapshot.own_id_session is not None:
        event = _with_own_id(self, event)
    return original(self, event, now)


@MUTATIONS.around(ZooKeeperMember, "handle")
def missing_id_overlooked(original: Any, self: ZooKeeperMember, event: e.Event, now: float) -> Any:
    """A member whose id node was deleted does not register again."""
    if isinstance(event, e.SnapshotTaken) and self.phase is Phase.MEMBER:
        event = _with_own_id(self, event)
    return original(self, event, now)


@MUTATIONS.around(ZooKeeperMember, "handle")
def never_nudges(original: Any, self: ZooKeeperMember, event: e.Event, now: float) -> Any:
    """JVM members that gave up are left alone."""
    return [action for action in original(self, event, now) if not isinstance(action, e.Nudge)]


if __name__ == "__main__":
    main(MUTATIONS, Schedule, (*KINDS, NODES))
