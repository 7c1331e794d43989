"""The positions that are written, and the handling of lost or rejected commits."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from structlog.testing import capture_logs

from consumerd.base.errors import BrokerError
from consumerd.base.partition import UNKNOWN_LOG, LogId, TopicPartition
from consumerd.member.consumer.commits import Commits
from consumerd.member.consumer.fence import Fence
from consumerd.member.consumer.owned_partition import OwnedPartition
from consumerd.member.consumer.partition_work import PartitionWork
from consumerd.member.consumer.stats import ConsumerStats
from consumerd.member.fetch.listener import FetchCounters
from consumerd.member.offsets.errors import OffsetsUnavailableError
from consumerd.member.offsets.store import NO_NOTES, CommitResult
from consumerd.net.zk.errors import NotConnected
from consumerd.testing.clock import FakeClock

if TYPE_CHECKING:
    from consumerd.member.offsets.store import Notes

SESSION = 7


class Store:
    """Offsets in memory. Partitions in `foreign` are not ours, those in `overwritten` were written by another."""

    keeps_for: float | None = None

    def __init__(self) -> None:
        self.held: dict[TopicPartition, int] = {}
        self.commits: list[dict[TopicPartition, int]] = []
        self.sessions: set[int] = set()
        self.foreign: set[TopicPartition] = set()
        self.overwritten: set[TopicPartition] = set()
        self.denied: set[TopicPartition] = set()
        self.error: Exception | None = None

    async def load(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        raise NotImplementedError

    async def is_new(self, partition: TopicPartition) -> bool:
        return False

    def log(self, partition: TopicPartition) -> LogId:
        return UNKNOWN_LOG

    async def peek(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return await self.load(partitions)

    def trace(self, partition: TopicPartition) -> None:
        """It cannot tell who wrote an offset."""

    async def changed(self, partitions: Iterable[TopicPartition]) -> frozenset[TopicPartition]:
        return frozenset(partitions) & self.overwritten

    async def commit(
        self, positions: Mapping[TopicPartition, int], *, session_id: int, notes: Notes = NO_NOTES
    ) -> CommitResult:
        await asyncio.sleep(0)
        self.commits.append(dict(positions))
        self.sessions.add(session_id)
        if self.error is not None:
            raise self.error
        taken = {each: offset for each, offset in positions.items() if each not in self.foreign | self.denied}
        self.held.update(taken)
        refused = {each: BrokerError(f"no Read for {each}") for each in positions.keys() & self.denied}
        return CommitResult(frozenset(taken), frozenset(positions.keys() & self.foreign), refused)


class Setup:
    def __init__(self) -> None:
        self.store = Store()
        self.clock = FakeClock()
        self.fence = SimpleNamespace(session_id=SESSION)
        self.stats = ConsumerStats()
        self.lost: list[list[OwnedPartition]] = []
        self.counters = FetchCounters()
        self.commits = Commits(
            self.store, cast("Fence", self.fence), self.clock, self.stats, self.lost.append, self.counters
        )

    def owned(self, number: int, position: int | None, session_id: int = SESSION) -> OwnedPartition:
        made = OwnedPartition(TopicPartition("t", 0, number), 0, session_id)
        self.counters.answered.add(made.partition)
        if position is not None:
            made.work = cast("PartitionWork", SimpleNamespace(position=position, log=UNKNOWN_LOG))
        return made

    @staticmethod
    def move(owned: OwnedPartition, position: int) -> None:
        cast("Any", owned.work).position = position


async def test_commits_only_moved_positions() -> None:
    setup = Setup()
    some = [setup.owned(number, number) for number in range(3)]
    some[2].committed = 2
    unborn = setup.owned(9, None)
    await setup.commits.commit([*some, unborn])
    assert setup.store.commits == [{some[0].partition: 0, some[1].partition: 1}]
    assert [each.committed for each in some] == [0, 1, 2]
    await setup.commits.commit(some)
    assert len(setup.store.commits) == 1
    setup.move(some[0], 4)
    await setup.commits.commit(some)
    assert setup.store.commits[1:] == [{some[0].partition: 4}]
    assert (setup.stats.commits, setup.stats.failed_commits) == (3, 0)
    assert setup.lost == []


async def test_combines_concurrent_commits() -> None:
    setup = Setup()
    some = [setup.owned(number, 5) for number in range(100)]
    await asyncio.gather(*(setup.commits.commit([each]) for each in some))
    assert [len(commit) for commit in setup.store.commits] == [100]


async def test_commits_only_partitions_of_current_session() -> None:
    setup = Setup()
    old, new = setup.owned(0, 5, SESSION - 1), setup.owned(1, 6)
    await setup.commits.commit([old, new])
    assert setup.store.commits == [{new.partition: 6}]
    assert setup.store.sessions == {SESSION}
    assert old.committed is None
    setup.fence.session_id = 0
    setup.move(new, 7)
    await setup.commits.commit([old, new])
    assert len(setup.store.commits) == 1


async def test_reports_lost_partitions_as_not_committed() -> None:
    setup = Setup()
    some = [setup.owned(number, 5) for number in range(3)]
    setup.store.foreign = {some[1].partition}
    await setup.commits.commit(some)
    assert setup.lost == [[some[1]]]
    assert [each.committed for each in some] == [5, None, 5]
    assert setup.stats.commits == 2


async def test_refused_partition_is_reported_once_and_repeated_until_it_is_allowed() -> None:
    setup = Setup()
    some = [setup.owned(number, 5) for number in range(3)]
    setup.store.denied = {some[1].partition}
    with capture_logs() as logs:
        for _ in range(3):
            await setup.commits.commit(some)
        assert [each.committed for each in some] == [5, None, 5]
        assert str(some[1].refusal) == f"no Read for {some[1].partition}"
        setup.store.denied.clear()
        await setup.commits.commit(some)
        assert (some[1].committed, some[1].refusal) == (5, None)
        setup.store.denied = {some[1].partition}
        setup.move(some[1], 6)
        await setup.commits.commit(some)
    assert [(entry["event"], entry["partition"]) for entry in logs] == [("commit_refused", str(some[1].partition))] * 2
    assert setup.lost == []
    assert (setup.stats.commits, setup.stats.failed_commits) == (3, 4)


async def test_writes_nothing_of_a_partition_of_which_nothing_may_be_read() -> None:
    setup = Setup()
    owned = setup.owned(0, 5)
    owned.start = 5
    setup.counters.denied.add(owned.partition)
    await setup.commits.commit([owned])
    assert setup.store.commits == []
    setup.move(owned, 6)  # it was read before the permission was taken away
    await setup.commits.commit([owned])
    setup.counters.denied.clear()
    setup.move(owned, 5)
    await setup.commits.commit([owned])
    assert setup.store.commits == [{owned.partition: 6}, {owned.partition: 5}]


async def test_writes_no_start_before_a_fetch_was_answered() -> None:
    """Whether it may be read is not known before; the commit would be refused if not."""
    setup = Setup()
    found, passing, handled = (setup.owned(number, 5) for number in range(3))
    setup.counters.answered.clear()
    for each in (found, passing, handled):
        each.start = 5
    passing.passing = True  # the next owner would not find it again
    setup.move(handled, 6)
    await setup.commits.commit([found, passing, handled])
    assert setup.store.commits == [{passing.partition: 5, handled.partition: 6}]
    passing.committed = None  # another one has written it, and nothing is known of it any more than of others
    await setup.commits.commit([found, passing])
    setup.counters.answered.add(found.partition)
    await setup.commits.commit([found, passing])
    assert setup.store.commits[1:] == [{found.partition: 5}]


async def test_writes_the_start_of_an_empty_partition_if_the_member_stops_at_the_end() -> None:
    """The member may stop before the first fetch of it is answered; its offset belongs to the group's all the same."""
    setup = Setup()
    empty, denied, full = (setup.owned(number, 5) for number in range(3))
    setup.counters.answered.clear()
    setup.counters.denied.add(denied.partition)
    for each in (empty, denied, full):
        each.start = each.end = 5
    full.end = 6
    await setup.commits.commit([empty, denied, full])
    assert setup.store.commits == [{empty.partition: 5}]


