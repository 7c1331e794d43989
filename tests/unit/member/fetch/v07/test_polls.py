"""One poll: what it asks for, what it holds meanwhile, and what becomes of its entries; in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from consumerd.base.budget import ByteBudget
from consumerd.base.partition import TopicPartition
from consumerd.member.fetch.lane import Lane
from consumerd.member.fetch.policies import FetchServices
from consumerd.member.fetch.settings import FetchSettings
from consumerd.member.fetch.v07.pace import Pace
from consumerd.member.fetch.v07.poller import IdlePoller, Idler
from consumerd.net.errors import ConnectionClosedError
from consumerd.wire.v07 import ErrorCode, FetchResponse, MultiFetchResponse, decode_request
from tests.support.fetching import Recorder
from tests.support.scenes import Scene, played
from tests.support.virtual_time import LoopClock, run_in_virtual_time

KIB = 1024
BROKER, CONNECTIONS = 7, 3


class Connection:
    """Answers with the next of `answers`, entries by partition or an error or raw bytes; then with nothing."""

    def __init__(self) -> None:
        self.closed = False
        self.aborted = False
        self.answers: deque[Any] = deque()
        self.trip = 0.001
        #: Time, partitions, size of an entry and longest response of each poll.
        self.polls: list[tuple[float, list[int], int, int]] = []
        self.asked = asyncio.Event()

    async def request(self, frame: bytes, *, max_response: int) -> bytes:
        fetches = cast("Any", decode_request(frame[4:])).fetches
        (size,) = {fetch.max_size for fetch in fetches}
        now = asyncio.get_running_loop().time()
        self.polls.append((now, [fetch.partition for fetch in fetches], size, max_response))
        self.asked.set()
        await asyncio.sleep(self.trip)
        answer = self.answers.popleft() if self.answers else {}
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, bytes):
            return answer
        nothing = FetchResponse(ErrorCode.NONE, b"")
        entries = tuple(answer.get(fetch.partition, nothing) for fetch in fetches)
        return MultiFetchResponse(ErrorCode.NONE, entries).encode()[4:]

    def abort(self) -> None:
        self.aborted = True


class Steady:
    """In place of a `Pace`: an interval of so many seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def interval(self, now: float, *, smallest: float, longest: float) -> float:
        return min(longest, self.seconds)


class CountedIdler(Idler):
    """Counts how often its time is looked at."""

    looks = 0

    def __getattribute__(self, name: str) -> Any:
        if name == "due":
            CountedIdler.looks += 1
        return super().__getattribute__(name)


