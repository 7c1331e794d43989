"""The clients that `benchmarks.kafka` compares, each run in a process of its own: one job as JSON in, one result out.

Every consumer gets the same fixed partitions from their beginnings to known ends, checks CRCs, commits nothing, and has
to touch each value (its length is added up). Every producer sends the same values without keys and returns when all
are confirmed. Time and processor time (of all threads) count from the first messages on, when all connections stand;
Kafka's own tools are processes that these start, and are measured otherwise (`benchmarks.kafka_perf`).
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import importlib
import itertools
import json
import logging
import random
import resource
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import asdict
from typing import Any

import structlog
import uvloop

from benchmarks import kafka_perf
from benchmarks.decode import payloads
from benchmarks.kafka_job import Job, Result
from consumerd.base.clock import SystemClock
from consumerd.base.partition import TopicPartition
from consumerd.handlers import Batch, HandlerContext
from consumerd.member.consumer.backends_v08 import ClusterBackend
from consumerd.member.consumer.fixed import FixedConsumer
from consumerd.member.consumer.settings import ConsumerSettings
from consumerd.member.fetch.settings import FetchSettings
from consumerd.member.offsets.choice import OffsetSettings
from consumerd.net.client.cluster import ClusterClient
from consumerd.net.client.opening import ChannelOpener
from consumerd.net.client.settings import ClientSettings
from consumerd.net.connect import connect
from consumerd.producer.v08.producer import V08Producer
from consumerd.producer.v08.settings import V08ProducerSettings
from consumerd.wire.registry.subscription import StaticSubscription
from consumerd.wire.v08.records import RecordCodec

OURS = "consumerd"
#: Our handler asks for every message with all its fields, as peers always make them.
OURS_MESSAGES = "consumerd, messages"
#: Our producer gets lists of messages.
OURS_MANY = "consumerd, send_many"
CONFLUENT = "confluent-kafka"
#: A function is called for each message when it is confirmed, as each message of ours has a `Delivery`.
CONFLUENT_DELIVERIES = "confluent-kafka, on_delivery"
#: Its producer gets lists of messages.
CONFLUENT_MANY = "confluent-kafka, produce_batch"
#: All producers take the messages from lists of this size, so that they cost the same. The outcome of one message of
#: each is awaited at the end; that all arrived is seen on the broker.
TOGETHER = 1000
#: Bytes of one partition in one answer: the default of all.
FETCH_BYTES = 1 << 20


def quiet() -> None:
    """Standard output is for results, and a broker that is busy with its start is none."""
    level = structlog.make_filtering_bound_logger(logging.ERROR)
    structlog.configure(wrapper_class=level, logger_factory=structlog.PrintLoggerFactory(sys.stderr))


def processor_seconds() -> float:
    """Of this process with all its threads, in user and kernel."""
    spent = resource.getrusage(resource.RUSAGE_SELF)
    return spent.ru_utime + spent.ru_stime


class Meter:
    """Counts values up to the known end, from the first ones on: those only start the clocks."""

    def __init__(self, messages: int) -> None:
        self._left = messages
        self._counted = self._bytes = 0
        self._wall = self._cpu = -1.0
        self.result: Result | None = None

    def take(self, count: int, size: int) -> bool:
        """So many more messages, with so many bytes; True once it was the last."""
        self._left -= count
        self._bytes += size
        if self._wall < 0:
            self._wall, self._cpu = time.perf_counter(), processor_seconds()
        else:
            self._counted += count
        if self._left > 0:
            return False
        if self._left < 0:
            raise SystemExit(f"{-self._left} messages more than were written")
        wall, cpu = time.perf_counter() - self._wall, processor_seconds() - self._cpu
        self.result = Result(self._counted, wall, cpu, self._bytes)
        return True


# -- ours


def cluster(job: Job) -> ClusterClient:
    """Our client of the cluster."""
    settings, clock = ClientSettings(), SystemClock()
    opener = ChannelOpener(functools.partial(connect, settings=settings.connection), settings, clock)
    host, _, port = job.bootstrap.rpartition(":")
    return ClusterClient([(host, int(port))], opener, settings, clock=clock, rng=random.Random())


class Counting:
    """A handler of batches that looks at the payloads and, if asked to, makes every message."""

    def __init__(self, meter: Meter, *, messages: bool) -> None:
        self._meter = meter
        self._messages = messages
        self.ended: Callable[[], object] = int

    async def handle(self, batch: Batch) -> None:
        """Count."""
        if self._messages:
            size = sum([len(message.payload) for message in batch.messages()])
        else:
            size = sum(map(len, batch.payloads))
        if self._meter.take(len(batch), size):
            self.ended()

    async def start(self, context: HandlerContext) -> None:
        """Nothing to do."""

    async def stop(self) -> None:
        """Nothing to do."""

    async def position(self, partition: TopicPartition) -> int | None:
        """Kept by nobody."""
        return None


async def consume_ours(job: Job, meter: Meter) -> None:
    """The consumer of fixed partitions, as the daemon runs it."""
    settings = ConsumerSettings(
        group="bench",
        consumer_id="bench_1",
        subscription=StaticSubscription({job.topic: 1}),
        fetch=FetchSettings(size=FETCH_BYTES),
        auto_commit=False,
    )
    handler = Counting(meter, messages=job.client == OURS_MESSAGES)
    places = [TopicPartition.numbered(job.topic, number) for number in range(job.partitions)]
    async with cluster(job) as client:
        consumer = FixedConsumer(
            settings,
            places,
            backend=ClusterBackend(client, offsets=OffsetSettings(storage="none")),
            handler=handler,
            clock=SystemClock(),
            rng=random.Random(),
        )
        handler.ended = consumer.request_stop
        await consumer.run()


async def produce_ours(job: Job, meter: Meter) -> None:
    """By `send` or `send_many`, awaited for room alone."""
    settings = V08ProducerSettings(
        acks=job.acks,  # type: ignore[arg-type]  # one of them
        codec=RecordCodec[job.codec.upper()],
        batch_bytes=job.batch_bytes,
        linger=job.linger,
    )
    async with (
        cluster(job) as client,
        V08Producer(client, settings, clock=SystemClock(), rng=random.Random()) as producer,
    ):
        await (await producer.send(job.topic, b""))
        meter.take(1, 0)
        samples = []
        if job.client == OURS_MANY:
            samples = [(await producer.send_many(job.topic, together))[0] for together in lists(job)]
        else:
            for together in lists(job):
                for value in together[:-1]:
                    await producer.send(job.topic, value)
                samples.append(await producer.send(job.topic, together[-1]))
        await producer.flush()
        for delivery in samples:
            await delivery
        meter.take(job.messages - 1, 0)


# -- theirs


async def consume_aiokafka(job: Job, meter: Meter) -> None:
    """By `getmany`, its way for batches."""
    aiokafka: Any = importlib.import_module("aiokafka")
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=job.bootstrap,
        group_id=None,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        max_partition_fetch_bytes=FETCH_BYTES,
    )
    await consumer.start()
    try:
        consumer.assign([aiokafka.TopicPartition(job.topic, number) for number in range(job.partitions)])
        ended = False
        while not ended:
            for records in (await consumer.getmany(timeout_ms=1000)).values():
                ended = meter.take(len(records), sum([len(record.value) for record in records]))
    finally:
        await consumer.stop()


async def produce_aiokafka(job: Job, meter: Meter) -> None:
    """By `send`, awaited for room alone."""
    aiokafka: Any = importlib.import_module("aiokafka")
    producer = aiokafka.AIOKafkaProducer(
        bootstrap_servers=job.bootstrap,
        acks="all" if job.acks == -1 else job.acks,
        compression_type=None if job.codec == "none" else job.codec,
        max_batch_size=job.batch_bytes,
        linger_ms=int(job.linger * 1000),
        enable_idempotence=job.acks == -1,
    )
    await producer.start()
    try:
        await (await producer.send(job.topic, b""))
        meter.take(1, 0)
        samples = []
        for together in lists(job):
            for value in together[:-1]:
                await producer.send(job.topic, value)
            samples.append(await producer.send(job.topic, together[-1]))
        await producer.flush()
        for delivery in samples:
            await delivery
        meter.take(job.messages - 1, 0)
    finally:
        await producer.stop()


def consume_confluent(job: Job, meter: Meter) -> None:
    """By `consume`, its way for batches."""
    confluent: Any = importlib.import_module("confluent_kafka")
    consumer = confluent.Consumer(
        {
            "bootstrap.servers": job.bootstrap,
            "group.id": "bench",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "max.partition.fetch.bytes": FETCH_BYTES,
            "check.crcs": True,
        }
    )
    places = [confluent.TopicPartition(job.topic, number, 0) for number in range(job.partitions)]
    consumer.assign(places)
    ended, most = False, 1
    while not ended:
        records = consumer.consume(num_messages=most, timeout=0.1)
        if records:
            ended = meter.take(len(records), sum([len(record.value()) for record in records]))
            most = 10_000
    consumer.close()


def produce_confluent(job: Job, meter: Meter) -> None:
    """By `produce` or `produce_batch`, and `poll` where there is no room."""
    confluent: Any = importlib.import_module("confluent_kafka")
    producer = confluent.Producer(
        {
            "bootstrap.servers": job.bootstrap,
            "acks": job.acks,
            "compression.type": job.codec,
            "batch.size": job.batch_bytes,
            "linger.ms": job.linger * 1000,
            "enable.idempotence": job.acks == -1,
        }
    )
    producer.produce(job.topic, b"")
    if producer.flush():
        raise SystemExit("the first message was not sent")
    meter.take(1, 0)
    if job.client == CONFLUENT_MANY:
        confirmed = _produce_lists(producer, job)
    elif job.client == CONFLUENT_DELIVERIES:
        confirmed = _produce_with_deliveries(producer, job)
    else:
        confirmed = job.messages - 1
        for together in lists(job):
            for value in together:
                while True:
                    try:
                        producer.produce(job.topic, value)
                        break
                    except BufferError:
                        producer.poll(0.1)
        if producer.flush():
            raise SystemExit("not all messages were sent")
    meter.take(confirmed, 0)


def _produce_with_deliveries(producer: Any, job: Job) -> int:
    """The number of messages whose function was called without an error."""
    confirmed = 0

    def delivered(error: object, _message: object) -> None:
        nonlocal confirmed
        confirmed += error is None

    for together in lists(job):
        for value in together:
            while True:
                try:
                    producer.produce(job.topic, value, on_delivery=delivered)
                    break
                except BufferError:
                    producer.poll(0.1)
        producer.poll(0)
    if producer.flush():
        raise SystemExit("not all messages were sent")
    return confirmed


def _produce_lists(producer: Any, job: Job) -> int:
    """The number of messages taken; those for which there is no room are given again."""
    taken = 0
    for together in lists(job):
        messages = [{"value": value} for value in together]
        while messages:
            taken += producer.produce_batch(job.topic, messages)
            messages = [{"value": message["value"]} for message in messages if "_error" in message]
            if messages:
                producer.poll(0.1)
    if producer.flush():
        raise SystemExit("not all messages were sent")
    return taken


def consume_perf_tool(job: Job, meter: Meter) -> None:
    """By kafka-consumer-perf-test.sh."""
    settings = {"max.partition.fetch.bytes": FETCH_BYTES, "enable.auto.commit": "false"}
    meter.result = kafka_perf.consume(job, settings)


def produce_perf_tool(job: Job, meter: Meter) -> None:
    """By kafka-producer-perf-test.sh."""
    settings = {
        "acks": job.acks,
        "compression.type": job.codec,
        "batch.size": job.batch_bytes,
        "linger.ms": round(job.linger * 1000),
        "enable.idempotence": str(job.acks == -1).lower(),
    }
    meter.result = kafka_perf.produce(job, settings)


#: By what they do and their names. Coroutine functions run on uvloop, all of them.
CLIENTS: dict[str, dict[str, Callable[[Job, Meter], Awaitable[None] | None]]] = {
    "consume": {
        OURS: consume_ours,
        OURS_MESSAGES: consume_ours,
        "aiokafka": consume_aiokafka,
        CONFLUENT: consume_confluent,
        kafka_perf.NAME: consume_perf_tool,
    },
    "produce": {
        OURS: produce_ours,
        OURS_MANY: produce_ours,
        "aiokafka": produce_aiokafka,
        CONFLUENT: produce_confluent,
        CONFLUENT_DELIVERIES: produce_confluent,
        CONFLUENT_MANY: produce_confluent,
        kafka_perf.NAME: produce_perf_tool,
    },
}


def lists(job: Job) -> Iterable[list[bytes]]:
    """What is written: the same for all."""
    written = itertools.islice(itertools.cycle(rows(job.size)), job.messages - 1)
    return iter(lambda: list(itertools.islice(written, TOGETHER)), [])


rows = functools.cache(payloads)


def module(client: str) -> str:
    """The module of a peer; its name may be followed by a comma and the way in which it is used."""
    return client.partition(",")[0].replace("-", "_")


def main(arguments: list[str] | None = None) -> None:
    """Do the job; the result is one line of JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kafka_clients")
    parser.add_argument("job", help="the fields of `Job` as a JSON object")
    parser.add_argument("--profile", help="write the profile of it (cProfile) to this file")
    options = parser.parse_args(arguments)
    job = Job(**json.loads(options.job))
    work = CLIENTS[job.does][job.client]
    quiet()
    rows(job.size)
    if job.client not in {OURS, OURS_MESSAGES, OURS_MANY, kafka_perf.NAME}:
        importlib.import_module(module(job.client))
    meter = Meter(job.messages)
    profile: Any = importlib.import_module("cProfile").Profile() if options.profile else None
    if profile is not None:
        profile.enable()
    doing = work(job, meter)
    if asyncio.iscoroutine(doing):
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(doing)
    if profile is not None:
        profile.disable()
        profile.dump_stats(options.profile)
    if meter.result is None:
        sys.exit(f"{job.client} ended early")
    print(json.dumps(asdict(meter.result)))


if __name__ == "__main__":
    main()
