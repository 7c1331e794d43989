"""Defects that the daemon once had, or nearly, put back in memory: what random schedules have to find.

    with MUTATIONS["latest_not_written"]():
        Schedule(3, "faulty").run()  # raises ScheduleError

Strategy: each mutation is a context manager that patches a method or two of the real code. Patching makes
sure that what it is to replace is there: one that has lost its target fails instead of planting nothing.
`python -m tests.simulation.planted [name ...] [--kind KIND] [--seeds FIRST-END]` says which seeds find what.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any
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
from consumerd.wire.registry import owner_path
from tests.simulation.base_schedule import ScheduleError
from tests.simulation.daemon import ProcessClock
from tests.simulation.schedule import KINDS, NODES, Schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_PATCH = mock.patch.object


# -- draining and committing


async def _commit_one_by_one(self: OwnedPartitions, leaving: list[OwnedPartition], deadline: float) -> None:
    try:
        async with asyncio.timeout(max(deadline - self._clock.monotonic(), 0.0)):
            for owned in leaving:
                await self._commit([owned])
    except TimeoutError:
        pass
    self._log_uncommitted(leaving)


@contextmanager
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


@contextmanager
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


@contextmanager
def fence_by_owner_version() -> Iterator[None]:
    """The owner node's version is all that a commit checks; it is 0 for every owner."""
    write = _Commit._write

    def unfenced(self: _Commit, partition: Any) -> Any:
        return tuple(
            SetData(each.path, each.data, -1) if isinstance(each, SetData) else each for each in write(self, partition)
        )

    with _PATCH(_Commit, "_write", unfenced):
        yield


@contextmanager
def fence_without_look() -> Iterator[None]:
    """The same, without reading the owner node before."""

    async def all_ours(self: OwnedGuard, partitions: Any, session_id: int) -> set[Any]:
        return set()

    with fence_by_owner_version(), _PATCH(OwnedGuard, "find_lost", all_ours):
        yield


@contextmanager
def latest_not_written() -> Iterator[None]:
    """The start offset of a partition is not committed before the first fetch."""

    async def write_nothing(self: OwnedPartitions, owned: OwnedPartition) -> None:
        """Leave it to the next commit."""

    with _PATCH(OwnedPartitions, "_write_down", write_nothing):
        yield


@contextmanager
def set_back_stays() -> Iterator[None]:
    """The offsets of idle partitions are not checked for writes of another process."""

    async def look_away(self: OwnedPartitions) -> None:
        """See nothing."""

    with _PATCH(OwnedPartitions, "check_committed", look_away):
        yield


# -- handing over


@contextmanager
def no_fence() -> Iterator[None]:
    """A member with a session delivers without checking right before whether its lease has ended."""
    with _PATCH(Fence, "allows", lambda self, session_id: self._lease.session_id == session_id):
        yield


@contextmanager
def no_lease() -> Iterator[None]:
    """The same, and nothing happens when the lease runs out."""

    async def never(self: Fence, expired: Callable[[int], None]) -> None:
        await asyncio.Event().wait()

    with no_fence(), _PATCH(Fence, "watch", never):
        yield


@contextmanager
def lease_told_once() -> Iterator[None]:
    """Only the first end of a lease in the life of a process is reported."""
    watch = Fence.watch

    async def watch_once(self: Fence, expired: Callable[[int], None]) -> None:
        told: list[int] = []

        def first(session_id: int) -> None:
            if not told:
                told.append(session_id)
                expired(session_id)

        await watch(self, first)

    with _PATCH(Fence, "watch", watch_once):
        yield


@contextmanager
def clock_stands_still() -> Iterator[None]:
    """The clock of a process does not count the time for which its machine was suspended."""
    with _PATCH(ProcessClock, "monotonic", lambda self: self._loop.time()):
        yield


