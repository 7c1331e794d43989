"""The common poll of idle partitions: what it costs a member that owns a thousand of them."""

import asyncio
import random
from typing import Any

import pytest

from consumerd.base.budget import ByteBudget
from consumerd.base.partition import TopicPartition
from consumerd.member.fetch.lane import Lane
from consumerd.member.fetch.policies import FetchServices
from consumerd.member.fetch.settings import FetchSettings
from consumerd.member.fetch.v07.pace import Pace
from consumerd.member.fetch.v07.poller import IdlePoller, Idler
from consumerd.testing.clock import FakeClock
from consumerd.wire.v07 import FetchRequest, MultiFetchRequest


@pytest.mark.parametrize("longest", [600.0, 1200.0])
async def test_adds_idle_partitions_without_scanning_all(longest: float) -> None:
    looks = 0

    class CountedIdler(Idler):
        def __getattribute__(self, name: str) -> Any:
            nonlocal looks
            looks += name == "due"
            return super().__getattribute__(name)

    settings = FetchSettings(poll_backoff_min=600.0, idle_backoff=longest)
    budget = ByteBudget(1 << 20)
    never: Any = None  # nothing becomes due, so the broker is not asked
    poller = IdlePoller(never, budget, FetchServices(settings, FakeClock(), random.Random(1), never, never))
    tasks: list[asyncio.Task[Any]] = [asyncio.create_task(poller.run())]
    for number in range(300):
        idler = CountedIdler(Lane(TopicPartition("t", 0, number), budget, max_bytes=1000), Pace(0.0))
        tasks.append(asyncio.create_task(poller.wait(idler, 0)))
        for _ in range(10):
            await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert 0 < looks < 3 * 300


async def test_packs_an_entry_once_while_neither_offset_nor_size_changes(rig: Any, monkeypatch: Any) -> None:
    packed: list[FetchRequest] = []
    entry = FetchRequest.entry

    def counted(request: FetchRequest) -> bytes:
        packed.append(request)
        return entry(request)

    async with rig(poll_backoff_min=0.001, idle_backoff=0.001) as r:
        for number in range(3):
            r.add(number=number)
        await r.until(lambda: any(len(poll.fetches) == 3 for poll in r.broker.fetches(MultiFetchRequest)))
        monkeypatch.setattr(FetchRequest, "entry", counted)
        polls = len(r.broker.fetches(MultiFetchRequest))
        await r.until(lambda: len(r.broker.fetches(MultiFetchRequest)) > polls + 20)
        assert packed == []
        # In any order: those that became idle while a poll was under way stay before those that it polled.
        assert sorted(fetch.partition for fetch in r.broker.fetches(MultiFetchRequest)[-1].fetches) == [0, 1, 2]
