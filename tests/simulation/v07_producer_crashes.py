"""The producers for brokers of 0.7, with a fault at one chosen request.

Strategy: four tasks of one process send numbered messages, each to a partition of its own on one of two brokers, and
note the results. Before the broker works on a request, or before it answers, the connection breaks, the broker
restarts, it is unavailable for longer than the producer tries, or the process dies. Then the logs are compared with
what was reported, by the guarantees in `consumerd.producer.v07.producer` and `async_producer`:

    sync         what `send` returned for is there; UncertainError: perhaps; any other error: nothing of it
    once         the same without resends: and nothing is there twice
    unconfirmed  what a `flush` returned for is there
    async        the same, but for messages of which `not_sent` was called

Everything is in the order in which it was sent, and only those are there twice that were not confirmed at the fault.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Literal

from consumerd.base.errors import BrokerError
from consumerd.base.settings.servers import ZooKeeperSection
from consumerd.net.connect import connect
from consumerd.producer import (
    AsyncProducer,
    CallbackHandler,
    Event,
    NotSentError,
    Partitioner,
    Producer,
    ProducerSettings,
    QueueSettings,
    UncertainError,
    ZooKeeperRouter,
)
from consumerd.service.config.build import build_session
from consumerd.wire.v07 import FetchRequest, Request, decode_batch
from tests.simulation.broker import REQUEST_TIME, SimulatedBroker
from tests.simulation.confirmations import Confirmations
from tests.simulation.daemon import ProcessClock
from tests.simulation.kernel import SimulationError
from tests.simulation.mirror_world import produced_payloads
from tests.simulation.network import Link
from tests.simulation.process import ProcessLoop
from tests.simulation.world import World

#: What happens at a request.
V07Fault = Literal["cut", "broker restarts", "broker away", "kill"]
#: How messages are sent.
V07Mode = Literal["sync", "once", "unconfirmed", "async"]
TOPIC = "t"
#: Partitions on each of two brokers, and batches that are sent to each.
PARTITIONS, BATCHES = 2, 5
#: Messages of the batches.
_SIZES = (1, 3, 2)
#: Seconds between two batches, and those to a broker, one way.
_PAUSE, _LATENCY = 0.0005, 0.0002
#: Seconds for which a broker restarts, or is unavailable: longer than the producer tries.
_RESTARTS, _AWAY = 0.3, 15.0


class _ByKey(Partitioner):
    def partition(self, key: Any, count: int, /) -> int:
        return int(key) % count


class _Failures(CallbackHandler):
    """Notes messages that were given up."""

    def __init__(self, told: Told) -> None:
        self._told = told

    def not_sent(self, events: Sequence[Event], error: Exception) -> None:
        self._told.uncertain.update(int(event.message) for event in events)


class Told:
    """The results of the messages that callers sent, by number."""

    def __init__(self) -> None:
        self.numbers = itertools.count()
        #: Of each key its messages, in the order in which they were sent.
        self.sent: dict[int, list[int]] = {key: [] for key in range(2 * PARTITIONS)}
        self.delivered: set[int] = set()
        self.uncertain: set[int] = set()
        self.refused: set[int] = set()
        #: Messages whose failure a flush reported, in all.
        self.reported = 0

    def next_batch(self, key: int, count: int) -> list[int]:
        """The numbers of new messages."""
        batch = list(itertools.islice(self.numbers, count))
        self.sent[key] += batch
        return batch

    @property
    def all(self) -> set[int]:
        """All numbers."""
        return {number for numbers in self.sent.values() for number in numbers}


class V07ProducerWorld(World):
    """Two brokers with one topic, and a process that sends."""

    def __init__(self, mode: V07Mode, seed: int) -> None:
        super().__init__(seed)
        self.mode = mode
        self.told = Told()
        self.watcher: Callable[[SimulatedBroker, Link, str], None] = lambda broker, link, step: None
        self.confirmations = Confirmations(self.kernel, REQUEST_TIME + 1.5 * _LATENCY)
        self.ended = False
        self.failure: BaseException | None = None

    def begin(self) -> None:
        for number in range(2):
            broker = self.add_broker(number, latency=_LATENCY)
            self.topic(TOPIC, PARTITIONS, broker=number)
            broker.watcher = partial(self._watch, broker)
        self.loop = ProcessLoop(self.kernel, self.network, "p")
        self.loop.submit(lambda: self.loop.create_task(self._main()))

    def _watch(self, broker: SimulatedBroker, link: Link, step: str, request: Request) -> None:
        if step.startswith(("ProduceRequest", "MultiProduceRequest")) and step.endswith("done"):
            self.confirmations.stored(link, produced_payloads(request))
        self.watcher(broker, link, step)
        if isinstance(request, FetchRequest) and step.endswith("done") and not link.ended:
            self.confirmations.confirm(link, self.confirmations.waiting(link))

    # -- the process

    async def _main(self) -> None:
        clock = ProcessClock(self.loop)
        try:
            async with AsyncExitStack() as stack:
                section = ZooKeeperSection(connect=f"{self.zookeeper.host}:{self.zookeeper.port}")
                session = build_session(section, clock=clock, rng=self.rng)
                stack.push_async_callback(session.close)
                await session.start(6.0)
                router = ZooKeeperRouter(session, rng=self.rng, partitioner=_ByKey())
                settings = ProducerSettings(
                    resends=0 if self.mode == "once" else 2, confirm=self.mode != "unconfirmed", retries=5
                )
                producer = Producer(router, connect=connect, clock=clock, rng=self.rng, settings=settings)
                if self.mode == "async":
                    await self._send_async(producer, clock)
                else:
                    await self._send_all(producer, clock)
        except BaseException as error:
            self.failure = error
            raise
        finally:
            self.ended = not self.loop.dead

    async def _send_all(self, producer: Producer, clock: ProcessClock) -> None:
        async with asyncio.TaskGroup() as tasks:
            for key in self.told.sent:
                tasks.create_task(self._send_some(producer, key, clock))
        if self.mode == "unconfirmed":
            await self._flush(producer, self.told.all)
        await producer.close()

    async def _send_some(self, producer: Producer, key: int, clock: ProcessClock) -> None:
        told = self.told
        for number in range(BATCHES):
            batch = told.next_batch(key, _SIZES[number % len(_SIZES)])
            try:
                await producer.send(TOPIC, [b"%d" % each for each in batch], key=key)
            except UncertainError:
                self._note(told.uncertain, batch)
            except BrokerError:
                self._note(told.refused, batch)
            else:
                if self.mode != "unconfirmed":
                    self._note(told.delivered, batch)
            await clock.sleep(_PAUSE)

    async def _send_async(self, inner: Producer, clock: ProcessClock) -> None:
        told = self.told
        queue = QueueSettings(batch_size=4, queue_time=0.002)
        producer = AsyncProducer(inner, clock=clock, queue=queue, callbacks=_Failures(told))
        await producer.start()
        for number in range(BATCHES):
            for key in told.sent:
                batch = told.next_batch(key, _SIZES[number % len(_SIZES)])
                await producer.send(TOPIC, [b"%d" % each for each in batch], key=key)
                await clock.sleep(_PAUSE)
            if number == BATCHES // 2:
                await self._flush(producer, told.all)
        await self._flush(producer, told.all, close=True)

    async def _flush(self, producer: Producer | AsyncProducer, before: set[int], *, close: bool = False) -> None:
        """Flush, and note what it tells of the messages that were sent before."""
        told = self.told
        try:
            await (producer.close() if close else producer.flush())
        except NotSentError as error:
            told.reported += error.count
        except UncertainError:
            self._note(told.uncertain, before - told.delivered)
            return
        self._note(told.delivered, before - told.uncertain - told.refused)

    def _note(self, where: set[int], numbers: Any) -> None:
        if not self.loop.dead:
            where.update(numbers)

    # -- the comparison

    def check(self, may_repeat: set[int], fault: V07Fault) -> None:
        """Raise SimulationError where the logs are not as told."""
        told, stored = self.told, Counter[int]()
        for key, sent in told.sent.items():
            broker, partition = divmod(key, PARTITIONS)
            log = bytes(self.brokers[broker].store.logs.get((TOPIC, partition), b""))
            numbers = [int(payload) for payload in decode_batch(log, 0).payloads]
            stored.update(numbers)
            first = list(dict.fromkeys(numbers))
            if not set(first) <= set(sent):
                raise SimulationError(f"messages of others are in partition {key}: {set(first) - set(sent)}")
            if first != sorted(first):
                raise SimulationError(f"partition {key} is out of order: {numbers}")
        if lost := told.delivered - stored.keys():
            raise SimulationError(f"delivered, but not in the logs: {sorted(lost)}")
        if there := told.refused & stored.keys():
            raise SimulationError(f"refused, but in the logs: {sorted(there)}")
        wrong = [each for each, times in stored.items() if times > 1 + (each in may_repeat and self.mode != "once")]
        if wrong:
            raise SimulationError(f"in the logs twice without a reason: {sorted(wrong)}")
        if fault == "kill":
            return
        if self.failure is not None:
            raise SimulationError(f"the producer failed: {self.failure!r}")
        if untold := told.all - told.delivered - told.uncertain - told.refused:
            raise SimulationError(f"nothing was told of {sorted(untold)}")
        if self.mode == "async" and told.reported != len(told.uncertain):
            raise SimulationError(f"{len(told.uncertain)} were given up, and {told.reported} were reported")
        if fault in ("cut", "broker restarts") and self.mode in ("sync", "async") and told.all != told.delivered:
            raise SimulationError(f"given up, though the broker was there: {sorted(told.all - told.delivered)}")


def disturb_v07_producer(number: int, fault: V07Fault, mode: V07Mode, seed: int = 0) -> str | None:
    """Let `fault` happen at step `number` of the requests, and tell its name; None if there are fewer.

    Raises SimulationError where the logs are not as the producer told.
    """
    with V07ProducerWorld(mode, seed) as world:
        count = itertools.count()
        disturbed: list[str] = []
        may_repeat: set[int] = set()

        def watch(broker: SimulatedBroker, link: Link, step: str) -> None:
            if disturbed or next(count) != number:
                return
            disturbed.append(step)
            world.kernel.note("world", f"{fault} at {step}")
            address = broker.host, broker.port
            unknown = world.confirmations.unknown(address, link if fault == "cut" else None)
            may_repeat.update(int(payload) for payload in unknown)
            if fault == "cut":
                link.cut()
            elif fault == "kill":
                world.loop.kill()
                world.network.close_all_of("p")
            else:
                broker.stop()
                world.kernel.after(_RESTARTS if fault == "broker restarts" else _AWAY, broker.start)

        world.watcher = watch
        world.kernel.until(
            lambda: world.ended or world.loop.dead, 300.0, what="the producer has sent everything", every=0.01
        )
        world.run(0.5)
        if not disturbed:
            return None
        world.check(may_repeat, fault)
        return disturbed[0]