@contextmanager
def swallowed_cancellation() -> Iterator[None]:
    """A lane is not closed when its partition is lost: it is enough to cancel the handler."""

    def leave_open(self: OwnedPartition) -> None:
        """Deliver everything that arrives."""

    with _PATCH(OwnedPartition, "close", leave_open):
        yield


# -- reading and watching


@contextmanager
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


@contextmanager
def no_settling() -> Iterator[None]:
    """A snapshot follows the other without a pause."""
    factor = Jitter.factor
    with _PATCH(Jitter, "factor", lambda self, width: 0.0 if width == 0.5 else factor(self, width)):
        yield


@contextmanager
def first_address_only() -> Iterator[None]:
    """Of a ZooKeeper host name the first address is tried, and no other."""
    resolve = SessionSupervisor._resolve

    async def first(self: SessionSupervisor, host: Any) -> list[str]:
        return sorted(await resolve(self, host))[:1]  # "nowhere" comes first in the alphabet, too

    with _PATCH(SessionSupervisor, "_resolve", first):
        yield


@contextmanager
def unreadable_topic_ends_snapshots() -> Iterator[None]:
    """A topic's node that cannot be read makes the whole snapshot fail."""

    async def insist(self: SnapshotReader, topic: str) -> Any:
        return await self._topic(topic)

    with _PATCH(SnapshotReader, "_topic_or_before", insist):
        yield


@contextmanager
def retries_forget_watches() -> Iterator[None]:
    """A claim keeps watches on what it wants, and loses those on what is owned already."""

    def watch_only(self: GroupCoordination, wanted: Iterable[Any]) -> None:
        keep = {owner_path(self._group, partition) for partition in wanted}
        for path in self._owners.paths() - keep:
            self._owners.forget(path)

    with _PATCH(GroupCoordination, "_watch_only", watch_only):
        yield


@contextmanager
def moved_broker_kept() -> Iterator[None]:
    """News of a broker's new address do not end the connection to its old one, nor the fetch in flight there."""
    leave = BrokerLink._leave_old_address

    def only_when_asked(self: BrokerLink, *news: object) -> None:
        if not news:
            leave(self)

    with _PATCH(BrokerLink, "_leave_old_address", only_when_asked):
        yield


# -- the membership machine


@contextmanager
def _machine(
    handle: Callable[[ZooKeeperMember, e.Event, float, Callable[..., list[e.Action]]], list[e.Action]],
) -> Iterator[None]:
    """`handle` stands for that of the machine, which it gets last."""
    original = ZooKeeperMember.handle

    def replaced(self: ZooKeeperMember, event: e.Event, now: float) -> list[e.Action]:
        return handle(self, event, now, partial(original, self))

    with _PATCH(ZooKeeperMember, "handle", replaced):
        yield


@contextmanager
def released_before_drained() -> Iterator[None]:
    """A partition is released when its drain begins."""

    def handle(self: ZooKeeperMember, event: e.Event, now: float, original: Any) -> list[e.Action]:
        actions: list[e.Action] = original(event, now)
        for action in list(actions):
            if isinstance(action, e.Drain):
                actions += original(e.Drained(action.ticket, action.partitions), now)
        return actions

    with _machine(handle):
        yield


@contextmanager
def blocked_taken() -> Iterator[None]:
    """A partition with another owner counts as claimed."""

    def handle(self: ZooKeeperMember, event: e.Event, now: float, original: Any) -> Any:
        if isinstance(event, e.Claimed):
            event = e.Claimed(event.ticket, event.claimed | event.blocked, frozenset())
        return original(event, now)

    with _machine(handle):
        yield


@contextmanager
def blocked_not_claimed_again() -> Iterator[None]:
    """After a claim that was blocked there is no other one."""

    def handle(self: ZooKeeperMember, event: e.Event, now: float, original: Any) -> Any:
        actions = original(event, now)
        if isinstance(event, e.Claimed) and event.blocked:
            self._snapshots.forget()
        return actions

    with _machine(handle):
        yield


