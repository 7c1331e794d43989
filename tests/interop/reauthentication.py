"""Messages that flow while authentications expire, and what happens to the connections meanwhile (KIP-368)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from consumerd import ConsumerConfig, ConsumerConnector, ProducerConfig, open_producer
from consumerd.base.ports import SaslMechanism
from consumerd.net.client.channel import Channel
from consumerd.net.connection import BrokerConnection

#: Milliseconds after which brokers expect clients to authenticate again.
REAUTH = 2000


@contextlib.contextmanager
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[list[str], list[float]]]:
    """The connections that end, and the lifetimes of authentications that were made again."""
    ended: list[str] = []
    again: list[float] = []
    lost, authenticated = BrokerConnection.connection_lost, Channel.authenticated

    def note_end(self: BrokerConnection, error: Exception | None) -> None:
        ended.append(self.address)
        lost(self, error)

    def note_again(self: Channel, until: float, renew: Any) -> None:
        if self._session is not None:
            again.append(until - self.now())
        authenticated(self, until, renew)

    with monkeypatch.context() as patch:
        patch.setattr(BrokerConnection, "connection_lost", note_end)
        patch.setattr(Channel, "authenticated", note_again)
        yield ended, again


@contextlib.asynccontextmanager
async def traffic(port: int, sasl: Callable[[], SaslMechanism]) -> AsyncIterator[list[int]]:
    """Produce, and consume as a member of a group, all the while; the numbers of messages sent and found at the end."""
    where = [f"127.0.0.1:{port}"]
    config = ConsumerConfig(group="g", bootstrap=where, sasl=sasl, commit_interval=0.2, heartbeat_interval=0.3)
    counts, found, stop = [0, 0], asyncio.Event(), False
    async with (
        open_producer(ProducerConfig(bootstrap=where, sasl=sasl)) as producer,
        ConsumerConnector(config) as connector,
        asyncio.timeout(90),
    ):
        (stream,) = (await connector.create_message_streams({"events": 1}))["events"]

        async def write() -> None:
            while not stop:
                await producer.send("events", [b"x"])
                counts[0] += 1

        async def read() -> None:
            async for _ in stream:
                stream.ack()
                counts[1] += 1
                found.set()

        writer, reader = asyncio.create_task(write()), asyncio.create_task(read())
        await found.wait()
        yield counts
        stop = True
        await writer
        while counts[1] < counts[0]:  # the last message may be found before its producer has the answer, or after
            found.clear()
            await found.wait()
        reader.cancel()
        await asyncio.wait([reader])


async def check_renewals(port: int, sasl: Callable[[], SaslMechanism], monkeypatch: pytest.MonkeyPatch) -> None:
    """Authenticate again under load for 7 s, without a warning or a disconnect."""
    async with traffic(port, sasl) as counts:
        with capture_logs() as logs, watched(monkeypatch) as (ended, again):
            await asyncio.sleep(7)  # of the broker's time
            warnings = [each for each in logs if each["log_level"] in ("warning", "error", "critical")]
            problems = [*ended, *warnings]
    print(counts, "messages,", len(again), "authentications again,", problems)  # noqa: T201
    assert problems == []
    assert counts[0] == counts[1] > 100
    assert len(again) >= 3 * 3  # each of at least three connections, every 1.6 s
    assert all(0 < lifetime <= REAUTH / 1000 for lifetime in again)
