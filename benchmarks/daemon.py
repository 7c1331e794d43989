"""The whole daemon: `consumerd run` against one `consumerd broker`, from claim to commit, beside a consumer on the JVM.

ZooKeeper, the broker and the consumers are processes of their own, as in service. The logs are written before. A run
lasts from the daemon's first fetch (its log says when) to the moment in which ZooKeeper took the offset that ends the
last partition, so it includes decoding, the handler and committing. Figures depend on the machine, which three
processes share; `M msg/cpu-s` is what the consumer does with a second of processor time, without its start.

The daemon runs with the handler `null`, which does not read payloads, and with one that takes each as `bytes`. The
peer is Jafka's high-level consumer with four streams, which only counts messages. Its run begins with its first one.

    python -m benchmarks daemon [--messages 2000000] [--size 100] [--rounds 3] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import sys
import tempfile
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

from benchmarks import surroundings
from benchmarks.jvm import JafkaCounter, jafka_is_there
from benchmarks.race import OURS, Measurement, compared, quiet, show
from consumerd.base.clock import SystemClock
from consumerd.base.partition import TopicPartition
from consumerd.demo.processes import BrokerProcess, DaemonProcess
from consumerd.demo.zookeeper import ZooKeeperServer
from consumerd.net.zk.errors import NoNode
from consumerd.net.zk.session import Session
from consumerd.wire.registry.paths import offset_path
from consumerd.wire.v07 import Codec, encode_message_set

NAME = "daemon"
PARTITIONS = 4
#: Seconds for one run, on a busy machine.
PATIENCE = 300.0
#: Seconds between commits.
COMMIT = 0.05
#: Handlers by the name that a configuration has for them.
HANDLERS = {"null": "null", "benchmarks.taking:TakeValues": "every value"}
JAFKA = "Jafka's consumer"
BLOCK = 2000
#: Messages of one wrapper.
WRAPPED = 200
#: Of the issue: messages of 100 B, in millions per second.
PROMISE = 1.0
CODECS = {"plain": Codec.NONE, "gzip": Codec.GZIP, "snappy": Codec.SNAPPY}


@dataclass
class Run:
    """One daemon's way through a topic."""

    seconds: float
    cpu_seconds: float
    peak_mb: float