async def test_counts_failed_commit_and_repeats_it() -> None:
    setup = Setup()
    some = [setup.owned(number, 5) for number in range(3)]
    setup.store.error = OffsetsUnavailableError("away")
    with pytest.raises(OffsetsUnavailableError):
        await setup.commits.commit(some)
    assert (setup.stats.commits, setup.stats.failed_commits) == (0, 3)
    setup.store.error = None
    await setup.commits.commit(some)
    assert setup.store.held == {each.partition: 5 for each in some}


async def test_position_moved_during_commit_is_due_again() -> None:
    setup = Setup()
    owned = setup.owned(0, 5)
    commit = asyncio.create_task(setup.commits.commit([owned]))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    setup.move(owned, 6)
    await commit
    assert owned.committed == 5
    await setup.commits.commit([owned])
    assert setup.store.held == {owned.partition: 6}


async def test_rewrites_expiring_offsets_after_half_of_retention() -> None:
    setup = Setup()
    setup.store.keeps_for = 60.0
    owned = setup.owned(0, 5)
    owned.committed = 5  # by the former owner: it may be old
    await setup.commits.commit([owned])
    setup.clock.jump(29.0)
    await setup.commits.commit([owned])
    assert len(setup.store.commits) == 1
    setup.clock.jump(1.0)
    await setup.commits.commit([owned])
    assert len(setup.store.commits) == 2


