"""The connections of a producer of 0.7: what is remembered of those that ended, and how they are closed."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from structlog.testing import capture_logs

from consumerd.base.clock import SystemClock
from consumerd.producer import ProducerSettings, UncertainError
from consumerd.producer.v07.links import BrokerLinks
from consumerd.wire.v07 import ProduceRequest
from tests.support.waiting import cancel


async def test_flush_reports_what_a_cancelled_send_left_unconfirmed(world: Any) -> None:
    producer = world.producer()
    sending = asyncio.create_task(producer.send("t", [b"a"]))
    while not world.produced:
        await asyncio.sleep(0)
    await cancel(sending)
    assert sending.cancelled()
    world.broker.abort()
    with pytest.raises(UncertainError):
        await producer.flush()
    await producer.close()


async def test_loss_of_unconfirmed_messages_is_logged_once(world: Any) -> None:
    producer = world.producer()
    sending = asyncio.create_task(producer.send("t", [b"a"]))
    while not world.produced:
        await asyncio.sleep(0)
    await cancel(sending)
    with capture_logs() as logs:
        for payload in (b"b", b"c"):
            world.broker.abort()
            await producer.send("t", [payload])
    assert [(each["event"], each["topic"]) for each in logs] == [("messages_unconfirmed", "t")]
    with pytest.raises(UncertainError, match="before it confirmed messages for topic 't'"):
        await producer.close()
    assert not world.broker.connections


async def test_sends_over_a_new_connection_where_the_end_of_the_last_has_come(world: Any) -> None:
    async with world.producer(resends=0) as producer:
        await producer.send("t", [b"a"])
        asyncio.get_running_loop().call_soon(world.broker.abort)
        await producer.send("t", [b"b"])
    assert world.stored("t") == [b"a", b"b"]


class Connection:
    """Notes what is done to it; `ends`: closing it does not hang."""

    closed = False

    def __init__(self, ends: asyncio.Event) -> None:
        self.ends = ends
        self.calls: list[str] = []

    async def send(self, frame: bytes) -> None:
        self.calls.append("send")

    async def close(self) -> None:
        self.calls.append("close")
        await self.ends.wait()

    def abort(self) -> None:
        self.calls.append("abort")


async def test_closes_each_connection_once_and_aborts_all_when_it_is_cancelled() -> None:
    ends, made = asyncio.Event(), []

    async def connect(host: str, port: int) -> Any:
        made.append(Connection(ends))
        return made[-1]

    links = BrokerLinks(connect, ProducerSettings(confirm=False), clock=SystemClock(), rng=random.Random(1))

    async def send() -> None:
        for port in (1, 2):
            await links.deliver(("broker", port), [ProduceRequest("t", 0, b"m")], multi=False)

    await send()
    ends.set()
    await links.close()
    await links.close()
    assert [each.calls for each in made] == [["send", "close", "abort"]] * 2
    ends.clear()
    await send()
    closing = asyncio.create_task(links.close())
    await asyncio.sleep(0)
    await cancel(closing)
    assert closing.cancelled()
    assert [each.calls for each in made[2:]] == [["send", "close", "abort"], ["send", "abort"]]