class Rig:
    """A poller, its broker, and partitions that wait. As link: `connection`, `worked`, `broker`, `connections`."""

    broker, connections = BROKER, CONNECTIONS

    def __init__(self, limit: int = 64 << 20, **settings: Any) -> None:
        self.budget = ByteBudget(limit)
        self.answering = Connection()
        self.worked_times = 0
        never: Any = None
        self.services = FetchServices(FetchSettings(**settings), LoopClock(), random.Random(1), Recorder(), never)
        self.poller = IdlePoller(cast("Any", self), self.budget, self.services)
        self.idlers: list[Idler] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self.group: asyncio.TaskGroup | None = None
        self.connected = asyncio.Event()
        self.connected.set()

    async def connection(self) -> Any:
        await self.connected.wait()
        return self.answering

    def worked(self) -> None:
        self.worked_times += 1

    def idler(self, interval: float | None = None, kind: type[Idler] = Idler) -> Idler:
        """A partition, with an interval of so many seconds; None: by its own pace."""
        number = len(self.idlers)
        lane = Lane(TopicPartition("t", BROKER, number), self.budget, max_bytes=1 << 20)
        pace: Any = Pace(asyncio.get_running_loop().time()) if interval is None else Steady(interval)
        self.idlers.append(kind(lane, pace))
        return self.idlers[-1]

    def ask(self, idler: Idler, offset: int) -> asyncio.Task[Any]:
        assert self.group is not None
        self.tasks.append(self.group.create_task(self.poller.wait(idler, offset)))
        return self.tasks[-1]

    def wait(self, count: int = 1) -> list[asyncio.Task[Any]]:
        """So many new partitions, which wait."""
        return [self.ask(self.idler(), 100) for _ in range(count)]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Everything that waits ends with this."""
        async with asyncio.timeout(3600), asyncio.TaskGroup() as self.group:
            yield
            for task in self.tasks:
                task.cancel()
        assert self.budget.used == 0, "bytes leaked"

    @property
    def polls(self) -> list[tuple[float, list[int], int, int]]:
        return self.answering.polls


def polling(*passed: str, **how: Any) -> Callable[[Scene], Callable[..., None]]:
    """A test beside a poller, in virtual time, with the rig `r`. `passed`: its parameters that are settings of it."""

    def decorate(scene: Scene) -> Callable[..., None]:
        def play(**given: Any) -> None:
            async def main() -> None:
                rig = Rig(**how, **{name: given[name] for name in passed})
                async with rig.running():
                    assert rig.group is not None
                    rig.tasks.append(rig.group.create_task(rig.poller.run()))
                    await scene(rig, **given)

            run_in_virtual_time(main())

        return played(scene, play, without=1)

    return decorate


@pytest.mark.parametrize(
    ("limit", "count", "size"),
    [
        (64 << 20, 1, 64 * KIB),  # poll_bytes
        (1 << 20, 1, 64 * KIB),  # a sixteenth of the budget
        (1 << 20, 2, 32 * KIB),
        (1 << 20, 3, 16 * KIB),  # a power of two
        (1 << 20, 64, KIB),
        (1 << 20, 200, KIB),  # the smallest
    ],
)
@polling("limit")
async def test_asks_for_less_in_each_entry_when_they_are_many_and_reserves_all(
    r: Rig, limit: int, count: int, size: int
) -> None:
    r.wait(count)
    await r.answering.asked.wait()
    assert r.budget.used == count * size
    await asyncio.sleep(0.002)
    assert r.budget.used == 0
    _, partitions, asked, longest = r.polls[0]
    assert (sorted(partitions), asked, longest) == (list(range(count)), size, 2 + count * (6 + size))


@polling(limit=1 << 20)
async def test_asks_for_half_of_what_is_free_at_most(r: Rig) -> None:
    others = r.budget.charge((1 << 20) - 20 * KIB)
    r.wait()
    await r.answering.asked.wait()
    assert r.polls[0][2] == 8 * KIB
    others.release()


@polling(limit=1 << 20)
async def test_reserves_memory_before_it_looks_for_due_partitions(r: Rig) -> None:
    others = r.budget.charge(2 << 20)
    (first,) = r.wait()
    await asyncio.sleep(5)
    assert r.polls == []
    first.cancel()  # while the poll waits for memory
    await asyncio.sleep(0)
    others.release()
    await asyncio.sleep(5)
    assert r.polls == []
    r.wait()
    await asyncio.sleep(5)
    assert r.polls[0][1] == [1]


@polling(limit=1 << 20)
async def test_sends_nothing_over_a_connection_that_ended_while_it_waited_for_memory(r: Rig) -> None:
    others = r.budget.charge(2 << 20)
    r.wait()
    await asyncio.sleep(1)
    ended, r.answering = r.answering, Connection()
    ended.closed = True
    others.release()
    await asyncio.sleep(1)
    assert (ended.polls, bool(r.polls)) == ([], True)


@polling()
async def test_asks_for_a_thousand_partitions_at_most_those_that_are_due_first(r: Rig) -> None:
    r.wait(1010)
    await asyncio.sleep(0.1)
    first, second = r.polls[:2]
    assert len(first[1]) == 1000
    assert set(range(1000, 1010)) <= set(second[1])


@polling()
async def test_delivers_entries_with_data_and_errors_and_keeps_the_others(r: Rig) -> None:
    data = FetchResponse(ErrorCode.NONE, b"d" * 100)
    refused = FetchResponse(ErrorCode.WRONG_PARTITION, b"")
    r.answering.answers.append({0: data, 2: refused})
    tasks = r.wait(3)
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.sleep(0)
    first, second = tasks[0].result(), tasks[2].result()
    assert first[:4] == (BROKER, ErrorCode.NONE, b"d" * 100, 64 * KIB)
    assert second[:4] == (BROKER, ErrorCode.WRONG_PARTITION, b"", 64 * KIB)
    assert first.connection == second.connection == CONNECTIONS
    assert first.reservation.amount == r.budget.used == r.idlers[0].lane.budget.used == 100
    assert (r.services.counters.polls, r.worked_times) == (1, 1)
    await asyncio.sleep(1)
    assert not tasks[1].done()
    assert all(partitions == [1] for _, partitions, *_ in r.polls[1:])
    first.reservation.release()


@polling()
async def test_an_answer_that_comes_with_the_cancellation_is_released(r: Rig) -> None:
    data = FetchResponse(ErrorCode.NONE, b"d" * 100)
    r.answering.answers.append({0: data, 1: data})
    first, second = r.wait(2)
    charge = ByteBudget.charge

    def cancelling(budget: ByteBudget, amount: int) -> Any:
        if budget is r.idlers[1].lane.budget:
            assert r.idlers[0].lane.budget.used == 100
            first.cancel()  # it has its answer, and has not run since
        return charge(budget, amount)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ByteBudget, "charge", cancelling)
        await asyncio.wait([first, second])
    assert first.cancelled()
    assert r.budget.used == 100
    second.result().reservation.release()


@polling()
async def test_a_failed_poll_may_come_with_the_cancellation(r: Rig) -> None:
    r.answering.answers.append(b"?")
    (waiting,) = r.wait()
    r.answering.abort = lambda: asyncio.get_running_loop().call_soon(waiting.cancel)  # type: ignore[assignment]
    await asyncio.wait([waiting])
    assert waiting.cancelled()


@polling()
async def test_a_partition_that_left_or_came_again_does_not_disturb_a_poll_that_fails(r: Rig) -> None:
    r.answering.answers.append(b"?")
    left, former, stays = r.wait(3)
    await r.answering.asked.wait()
    left.cancel()
    former.cancel()
    await asyncio.sleep(0)
    again = r.ask(r.idlers[1], 500)
    assert await stays is None
    await asyncio.sleep(1)
    assert not again.done()
    assert r.polls[1][1] == [1]


@polling()
async def test_a_partition_that_left_or_came_again_while_the_poll_was_under_way_gets_nothing_of_it(r: Rig) -> None:
    r.answering.answers.append(dict.fromkeys(range(2), FetchResponse(ErrorCode.NONE, b"d" * 100)))
    left, former = r.wait(2)
    await r.answering.asked.wait()
    left.cancel()
    former.cancel()
    await asyncio.sleep(0)
    again = r.ask(r.idlers[1], 500)
    await asyncio.sleep(0.005)
    assert (again.done(), r.budget.used) == (False, 0)
    await asyncio.sleep(1)
    assert [partitions for _, partitions, *_ in r.polls[1:3]] == [[1], [1]]


@pytest.mark.parametrize("answer", [b"\0\0\0\0\0\x09\0\0", b"\0\1"])
@polling()
async def test_all_fetch_for_themselves_where_a_response_is_invalid_or_an_error(r: Rig, answer: bytes) -> None:
    r.answering.answers.append(answer)
    tasks = r.wait(2)
    with capture_logs() as logs:
        assert await asyncio.gather(*tasks) == [None, None]
    invalid = len(answer) > 2
    assert r.answering.aborted is invalid
    assert [(each["event"], each["broker"]) for each in logs] == [("poll_failed", BROKER)] * invalid
    assert all("multifetch response" in each["reason"] for each in logs)
    assert (r.services.counters.polls, r.worked_times) == (0, 0)
    await asyncio.sleep(1)
    assert len(r.polls) == 1


@pytest.mark.parametrize("blamed", [False, True])
@polling()
async def test_polls_again_what_another_request_lost_and_dissolves_a_poll_that_is_to_blame(
    r: Rig, blamed: bool
) -> None:
    r.answering.answers.append(ConnectionClosedError("gone", blamed=blamed))
    tasks = r.wait(2)
    await asyncio.sleep(0.05)
    assert [task.done() for task in tasks] == [blamed] * 2
    assert len(r.polls) == 1 if blamed else len(r.polls) > 1
    assert not r.answering.aborted


@polling()
async def test_a_paused_partition_is_left_out_and_polled_at_once_afterwards(r: Rig) -> None:
    r.wait(2)
    r.poller.pause(r.idlers[0])
    await r.answering.asked.wait()
    r.poller.pause(r.idlers[1])  # its poll is under way
    await asyncio.sleep(20)
    assert [partitions for _, partitions, *_ in r.polls] == [[1]]
    r.poller.resume(r.idlers[0])
    await asyncio.sleep(0.01)
    assert r.polls[1][1] == [0]
    assert r.polls[1][0] == pytest.approx(20.01, abs=0.01)
    r.poller.resume(r.idlers[1])
    await asyncio.sleep(2)
    assert {number for _, partitions, *_ in r.polls[2:] for number in partitions} == {0, 1}


@polling()
async def test_resuming_a_partition_that_is_not_idle_polls_nothing(r: Rig) -> None:
    idler = r.idler()
    r.poller.pause(idler)
    r.poller.resume(idler)
    await asyncio.sleep(5)
    assert r.polls == []
    waiting = r.ask(idler, 100)
    await asyncio.sleep(5)
    polls = len(r.polls)
    assert polls > 5
    waiting.cancel()
    await asyncio.wait([waiting])
    r.poller.pause(idler)
    r.poller.resume(idler)
    await asyncio.sleep(5)
    assert len(r.polls) == polls


@polling()
async def test_waits_for_a_round_trip_between_polls_by_the_mean_of_those_before(r: Rig) -> None:
    idler = r.idler()
    r.answering.trip = 0.1
    task = r.ask(idler, 0)
    await asyncio.sleep(0.15)
    assert idler.interval == pytest.approx(0.1)
    r.answering.trip = 0.9  # one slow answer, and ordinary ones after it
    await r.answering.asked.wait()
    await asyncio.sleep(0.1)
    r.answering.trip = 0.1
    await asyncio.sleep(0.9)
    assert idler.interval == pytest.approx(0.2)  # an eighth of what it took longer
    assert not task.done()


def times(polls: list[tuple[float, list[int], int, int]]) -> list[tuple[float, list[int]]]:
    """When polls went out, and the partitions of each."""
    return [(time, sorted(partitions)) for time, partitions, *_ in polls]


@pytest.mark.parametrize("idle_backoff", [1.0, 8.0], ids=["longest interval", "shorter interval"])
@polling("idle_backoff")
async def test_a_poll_includes_what_is_due_within_half_of_the_interval_of_the_first(
    r: Rig, idle_backoff: float
) -> None:
    for wait in (0.0, 0.4375, 0.0625, 0.0625):  # until 0.5 is half of the interval
        await asyncio.sleep(wait)
        r.ask(r.idler(1.0), 100)
    await r.answering.asked.wait()
    assert times(r.polls) == [(1.0, [0, 1, 2])]


@polling(idle_backoff=8.0)
async def test_partition_that_is_paused_and_resumed_is_not_polled_earlier(r: Rig) -> None:
    r.answering.trip = 0.25
    idler = r.idler(1.0)
    r.ask(idler, 100)
    await asyncio.sleep(2.0)
    r.poller.pause(idler)
    r.poller.resume(idler)
    await asyncio.sleep(1.0)
    assert times(r.polls) == [(1.0, [0]), (2.25, [0])]


@polling(idle_backoff=8.0)
async def test_partition_that_gets_its_messages_leaves_the_others_to_their_time(r: Rig) -> None:
    r.answering.trip = 0.0
    r.ask(r.idler(1.0), 100)
    quick = r.ask(r.idler(0.0625), 100)
    await asyncio.sleep(0.65)
    r.answering.answers.append({1: FetchResponse(ErrorCode.NONE, b"d")})
    (await quick).reservation.release()
    assert times(r.polls) == [(number / 16, [1]) for number in range(1, 12)]
    await asyncio.sleep(1.0)
    assert times(r.polls[11:]) == [(11 / 16 + 0.5, [0])]  # half of its interval after the last poll


@polling(idle_backoff=8.0)
async def test_partitions_with_the_longest_interval_are_not_looked_at_in_the_polls_of_others(r: Rig) -> None:
    for _ in range(100):
        r.ask(r.idler(8.0, CountedIdler), 100)
    r.ask(r.idler(0.0625), 100)
    await asyncio.sleep(1.0)
    CountedIdler.looks = 0
    await asyncio.sleep(4.0)
    assert len(r.polls) > 50
    assert 0 < CountedIdler.looks < 6 * len(r.polls)


@polling(poll_backoff_min=1.0, idle_backoff=1.0)
async def test_partitions_with_the_longest_interval_are_polled_in_the_order_in_which_they_are_due(r: Rig) -> None:
    r.answering.trip = 0.0
    r.wait()
    await asyncio.sleep(0.625)
    r.wait()
    await asyncio.sleep(1.5)
    assert times(r.polls) == [(1.0, [0]), (1.625, [0, 1])]


@polling()
async def test_partition_whose_interval_becomes_the_longest_is_in_each_poll_once(r: Rig) -> None:
    r.wait()
    await asyncio.sleep(120)
    assert r.idlers[0].interval == 1.0
    assert all(partitions == [0] for _, partitions, *_ in r.polls)


@polling(poll_backoff_min=1.0, idle_backoff=1.0)
async def test_partition_with_the_longest_interval_that_left_is_not_polled(r: Rig) -> None:
    tasks = r.wait(2)
    await asyncio.sleep(1.5)
    tasks[0].cancel()
    r.poller.pause(r.idlers[1])
    await asyncio.sleep(5)
    assert times(r.polls) == [(1.0, [0, 1])]


@polling()
async def test_partition_keeps_the_longest_interval_until_it_has_messages(r: Rig) -> None:
    r.answering.trip = 2.0  # an interval is a round trip at least
    task = r.ask(r.idler(), 100)
    await asyncio.sleep(3)
    r.answering.trip = 0.0
    await asyncio.sleep(20)  # enough of them for a small mean
    assert r.idlers[0].interval == 1.0
    r.answering.answers.append({0: FetchResponse(ErrorCode.NONE, b"d")})
    (await task).reservation.release()
    r.idlers[0].pace.seen(1000, asyncio.get_running_loop().time())
    r.ask(r.idlers[0], 101)
    await asyncio.sleep(0)
    assert r.idlers[0].interval < 0.5


@polling()
async def test_goes_on_after_all_left_while_the_broker_was_connected(r: Rig) -> None:
    r.connected.clear()
    (first,) = r.wait()
    await asyncio.sleep(1)
    first.cancel()
    await asyncio.sleep(0)
    r.connected.set()
    await asyncio.sleep(1)
    assert r.polls == []
    r.wait()
    await r.answering.asked.wait()
    assert r.polls[0][1] == [1]


def test_waiting_begins_before_the_poller_runs() -> None:
    async def main() -> None:
        rig = Rig()
        async with rig.running():
            rig.wait()
            await asyncio.sleep(0.5)
            assert rig.group is not None
            rig.tasks.append(rig.group.create_task(rig.poller.run()))
            await rig.answering.asked.wait()
            assert asyncio.get_running_loop().time() == pytest.approx(0.5)

    run_in_virtual_time(main())
