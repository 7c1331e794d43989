"""Consuming from and producing to a real broker: ours beside aiokafka, confluent-kafka and Kafka's perf tools.

One broker of 3.9.1 (KRaft) on loopback; a topic with a few partitions that is filled beforehand, or a new one for
each producer. Each client works in a process of its own (`benchmarks.kafka_clients`), all take turns, and the median of
the rounds counts. `M msg/s` is by the clock on the wall, which a busy machine distorts; `M msg/cpu-s` is by processor
time, user and kernel with all threads; that of Kafka's tools includes the start of their JVM (`benchmarks.kafka_perf`).
Ratios above 1 are in our favour.

    python -m benchmarks kafka [--rounds 3] [--quick] [--codecs none,gzip,snappy,lz4] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path

from benchmarks import kafka_perf, surroundings
from benchmarks.decode import payloads
from benchmarks.kafka_clients import (
    CLIENTS,
    CONFLUENT,
    CONFLUENT_DELIVERIES,
    CONFLUENT_MANY,
    OURS,
    OURS_MANY,
    OURS_MESSAGES,
    cluster,
    module,
    quiet,
)
from benchmarks.kafka_job import Job, Result
from benchmarks.race import Measurement, compared, show
from consumerd.base.clock import SystemClock
from consumerd.base.errors import BrokerError
from consumerd.base.java import MissingRuntimeError, find_java
from consumerd.net.client.cluster import ClusterClient
from consumerd.producer.v08.producer import V08Producer
from consumerd.wire.v07 import LATEST
from consumerd.wire.v08.apis import DELETE_TOPICS, LIST_OFFSETS, PRODUCE
from consumerd.wire.v08.message_types import (
    DeleteTopicsRequest,
    ListOffsetsRequest,
    ListOffsetsRequestPartition,
    ProduceRequest,
    ProduceRequestPartitionData,
)
from consumerd.wire.v08.records import RecordCodec, encode_record_batch
from tests.support.kafka import RELEASES, KafkaBroker

NAME = "kafka"
RELEASE = "3.9.1"
PARTITIONS = 4
#: Bytes of values per batch, in the log that is read and as the producers are configured.
BATCH_BYTES = 64 << 10
#: Size of values: messages that are read, and written.
SIZES = {100: (1_500_000, 400_000), 1000: (300_000, 100_000)}
QUICK = 8
#: Seconds for one client's part of a round.
PATIENCE = 180
#: What the project promises in pure Python: processor time of the peer by ours.
PROMISES = {"aiokafka": 1.0}


class Bench:
    """The broker and what is on it."""

    def __init__(self, broker: KafkaBroker, client: ClusterClient, names: list[str]) -> None:
        self._broker = broker
        self._client = client
        self._names = names
        self._topics = 0

    async def new_topic(self) -> str:
        """A topic whose partitions have leaders."""
        self._topics += 1
        topic = f"bench-{self._topics}"

        async def led() -> None:
            await self._client.refresh([topic], create=True)
            for number in range(PARTITIONS):
                await self._client.leader(topic, number)

        await self._client.retrying("create a topic", led)
        return topic

    async def warm_up(self) -> None:
        """The first producer id of a broker's life takes it a while: nobody's round is to pay for that."""
        topic = await self.new_topic()
        async with V08Producer(self._client, clock=SystemClock(), rng=random.Random()) as producer:
            await (await producer.send(topic, b""))
        await self.drop(topic)

    async def drop(self, topic: str) -> None:
        """Give its bytes back."""
        channel = await self._client.any_channel()
        version = channel.versions.pick(DELETE_TOPICS, at_most=5)
        body: DeleteTopicsRequest = {"topic_names": [topic], "timeout_ms": 10_000}
        await channel.call(DELETE_TOPICS, body, version=version)

    async def fill(self, topic: str, job: Job) -> None:
        """Write what is read later, in batches of `job.batch_bytes`, round the partitions."""
        channel = await self._client.node_channel(self._broker.broker_id)
        version = channel.versions.pick(PRODUCE, at_most=9)
        rows = payloads(job.size)
        per_batch = max(1, job.batch_bytes // job.size)
        written, now = 0, int(time.time() * 1000)  # brokers delete what is old by this
        while written < job.messages:
            parts: list[ProduceRequestPartitionData] = []
            for number in range(PARTITIONS):
                values = [rows[(written + n) % len(rows)] for n in range(min(per_batch, job.messages - written))]
                if not values:
                    break
                written += len(values)
                stamps = [now + n // 20 for n in range(len(values))]
                data = encode_record_batch(values, codec=RecordCodec[job.codec.upper()], timestamps=stamps)
                parts.append({"index": number, "records": data})
                now += 5
            body: ProduceRequest = {
                "transactional_id": None,
                "acks": 1,
                "timeout_ms": 30_000,
                "topic_data": [{"name": topic, "partition_data": parts}],
            }
            answer = await channel.call(PRODUCE, body, version=version)
            codes = {part["error_code"] for each in answer["responses"] for part in each["partition_responses"]}
            if codes != {0}:
                raise BrokerError(f"the broker refuses what is written, with errors {sorted(codes)}")

    async def written(self, topic: str) -> int:
        """Messages in all partitions."""
        channel = await self._client.node_channel(self._broker.broker_id)
        parts: list[ListOffsetsRequestPartition] = [
            {"partition_index": number, "timestamp": LATEST, "current_leader_epoch": -1} for number in range(PARTITIONS)
        ]
        body: ListOffsetsRequest = {"isolation_level": 0, "topics": [{"name": topic, "partitions": parts}]}
        version = channel.versions.pick(LIST_OFFSETS, at_most=5)
        answer = await channel.call(LIST_OFFSETS, body, version=version)
        return sum(part["offset"] for each in answer["topics"] for part in each["partitions"])

    async def consuming(self, job: Job, rounds: int) -> list[Measurement]:
        """All consumers, in turns, of one topic."""
        topic = await self.new_topic()
        await self.fill(topic, job)
        job = replace(job, topic=topic)
        found: list[dict[str, Result]] = []
        for _ in range(rounds):
            found.append({name: await run(replace(job, client=name)) for name in self._clients("consume")})
            read = [result.bytes for result in found[-1].values()]
            if max(read) - min(read) > kafka_perf.ROUNDING:
                raise SystemExit("the consumers did not all read the same bytes")
        await self.drop(topic)
        return rows(f"consume {label(job)}", found)

    async def producing(self, job: Job, rounds: int) -> list[Measurement]:
        """All producers, in turns, each to a topic of its own."""
        found: list[dict[str, Result]] = []
        for _ in range(rounds):
            found.append({})
            for name in self._clients("produce"):
                topic = await self.new_topic()
                found[-1][name] = await run(replace(job, client=name, topic=topic))
                if (written := await self.written(topic)) != job.messages:
                    raise SystemExit(f"{name} confirmed {job.messages} messages, and {written} are there")
                await self.drop(topic)
        return rows(f"produce {label(job)}, acks {job.acks}", found)

    def _clients(self, does: str) -> list[str]:
        return [name for name in CLIENTS[does] if name in self._names]


def label(job: Job) -> str:
    return f"{job.size} B{'' if job.codec == 'none' else f', {job.codec}'}"


async def run(job: Job) -> Result:
    """Do a job in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.kafka_clients", json.dumps(asdict(job))]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    try:
        async with asyncio.timeout(PATIENCE):
            output, _ = await process.communicate()
    except TimeoutError:
        raise SystemExit(f"{job.client} did not {job.does} within {PATIENCE} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise SystemExit(f"{job.client} failed to {job.does}: its complaint is above")
    return Result(**json.loads(output))


def rows(case: str, rounds: list[dict[str, Result]]) -> list[Measurement]:
    """Ours, in each of its ways, beside the other clients."""
    # The first messages, which start the clocks, are more or fewer.
    wall = {name: [each[name].messages / each[name].wall / 1e6 for each in rounds] for name in rounds[0]}
    cpu = {name: [each[name].messages / each[name].cpu / 1e6 for each in rounds] for name in rounds[0]}
    ways = {OURS: "", OURS_MESSAGES: ", messages", OURS_MANY: ", send_many"}
    others = [name for name in rounds[0] if name not in ways]
    found: list[Measurement] = []
    for ours, way in ways.items():
        if ours in rounds[0]:
            named = f"{case}{way}, {surroundings.codec()}"
            found += compared(NAME, named, "M msg/s", wall, ours=ours, others=others)
            found += compared(NAME, named, "M msg/cpu-s", cpu, ours=ours, others=others)
    return found


def verdict(results: Iterable[Measurement]) -> dict[str, bool]:
    """Each promise that could be looked at, as a sentence, and whether it is kept."""
    found = {}
    for row in results:
        promised = PROMISES.get(row.subject)
        if promised is not None and row.ratio is not None and row.unit == "M msg/cpu-s":
            sentence = f"{row.case}: at least {promised}x as fast as {row.subject} by CPU: {row.ratio:.2f}x"
            found[sentence] = row.ratio >= promised
    return found


async def measured(options: argparse.Namespace, names: list[str]) -> AsyncIterator[list[Measurement]]:
    """Case by case."""
    part = QUICK if options.quick else 1
    with tempfile.TemporaryDirectory(prefix="consumerd-bench-") as folder:
        java = find_java()
        config = {"log.segment.bytes": 256 << 20, "file.delete.delay.ms": 0}
        broker = KafkaBroker(
            Path(folder), RELEASES[RELEASE], None, java=java, partitions=PARTITIONS, config=config, jvm=["-Xmx512m"]
        )
        await broker.start()
        try:
            about = Job("", "", broker.address, "", PARTITIONS, 0, 0, batch_bytes=BATCH_BYTES)
            async with cluster(about) as client:
                bench = Bench(broker, client, names)
                await bench.warm_up()
                for size in options.sizes:
                    read, write = (count // part for count in SIZES[size])
                    for codec in options.codecs:
                        if "consume" in options.what:
                            job = replace(about, does="consume", size=size, codec=codec, messages=read)
                            yield await bench.consuming(job, options.rounds)
                        if "produce" in options.what:
                            for acks in (1, -1) if codec == "none" else (-1,):
                                job = replace(about, does="produce", size=size, codec=codec, acks=acks, messages=write)
                                yield await bench.producing(job, options.rounds)
        finally:
            broker.kill()


async def measure(options: argparse.Namespace, names: list[str]) -> list[Measurement]:
    """All cases; a line to the error stream after each."""
    results: list[Measurement] = []
    async for found in measured(options, names):
        results += found
        if options.json or not sys.stdout.isatty():
            print(f"{found[0].case} done", file=sys.stderr, flush=True)
    return results


def main(arguments: list[str] | None = None) -> int:
    """Print a table or JSON. Exit code 1 where a promise is broken."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks kafka", description=(__doc__ or "").splitlines()[0])
    listed = lambda text: text.split(",")  # noqa: E731
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--rounds", type=int, default=3, help="the median of so many counts (default: 3)")
    parser.add_argument("--quick", action="store_true", help=f"1/{QUICK} of the messages")
    parser.add_argument("--what", type=listed, default=["consume", "produce"], help="consume, produce or both")
    parser.add_argument(
        "--sizes", type=lambda text: [int(size) for size in text.split(",")], default=list(SIZES), help="100 and 1000"
    )
    parser.add_argument("--codecs", type=listed, default=["none", "gzip", "snappy", "lz4"], help="default: these four")
    options = parser.parse_args(arguments)
    quiet()
    names = [OURS, OURS_MESSAGES, OURS_MANY]
    for name in ("aiokafka", CONFLUENT, CONFLUENT_DELIVERIES, CONFLUENT_MANY):
        if find_spec(module(name)) is None:
            print(f"{name} is left out: it is not installed", file=sys.stderr)
        else:
            names.append(name)
    try:
        kafka_perf.class_path()
        names.append(kafka_perf.NAME)
        results = asyncio.run(measure(options, names))
    except MissingRuntimeError as error:
        print(f"left out: {error}", file=sys.stderr)
        return 0
    promises = verdict(results)
    return show(results, promises, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