@contextmanager
def loss_ignored() -> Iterator[None]:
    """What another member took, or is held without a lease, stays in work."""
    with _PATCH(ZooKeeperMember, "_lose", lambda self, holding: None):
        yield


@contextmanager
def never_reconciles() -> Iterator[None]:
    """There is no snapshot without a watch that fires."""

    def handle(self: ZooKeeperMember, event: e.Event, now: float, original: Any) -> Any:
        self._snapshots._reconcile_at = None
        return original(event, now)

    with _machine(handle):
        yield


def _with_own_id(self: ZooKeeperMember, event: e.SnapshotTaken) -> e.SnapshotTaken:
    return replace(event, snapshot=replace(event.snapshot, own_id_session=self._session_id))


@contextmanager
def id_of_former_session_adopted() -> Iterator[None]:
    """An id node of this consumer id is taken for our own, whatever its session."""

    def handle(self: ZooKeeperMember, event: e.Event, now: float, original: Any) -> Any:
        if isinstance(event, e.SnapshotTaken) and event.snapshot.own_id_session is not None:
            event = _with_own_id(self, event)
        return original(event, now)

    with _machine(handle):
        yield


@contextmanager
def missing_id_overlooked() -> Iterator[None]:
    """A member whose id node was deleted does not register again."""

    def handle(self: ZooKeeperMember, event: e.Event, now: float, original: Any) -> Any:
        if isinstance(event, e.SnapshotTaken) and self.phase is Phase.MEMBER:
            event = _with_own_id(self, event)
        return original(event, now)

    with _machine(handle):
        yield


@contextmanager
def never_nudges() -> Iterator[None]:
    """JVM members that gave up are left alone."""

    def handle(self: ZooKeeperMember, event: e.Event, now: float, original: Any) -> Any:
        return [action for action in original(event, now) if not isinstance(action, e.Nudge)]

    with _machine(handle):
        yield


MUTATIONS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    each.__name__: each
    for each in (
        drain_by_partition,
        released_while_committed,
        fence_by_owner_version,
        fence_without_look,
        latest_not_written,
        set_back_stays,
        no_fence,
        no_lease,
        lease_told_once,
        clock_stands_still,
        swallowed_cancellation,
        reads_anew,
        no_settling,
        first_address_only,
        unreadable_topic_ends_snapshots,
        retries_forget_watches,
        moved_broker_kept,
        released_before_drained,
        blocked_taken,
        blocked_not_claimed_again,
        loss_ignored,
        never_reconciles,
        id_of_former_session_adopted,
        missing_id_overlooked,
        never_nudges,
    )
}


def finding(
    mutation: str, seeds: Iterable[int], *, kind: str | None = None, at_least: int = 0
) -> Iterator[tuple[int, str]]:
    """The seeds that fail while the defect is there, and how; no more than `at_least`, unless that is 0.

    `kind`: of schedule, instead of the one that each seed chooses.
    """
    found = 0
    with MUTATIONS[mutation]():
        for seed in seeds:
            try:
                Schedule(seed, kind).run()
            except ScheduleError as error:
                found += 1
                yield seed, str(error).partition("\n")[0]
                if found == at_least:
                    return


def main() -> None:
    """For people."""
    parser = argparse.ArgumentParser(description="Say which seeds find defects that are put back.")
    parser.add_argument("names", nargs="*", default=list(MUTATIONS), metavar="name", help=", ".join(MUTATIONS))
    parser.add_argument("--seeds", default="0-300", help="from which to which, the last one not included")
    parser.add_argument("--at-least", type=int, default=3, help="so many per defect are enough; 0 for all there are")
    parser.add_argument("--kind", choices=sorted({*KINDS, NODES}), help="of schedule, for all seeds")
    arguments = parser.parse_args()
    first, _, end = arguments.seeds.partition("-")
    for name in arguments.names:
        for seed, headline in finding(
            name, range(int(first), int(end)), kind=arguments.kind, at_least=arguments.at_least
        ):
            sys.stdout.write(f"{name:32} {seed:6}  {headline}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
