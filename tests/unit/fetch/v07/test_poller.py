"""The common poll of idle partitions: what it costs a member that owns a thousand of them."""

import asyncio
import random
from typing import Any

import pytest

from consumerd.clock import SystemClock
from consumerd.fetch import ByteBudget, FetchSettings, Lane
from consumerd.fetch.policies import FetchServices
from consumerd.fetch.v07 import poller
from consumerd.fetch.v07.poller import IdlePoller, Idler
from consumerd.partition import TopicPartition
from consumerd.wire.v07 import MultiFetchRequest, decode_multifetch_response, encode_message_set


@pytest.mark.asyncio
async def test_adds_idle_partitions_without_scanning_all() -> None:
    looks = 0

    class CountedIdler(Idler):
        def __getattribute__(self, name: str) -> Any:
            nonlocal looks
            looks += name == "paused"
            return super().__getattribute__(name)

    settings = FetchSettings(poll_backoff_min=600.0, poll_backoff_max=600.0)
    budget = ByteBudget(1 << 20)
    never: Any = None  # nothing becomes due, so the broker is not asked
    poller = IdlePoller(never, budget, FetchServices(settings, SystemClock(), random.Random(1), never, never))
    tasks: list[asyncio.Task[Any]] = [asyncio.create_task(poller.run())]
    for number in range(300):
        idler = CountedIdler(Lane(TopicPartition("t", 0, number), budget, max_bytes=1000))
        tasks.append(asyncio.create_task(poller.wait(idler, 0)))
        for _ in range(10):
            await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert 0 < looks < 2 * 300


@pytest.mark.asyncio
async def test_reuses_encoded_request_while_idle(rig: Any, monkeypatch: Any) -> None:
    encoded: list[MultiFetchRequest] = []
    encode = MultiFetchRequest.encode

    def counted(request: MultiFetchRequest) -> bytes:
        encoded.append(request)
        return encode(request)

    monkeypatch.setattr(MultiFetchRequest, "encode", counted)
    async with rig(poll_backoff_min=0.001, poll_backoff_max=0.001) as r:
        for number in range(3):
            r.add(number=number)
        await r.until(lambda: len(r.broker.fetches(MultiFetchRequest)) > 20)
        polls = r.broker.fetches(MultiFetchRequest)
    assert len(encoded) < len(polls) / 2
    assert {fetch.partition for fetch in polls[-1].fetches} <= {0, 1, 2}


@pytest.mark.asyncio
async def test_decodes_equal_answers_of_idle_polls_once_and_data_after_them(
    rig: Any, scripted_log: Any, monkeypatch: Any
) -> None:
    decoded: list[int] = []
    decode = decode_multifetch_response

    def counted(body: bytes, count: int) -> Any:
        decoded.append(count)
        return decode(body, count)

    monkeypatch.setattr(poller, "decode_multifetch_response", counted)
    async with rig(poll_backoff_min=0.001, poll_backoff_max=0.001) as r:
        lanes = [r.add(number=number) for number in range(3)]
        await r.until(lambda: len(r.broker.fetches(MultiFetchRequest)) > 20)
        assert len(decoded) < len(r.broker.fetches(MultiFetchRequest)) / 2
        r.broker.logs["t", 1] = scripted_log(0, encode_message_set([b"late"]))
        assert await r.take(lanes[1], 1) == [b"late"]
