"""What counts as lag, and which part of it an open transaction holds back."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from consumerd.base.errors import BrokerError
from consumerd.base.partition import TopicPartition
from consumerd.member.consumer.owned_partition import OwnedView
from consumerd.member.offsets.end_times import EndTimes
from consumerd.service.daemon import lag
from consumerd.service.daemon.lag import Lag, LagWatch
from consumerd.testing.clock import FakeClock

T0, T1 = (TopicPartition.numbered("t", number) for number in range(2))


class Controls:
    """Ends of logs; a partition without one is not answered for."""

    def __init__(self, ends: Mapping[TopicPartition, int], readable: Mapping[TopicPartition, int]) -> None:
        self.ends = dict(ends)
        self.readable = readable
        #: Ends that need not be asked for.
        self.known: dict[TopicPartition, int] = {}

    def known_end(self, partition: TopicPartition) -> int | None:
        return self.known.get(partition)

    async def log_end(self, partition: TopicPartition) -> int:
        if partition not in self.ends:
            raise BrokerError("no leader")
        return self.ends[partition]

    async def end_offsets(self, partition: TopicPartition) -> dict[TopicPartition, int]:
        return {partition: self.readable[partition]}


def view(partition: TopicPartition, position: int, next_timestamp: int | None = None) -> OwnedView:
    return OwnedView(partition, 0, position, None, False, 0, 0, None, next_timestamp)


def member(controls: Controls, *, read_committed: bool) -> Any:
    settings = SimpleNamespace(fetch=SimpleNamespace(read_committed=read_committed))
    return SimpleNamespace(views=lambda: [view(T0, 10), view(T1, 10)], controls=controls, settings=settings)


async def test_messages_behind_an_open_transaction_are_lag() -> None:
    watch = LagWatch(FakeClock())
    controls = Controls({T0: 25, T1: 30}, {T0: 20, T1: 30})
    await watch.look(member(controls, read_committed=True))
    assert watch.of(view(T0, 10), None) == Lag(15, None, 0.0, held_back=5)
    assert watch.of(view(T0, 20), None) == Lag(5, None, 0.0, held_back=5)
    assert watch.of(view(T0, 23), None) == Lag(2, None, 0.0, held_back=2)  # the transaction has ended since
    assert watch.of(view(T1, 10), None) == Lag(20, None, 0.0)


async def test_nothing_is_held_back_where_everything_is_read() -> None:
    watch = LagWatch(FakeClock())
    controls = Controls({T0: 25, T1: 30}, {})
    await watch.look(member(controls, read_committed=False))
    assert watch.of(view(T0, 20), None) == Lag(5, None, 0.0)


async def test_ends_that_are_known_are_not_asked_for() -> None:
    watch = LagWatch(FakeClock())
    controls = Controls({T1: 30}, {})
    controls.known[T0] = 12
    await watch.look(member(controls, read_committed=False))
    assert watch.failing(0.0) == []
    assert watch.of(view(T0, 10), None) == Lag(2, None, 0.0)
    assert watch.of(view(T1, 10), None) == Lag(20, None, 0.0)


async def test_lag_is_unknown_while_the_end_cannot_be_looked_up() -> None:
    clock = FakeClock()
    watch = LagWatch(clock)
    controls = Controls({T0: 25, T1: 30}, {T0: 20, T1: 30})
    with capture_logs() as logs:
        await watch.look(member(controls, read_committed=True))
        end = controls.ends.pop(T0)
        controls.ends[T1] = 31
        for _ in range(2):
            await watch.look(member(controls, read_committed=True))
            clock.jump(15.0)
        assert watch.of(view(T0, 20), None) is None
        assert watch.of(view(T1, 10), None) == Lag(21, None, 30.0, held_back=1)
        assert (watch.failing(30.0), watch.failing(31.0)) == ([T0], [])
        controls.ends[T0] = end
        await watch.look(member(controls, read_committed=True))
    assert watch.of(view(T0, 20), None) == Lag(5, None, 30.0, held_back=5)
    assert watch.failing(0.0) == []
    assert [(line["event"], line["log_level"], line["partitions"]) for line in logs] == [
        ("lag_unknown", "warning", 1),
        ("lag_known", "info", 2),
    ]


async def test_brokers_that_do_not_answer_hide_no_other_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lag, "_PATIENCE", 0.02)
    watch = LagWatch(FakeClock())
    silent, answering = ([TopicPartition.numbered(topic, number) for number in range(40)] for topic in "at")

    class Half(Controls):
        async def log_end(self, partition: TopicPartition) -> int:
            if partition.topic == "a":
                await asyncio.Event().wait()
            return 30

    settings = SimpleNamespace(fetch=SimpleNamespace(read_committed=False))
    views = [view(each, 10) for each in (*silent, *answering)]
    known: Any = SimpleNamespace(views=lambda: views[40:], controls=Half({}, {}), settings=settings)
    await watch.look(known)
    both: Any = SimpleNamespace(views=lambda: views, controls=Half({}, {}), settings=settings)
    for _ in range(5):
        await watch.look(both)
        assert {watch.of(view(each, 10), None) for each in answering} == {Lag(20, None, 0.0)}
        assert watch.failing(0.0)  # at first those that were asked
    assert watch.failing(0.0) == silent


async def test_seconds_are_the_age_of_the_next_message_by_its_timestamp() -> None:
    clock = FakeClock()
    watch = LagWatch(clock)
    await watch.look(member(Controls({T0: 25, T1: 30}, {}), read_committed=False))
    two_hours_ago = round((clock.wall() - 7200) * 1000)
    handled_at = clock.monotonic()
    clock.jump(0.5)
    assert watch.of(view(T0, 10, two_hours_ago), handled_at) == Lag(15, 7200.5, 0.5)
    assert watch.of(view(T0, 25, two_hours_ago), handled_at) == Lag(0, 7200.5, 0.0)  # it came after the last look
    assert watch.of(view(T0, 25), handled_at) == Lag(0, 0.0, 0.0)
    assert watch.of(view(T0, 10, round(clock.wall() * 1000) + 60_000), handled_at) == Lag(15, None, 0.5)


async def test_without_timestamps_the_age_counts_from_when_the_log_ended_there() -> None:
    clock = FakeClock()
    watch = LagWatch(clock)
    controls = Controls({T0: 10, T1: 10}, {})
    for end in (12, 12, 30, 30, 50):
        controls.ends[T0] = end
        await watch.look(member(controls, read_committed=False))
        clock.jump(15.0)
    # The log ended at 12 at 0 and 15 s, at 30 at 30 and 45 s, at 50 at 60 s; now is 75 s.
    ages = {
        position: found.age for position in (10, 12, 20, 30, 40, 50) if (found := watch.of(view(T0, position), None))
    }
    assert ages == {10: None, 12: 60.0, 20: 60.0, 30: 30.0, 40: 30.0, 50: 0.0}
    controls.ends[T0] = 5  # another log
    await watch.look(member(controls, read_committed=False))
    controls.ends[T0] = 20
    await watch.look(member(controls, read_committed=False))
    found = watch.of(view(T0, 12), None)
    assert found is not None
    assert found.age == 0.0


@given(st.lists(st.integers(0, 3), min_size=1, max_size=100), st.integers(1, 5), st.data())
def test_times_of_ends_are_bounded_and_never_too_late(steps: list[int], repeats: int, data: st.DataObject) -> None:
    times, ends = EndTimes(), list(accumulate(steps * repeats))
    for at, end in enumerate(ends):
        times.note(end, float(at), position=0)
    assert len(times._seen) <= 128
    position = data.draw(st.integers(0, ends[-1]))
    exact = max((at for at, ended in enumerate(ends) if ended <= position), default=None)
    found = times.ended_at(position)
    assert (found is None) == (exact is None)
    assert found is None or exact is None or found <= exact
    assert times.ended_at(ends[-1]) == len(ends) - 1


def test_times_of_ends_before_the_position_are_forgotten() -> None:
    times = EndTimes()
    for at in range(1000):
        times.note(at, float(at), position=at - 3)
    assert times._seen == [(at, float(at)) for at in range(996, 1000)]
    for at in range(1000, 2000):
        times.note(at, float(at), position=997)
    assert len(times._seen) <= 128
    assert times.ended_at(997) == 997.0