def write_logs(folder: Path, messages: int, size: int, topics: list[str]) -> dict[TopicPartition, int]:
    """Segment files with `messages` messages in each partition of each topic; where each log ends."""
    rng = random.Random(1)
    words = [rng.randbytes(5).hex().encode() for _ in range(200)]
    ends = {}
    for topic in topics:
        codec = CODECS[topic]
        payloads = [b" ".join(rng.choices(words, k=size // 11 + 1))[:size] for _ in range(BLOCK)]
        count = BLOCK if codec is Codec.NONE else WRAPPED
        block = b"".join(
            encode_message_set(payloads[first : first + count], codec=codec) for first in range(0, BLOCK, count)
        )
        for number in range(PARTITIONS):
            log = folder / f"{topic}-{number}"
            log.mkdir(parents=True)
            with (log / f"{0:020d}.kafka").open("wb") as segment:
                for _ in range(messages // BLOCK):
                    segment.write(block)
            ends[TopicPartition(topic, 0, number)] = messages // BLOCK * len(block)
    (folder / ".kafka_cleanshutdown").touch()
    return ends


async def committed(zk: Session, group: str, ends: dict[TopicPartition, int]) -> float:
    """Wait until the group's offsets are those of `ends`; returns `time.time()` of the last commit.

    Raises TimeoutError.
    """
    finished: dict[TopicPartition, float] = {}
    async with asyncio.timeout(PATIENCE):
        while len(finished) < len(ends):
            await asyncio.sleep(0.1)
            for partition in ends.keys() - finished.keys():
                try:
                    data, stat = await zk.get(offset_path(group, partition))
                except NoNode:
                    continue
                if data == b"%d" % ends[partition]:
                    finished[partition] = stat.modified_ms / 1000
    return max(finished.values())


def peak_mb(pid: int) -> float:
    """MiB that a process had resident at most."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if "VmHWM" in line).split()[1]) / 1024


async def consume(
    folder: Path, connect: str, zk: Session, ends: dict[TopicPartition, int], name: str, handler: str
) -> Run:
    """Run a daemon in a group of its own until it has committed the end of every partition."""
    (topic,) = {partition.topic for partition in ends}
    config: dict[str, dict[str, Any]] = {
        "group": {"id": name, "topics": {topic: 1}},
        "zookeeper": {"connect": connect},
        "commit": {"interval": COMMIT},
        "handler": {"name": handler},
    }
    async with DaemonProcess(folder, config, name=name) as daemon:
        process = psutil.Process(daemon.pid)
        before = process.cpu_times()
        finished = await committed(zk, name, ends)
        after = process.cpu_times()
        peak = peak_mb(daemon.pid)
        began = [event["timestamp"] for event in daemon.events() if event["event"] == "partition_started"]
    start = min(datetime.fromisoformat(text).timestamp() for text in began)
    used = after.user + after.system - before.user - before.system
    return Run(finished - start, used, peak)


async def consume_by_jafka(
    folder: Path, connect: str, zk: Session, ends: dict[TopicPartition, int], name: str, count: int
) -> Run:
    """The same by a JVM that is started for it; its processor time counts from its joining on."""
    (topic,) = {partition.topic for partition in ends}
    async with JafkaCounter(folder, connect, name, topic, PARTITIONS, COMMIT) as jafka:
        process = psutil.Process(jafka.child.pid)
        before = process.cpu_times()
        finished = await committed(zk, name, ends)
        after = process.cpu_times()
        peak = peak_mb(jafka.child.pid)
        start = await jafka.first()
        if (counted := await jafka.leave()) != count:
            raise SystemExit(f"Jafka's consumer counted {counted} messages of {count}")
    return Run(finished - start, after.user + after.system - before.user - before.system, peak)


async def measure(messages: int, size: int, rounds: int, topics: list[str]) -> list[Measurement]:
    """All subjects in turns, topic by topic."""
    results: list[Measurement] = []
    count = messages * PARTITIONS
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        all_ends = write_logs(folder / "data", messages, size, topics)
        async with (
            ZooKeeperServer(folder / "zookeeper") as server,
            BrokerProcess(folder, f"{server.connect}/kafka", partitions=PARTITIONS),
            Session(f"{server.connect}/kafka", clock=SystemClock(), rng=random.Random(1)) as zk,
        ):
            connect = f"{server.connect}/kafka"
            for topic in topics:
                ends = {partition: end for partition, end in all_ends.items() if partition.topic == topic}
                runs: dict[str, list[Run]] = {}
                for number in range(rounds):
                    for handler, label in HANDLERS.items():
                        group = f"{topic}-{label.replace(' ', '-')}-{number}"
                        run = await consume(folder, connect, zk, ends, group, handler)
                        runs.setdefault(label, []).append(run)
                    if jafka_is_there():
                        run = await consume_by_jafka(folder, connect, zk, ends, f"{topic}-jafka-{number}", count)
                        runs.setdefault(JAFKA, []).append(run)
                results += figures(f"{topic} {size} B", runs, count / 1e6)
    return results


def figures(topic: str, runs: dict[str, list[Run]], millions: float) -> list[Measurement]:
    """All rounds of one topic."""
    clock = {name: [millions / run.seconds for run in found] for name, found in runs.items()}
    processor = {name: [millions / run.cpu_seconds for run in found] for name, found in runs.items()}
    others = [JAFKA] if JAFKA in runs else []
    found: list[Measurement] = []
    for name in HANDLERS.values():
        case = f"{topic}, {name}, {surroundings.codec()}"
        found += compared(NAME, case, "M msg/s", clock, ours=name, others=others)
        found += compared(NAME, case, "M msg/cpu-s", processor, ours=name, others=others)
        peak = statistics.median(run.peak_mb for run in runs[name])
        found.append(Measurement(NAME, case, "peak memory", peak, "MiB", rounds=len(runs[name])))
    return found


def verdict(results: list[Measurement], size: int) -> dict[str, bool]:
    """The promise as a sentence, and whether it is kept."""
    if size != 100:
        return {}
    return {
        f"{row.case}: {PROMISE} M msg/s or more, claim to commit: {row.value:.2f}": row.value >= PROMISE
        for row in results
        if row.subject == OURS and row.unit == "M msg/s" and row.case.startswith("plain 100 B, null")
    }


def main(arguments: list[str] | None = None) -> int:
    """Print the figures; 1 if the promise is broken."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks daemon", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--messages", type=int, default=2_000_000, help="per partition, of which there are four")
    parser.add_argument("--size", type=int, default=100, help="bytes of payload")
    parser.add_argument("--rounds", type=int, default=3, help="the median of so many counts (default: 3)")
    parser.add_argument("--codecs", type=lambda text: text.split(","), default=list(CODECS), help="default: all")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    options = parser.parse_args(arguments)
    messages = max(1, options.messages // BLOCK) * BLOCK
    quiet()
    # For the handler of this folder: daemons do not look into the working directory.
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])
    results = asyncio.run(measure(messages, options.size, options.rounds, options.codecs))
    return show(results, verdict(results, options.size), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
