"""What counts as lag, and which part of it an open transaction holds back."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from consumerd.consumer.owned_partition import OwnedView
from consumerd.daemon import lag
from consumerd.daemon.lag import Lag, LagWatch
from consumerd.errors import BrokerError
from consumerd.partition import TopicPartition
from consumerd.testing.clock import FakeClock

if TYPE_CHECKING:
    from collections.abc import Mapping

pytestmark = pytest.mark.asyncio
T0, T1 = (TopicPartition.numbered("t", number) for number in range(2))


class Controls:
    """Ends of logs; a partition without one is not answered for."""

    def __init__(self, ends: Mapping[TopicPartition, int], readable: Mapping[TopicPartition, int]) -> None:
        self.ends = dict(ends)
        self.readable = readable

    async def log_end(self, partition: TopicPartition) -> int:
        if partition not in self.ends:
            raise BrokerError("no leader")
        return self.ends[partition]

    async def end_offsets(self, partition: TopicPartition) -> dict[TopicPartition, int]:
        return {partition: self.readable[partition]}


def view(partition: TopicPartition, position: int) -> OwnedView:
    return OwnedView(partition, 0, position, None, paused=False, queued=0, held_bytes=0, in_hand=None)


def member(controls: Controls, *, read_committed: bool) -> Any:
    settings = SimpleNamespace(fetch=SimpleNamespace(read_committed=read_committed))
    return SimpleNamespace(views=lambda: [view(T0, 10), view(T1, 10)], controls=controls, settings=settings)


async def test_messages_behind_an_open_transaction_are_lag() -> None:
    watch = LagWatch(FakeClock())
    controls = Controls({T0: 25, T1: 30}, {T0: 20, T1: 30})
    await watch.look(member(controls, read_committed=True))
    assert watch.of(view(T0, 10), None) == Lag(15, 0.0, held_back=5)
    assert watch.of(view(T0, 20), None) == Lag(5, 0.0, held_back=5)
    assert watch.of(view(T0, 23), None) == Lag(2, 0.0, held_back=2)  # the transaction has ended since
    assert watch.of(view(T1, 10), None) == Lag(20, 0.0)


async def test_nothing_is_held_back_where_everything_is_read() -> None:
    watch = LagWatch(FakeClock())
    controls = Controls({T0: 25, T1: 30}, {})
    await watch.look(member(controls, read_committed=False))
    assert watch.of(view(T0, 20), None) == Lag(5, 0.0)


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
        assert watch.of(view(T1, 10), None) == Lag(21, 0.0 + 30.0, held_back=1)
        assert (watch.failing(30.0), watch.failing(31.0)) == ([T0], [])
        controls.ends[T0] = end
        await watch.look(member(controls, read_committed=True))
    assert watch.of(view(T0, 20), None) == Lag(5, 30.0, held_back=5)
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
    both: Any = SimpleNamespace(views=lambda: views, controls=Half({}, {}), settings=settings)
    await watch.look(both)
    assert 0 < len(watch.failing(0.0)) < len(silent)  # those that were asked
    for _ in range(4):
        await watch.look(both)
    assert watch.failing(0.0) == silent
    assert {watch.of(view(each, 10), None) for each in answering} == {Lag(20, 0.0)}