async def test_rewrites_offset_overwritten_by_others() -> None:
    setup = Setup()
    some = [setup.owned(number, 5) for number in range(3)]
    await setup.commits.commit(some)
    unborn = setup.owned(3, None)
    assert not await setup.commits.check([*some, unborn])
    setup.store.overwritten = {unborn.partition}
    assert not await setup.commits.check([*some, unborn])
    setup.store.overwritten.add(some[1].partition)
    assert await setup.commits.check([*some, unborn])
    await setup.commits.commit(some)
    assert setup.store.commits[1:] == [{some[1].partition: 5}]


async def test_logs_the_beginning_and_the_end_of_an_outage_and_no_attempt_between() -> None:
    setup = Setup()
    some = [setup.owned(number, 5) for number in range(3)]
    setup.store.error = OffsetsUnavailableError("the coordinator is away")
    with capture_logs() as logs:
        for _ in range(60):
            with pytest.raises(OffsetsUnavailableError):
                await setup.commits.commit(some)
            setup.clock.jump(1.0)
        assert logs == [
            {
                "event": "commit_postponed",
                "partitions": 3,
                "reason": "the coordinator is away",
                "log_level": "warning",
            }
        ]
        setup.store.error = None
        await setup.commits.commit(some)
        assert logs[1:] == [{"event": "commit_resumed", "attempts": 60, "seconds": 59.0, "log_level": "info"}]
        setup.move(some[0], 6)
        await setup.commits.commit(some)
        assert len(logs) == 2
        setup.store.error = NotConnected("no connection")
        setup.move(some[0], 7)
        with pytest.raises(NotConnected):
            await setup.commits.commit(some)
    assert [(line["event"], line["reason"]) for line in logs[2:]] == [("commit_postponed", "no connection")]


async def test_an_error_that_no_later_commit_repairs_is_not_logged_as_postponed() -> None:
    setup = Setup()
    setup.store.error = BrokerError("the group is not authorized")
    with capture_logs() as logs, pytest.raises(BrokerError):
        await setup.commits.commit([setup.owned(0, 5)])
    assert logs == []
