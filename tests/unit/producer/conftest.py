"""A broker in memory, a clock that tests advance, and producers on both."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Hashable, Sequence
from typing import Any

import pytest

from consumerd.producer import (
    AsyncProducer,
    CallbackHandler,
    Event,
    Producer,
    ProducerSettings,
    QueueSettings,
    Route,
    Router,
    StaticRouter,
)
from consumerd.testing.clock import FakeClock
from consumerd.testing.memory_broker import MemoryBroker
from consumerd.wire.v07 import MultiProduceRequest, ProduceRequest, decode_batch


class World:
    """One broker, one clock, and what was sent."""

    def __init__(self) -> None:
        self.broker = MemoryBroker()
        self.clock = FakeClock()
        self.rng = random.Random(1)

    def producer(self, router: Router | None = None, **options: Any) -> Producer:
        """A synchronous producer; options are the settings and `encoder`."""
        encoder = {"encoder": options.pop("encoder")} if "encoder" in options else {}
        return Producer(
            router or StaticRouter([("memory", 1)], rng=self.rng),
            connect=self.broker.connect,
            clock=self.clock,
            rng=self.rng,
            settings=ProducerSettings(**options),
            **encoder,
        )

    def queued(self, producer: Producer | None = None, **options: Any) -> AsyncProducer:
        """An asynchronous one; options are those of the queue, `callbacks` and `event_handler`."""
        parts = {name: options.pop(name) for name in ("callbacks", "event_handler") if name in options}
        return AsyncProducer(producer or self.producer(), clock=self.clock, queue=QueueSettings(**options), **parts)

    def stored(self, topic: str, partition: int = 0) -> list[bytes]:
        """The payloads of a log."""
        return list(decode_batch(bytes(self.broker.logs.get((topic, partition), b"")), 0).payloads)

    @property
    def produced(self) -> list[list[tuple[str, int, list[bytes]]]]:
        """The entries of every request of a producer that came in, PRODUCE and MULTIPRODUCE alike."""
        found = []
        for request in self.broker.requests:
            if isinstance(request, (ProduceRequest, MultiProduceRequest)):
                entries = request.produces if isinstance(request, MultiProduceRequest) else (request,)
                found.append([(e.topic, e.partition, list(decode_batch(e.messages, 0).payloads)) for e in entries])
        return found

    async def settle(self) -> None:
        """Let everything run that can without time passing."""
        for _ in range(60):
            await asyncio.sleep(0)

    async def advance(self, seconds: float) -> None:
        """Let time pass, and everything run."""
        await self.settle()
        await self.clock.advance(seconds)
        await self.settle()


@pytest.fixture
def world() -> World:
    return World()


class Told(CallbackHandler):
    """Writes down every call."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.lost: list[Event] = []

    def before_enqueue(self, event: Event) -> Event:
        self.calls.append(("before_enqueue", event.message))
        return event

    def after_enqueue(self, event: Event, added: bool) -> None:
        self.calls.append(("after_enqueue", (event.message, added)))

    def after_dequeuing_existing_data(self, event: Event) -> Sequence[Event]:
        self.calls.append(("after_dequeuing_existing_data", event.message))
        return [event]

    def before_sending_data(self, events: Sequence[Event]) -> Sequence[Event]:
        self.calls.append(("before_sending_data", [event.message for event in events]))
        return events

    def last_batch_before_close(self) -> Sequence[Event]:
        self.calls.append(("last_batch_before_close", None))
        return ()

    def not_sent(self, events: Sequence[Event], error: Exception) -> None:
        self.calls.append(("not_sent", [event.message for event in events]))
        self.lost += events

    def close(self) -> None:
        self.calls.append(("close", None))


@pytest.fixture
def told() -> Told:
    return Told()


class ByKey(Router):
    """The partition is the length of the key, or the one that was asked for; -1 without either."""

    async def route(self, topic: str, key: Hashable, partition: int | None) -> Route:
        return Route("memory", 1, partition if partition is not None else -1 if key is None else len(str(key)))

    async def close(self) -> None:
        return


@pytest.fixture
def by_key() -> ByKey:
    return ByKey()
