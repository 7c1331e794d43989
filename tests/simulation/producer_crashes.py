"""The producer for brokers of 0.8 and later, with a fault at one chosen PRODUCE request.

Strategy: the real producer and client send numbered messages to a simulated cluster of two brokers. At one request,
before the broker works on it (nothing is stored) or before it answers (all is), the connection breaks, the broker stops
and the other one takes its partitions over, a partition moves, or the producer dies. What the producer's callers saw
acknowledged has to be in the logs, in the order in which it was sent; with idempotence nothing is there twice, and
without it only messages of the request that was disturbed. What the model does not know: replicas that lag behind.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any, Literal

from consumerd.net.client.factory import make_client
from consumerd.net.connection import ConnectionSettings
from consumerd.producer.v08.batches import Delivery
from consumerd.producer.v08.producer import V08Producer
from consumerd.producer.v08.settings import V08ProducerSettings
from tests.simulation.daemon import ProcessClock
from tests.simulation.kafka_broker import PRODUCER_ERAS, Era
from tests.simulation.kafka_world import KafkaWorld
from tests.simulation.kernel import SimulationError
from tests.simulation.network import Link
from tests.simulation.process import ProcessLoop

#: What happens at a request.
ProducerFault = Literal["cut", "broker stops", "leader moves", "kill"]
PARTITIONS = 3
#: Messages in all, and the bytes of a batch: about three messages.
MESSAGES, BATCH_BYTES = 60, 200
#: Seconds between messages, so that several requests are under way at once.
_PAUSE = 0.0002


class _Producer:
    """A process that sends numbered messages to partitions by turns, and notes which were acknowledged."""

    def __init__(self, world: KafkaWorld, *, idempotent: bool | None) -> None:
        self.loop = ProcessLoop(world.kernel, world.network, "p")
        self.world = world
        self.acknowledged: list[tuple[int, int]] = []
        #: Messages whose delivery failed.
        self.failed: list[int] = []
        self.ended = False
        self.failure: BaseException | None = None
        self._settings = V08ProducerSettings(
            batch_bytes=BATCH_BYTES, linger=0.001, in_flight=5, idempotent=idempotent, delivery_timeout=60.0
        )
        self.loop.submit(lambda: self.loop.create_task(self._main()))

    async def _main(self) -> None:
        clock, world = ProcessClock(self.loop), self.world
        bootstrap = [(broker.host, broker.port) for broker in world.kafka.brokers.values()]
        client = make_client(
            bootstrap, ConnectionSettings(socket_timeout=2.0), client_id="p", tls=None, sasl=None, clock=clock,
            rng=world.rng,
        )  # fmt: skip
        try:
            async with V08Producer(client, self._settings, clock=clock, rng=world.rng) as producer:
                for number in range(MESSAGES):
                    delivery = await producer.send("t", b"%d" % number, partition=number % PARTITIONS)
                    self._note(number, delivery)
                    await clock.sleep(_PAUSE)
        except BaseException as error:
            self.failure = error
            raise
        finally:
            await client.close()
            self.ended = not self.loop.dead

    def _note(self, number: int, delivery: Delivery) -> None:
        def settled(outcome: Any) -> None:
            if self.loop.dead:
                return
            if outcome.cancelled() or outcome.exception():
                self.failed.append(number)
            else:
                self.acknowledged.append((number, outcome.result()[0]))

        delivery.batch.outcome.add_done_callback(settled)


def disturb_producer(
    number: int, fault: ProducerFault, *, era: Era = PRODUCER_ERAS[-1], idempotent: bool | None = None, seed: int = 0
) -> str | None:
    """Let `fault` happen at step `number` of the PRODUCE requests, and tell its name; None if there are fewer.

    Raises SimulationError where an acknowledged message is missing, out of order, or there twice without a reason.
    """
    with KafkaWorld(seed, brokers=2, era=era) as world:
        world.topic("t", PARTITIONS)
        count = itertools.count()
        disturbed: list[str] = []

        def watch(link: Link, step: str) -> None:
            if not disturbed and next(count) == number:
                disturbed.append(step)
                world.kernel.note("world", f"{fault} at {step}")
                _apply(world, producer, link, fault)

        world.kafka.watcher = watch
        producer = _Producer(world, idempotent=idempotent)
        world.kernel.until(
            lambda: producer.ended or producer.loop.dead, 60.0, what="the producer has sent everything", every=0.01
        )
        world.run(0.5)
        if not disturbed:
            return None
        if producer.failure is not None or producer.failed:
            raise SimulationError(f"the producer failed: {producer.failure!r}, {producer.failed}")
        check(world, producer.acknowledged, all_sent=fault != "kill", once=_numbered(era, idempotent))
        return disturbed[0]


def _numbered(era: Era, idempotent: bool | None) -> bool:
    return era is not PRODUCER_ERAS[0] and idempotent is not False


def _apply(world: KafkaWorld, producer: _Producer, link: Link, fault: ProducerFault) -> None:
    kafka = world.kafka
    broker = next(number for number, each in kafka.brokers.items() if (each.host, each.port) == link.address)
    if fault == "cut":
        link.cut()
    elif fault == "broker stops":
        kafka.stop_broker(broker)
        world.kernel.after(0.3, lambda: kafka.take_over(world.rng))
    elif fault == "leader moves":
        for partition in world.partitions:
            if kafka.log(partition).leader == broker:
                kafka.lead(partition, 1 - broker)
    else:
        producer.loop.kill()
        world.network.close_all_of("p")


def check(world: KafkaWorld, acknowledged: list[tuple[int, int]], *, all_sent: bool, once: bool) -> None:
    """Raise SimulationError unless the logs have what was acknowledged."""
    if all_sent and len(acknowledged) != MESSAGES:
        raise SimulationError(f"{len(acknowledged)} of {MESSAGES} messages were acknowledged")
    for partition in world.partitions:
        log = [int(payload) for payload in world.kafka.log(partition).payloads]
        repeated = [message for message, times in Counter(log).items() if times > 1]
        first = list(dict.fromkeys(log))
        sent = [message for message, _ in acknowledged if message % PARTITIONS == partition.partition]
        if not set(sent) <= set(first):
            raise SimulationError(f"acknowledged, but not in {partition}: {sorted(set(sent) - set(first))}")
        if first != sorted(first):
            raise SimulationError(f"{partition} is out of order: {log}")
        if once and repeated:
            raise SimulationError(f"{partition} has messages twice: {repeated}")
        if len(repeated) > MESSAGES // PARTITIONS // 2:
            raise SimulationError(f"{partition} has more messages twice than one request: {repeated}")
        for message, offset in acknowledged:
            if message % PARTITIONS == partition.partition and offset is not None and log[offset] > message:
                raise SimulationError(f"{partition} has {log[offset]} where {message} was acknowledged")
