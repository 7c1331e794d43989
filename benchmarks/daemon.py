"""The whole daemon: `consumerd run` with the `null` handler against one `consumerd broker`, from claim to commit.

ZooKeeper, the broker and the daemon are processes of their own, as in service. The logs are written before. A run lasts
from the daemon's first fetch (its log says when) to the moment in which ZooKeeper took the offset that ends the last
partition, so it includes decoding, handing over and committing. Absolute figures depend on the machine, and here three
processes share it; `M msg/cpu-s` is what the daemon does with a second of processor time.

    python -m benchmarks.daemon [--messages 2000000] [--size 100] [--rounds 2] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from benchmarks.race import Measurement
from consumerd.clock import SystemClock
from consumerd.embedded import ZooKeeperServer
from consumerd.embedded.processes import BrokerProcess, DaemonProcess
from consumerd.partition import TopicPartition
from consumerd.registry import offset_path
from consumerd.wire.v07 import Codec, encode_message_set
from consumerd.zk import NoNode, Session

if TYPE_CHECKING:
    from collections.abc import Iterator

PARTITIONS = 4
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


def write_logs(folder: Path, messages: int, size: int) -> dict[TopicPartition, int]:
    """Segment files with `messages` messages in each partition of each topic; where each log ends."""
    rng = random.Random(1)
    words = [rng.randbytes(5).hex().encode() for _ in range(200)]
    ends = {}
    for topic, codec in CODECS.items():
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


async def consume(folder: Path, connect: str, zk: Session, ends: dict[TopicPartition, int], name: str) -> Run:
    """Run a daemon in a group of its own until it has committed the end of every partition."""
    (topic,) = {partition.topic for partition in ends}
    config: dict[str, dict[str, Any]] = {
        "group": {"id": name, "topics": {topic: 1}},
        "zookeeper": {"connect": connect},
        "commit": {"interval": 0.05},
        "handler": {"name": "null"},
    }
    async with DaemonProcess(folder, config, name=name) as daemon:
        process = psutil.Process(daemon.pid)
        before = process.cpu_times()
        finished: dict[TopicPartition, float] = {}
        while len(finished) < len(ends):
            await asyncio.sleep(0.1)
            for partition in ends.keys() - finished.keys():
                try:
                    data, stat = await zk.get(offset_path(name, partition))
                except NoNode:
                    continue
                if data == b"%d" % ends[partition]:
                    finished[partition] = stat.modified_ms / 1000
        after = process.cpu_times()
        peak = next(line for line in Path(f"/proc/{daemon.pid}/status").read_text().splitlines() if "VmHWM" in line)
        began = [event["timestamp"] for event in daemon.events() if event["event"] == "partition_started"]
    start = min(datetime.fromisoformat(text).timestamp() for text in began)
    used = after.user + after.system - before.user - before.system
    return Run(max(finished.values()) - start, used, int(peak.split()[1]) / 1024)


async def measure(messages: int, size: int, rounds: int) -> dict[str, list[Run]]:
    """`rounds` runs for each codec, in turns."""
    runs: dict[str, list[Run]] = {topic: [] for topic in CODECS}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ends = write_logs(folder / "data", messages, size)
        async with (
            ZooKeeperServer(folder / "zookeeper") as server,
            BrokerProcess(folder, f"{server.connect}/kafka", partitions=PARTITIONS),
            Session(f"{server.connect}/kafka", clock=SystemClock(), rng=random.Random(1)) as zk,
        ):
            for number in range(rounds):
                for topic, found in runs.items():
                    wanted = {partition: end for partition, end in ends.items() if partition.topic == topic}
                    found.append(await consume(folder, f"{server.connect}/kafka", zk, wanted, f"{topic}-{number}"))
    return runs


def results(runs: dict[str, list[Run]], messages: int, size: int) -> Iterator[Measurement]:
    """The best run of each codec as figures."""
    total = messages * PARTITIONS / 1e6
    for topic, found in runs.items():
        case = f"{topic} {size} B"
        yield Measurement("daemon", case, "wall", total / min(run.seconds for run in found), "M msg/s")
        yield Measurement("daemon", case, "processor", total / min(run.cpu_seconds for run in found), "M msg/cpu-s")
        yield Measurement("daemon", case, "peak memory", max(run.peak_mb for run in found), "MiB")


def main(arguments: list[str] | None = None) -> int:
    """Print the figures; 1 if the promise is broken."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks daemon", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--messages", type=int, default=2_000_000, help="per partition, of which there are four")
    parser.add_argument("--size", type=int, default=100, help="bytes of payload")
    parser.add_argument("--rounds", type=int, default=2, help="the best of so many counts")
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    options = parser.parse_args(arguments)
    messages = max(1, options.messages // BLOCK) * BLOCK
    found = list(results(asyncio.run(measure(messages, options.size, options.rounds)), messages, options.size))
    kept = options.size != 100 or found[0].value >= PROMISE
    if options.json:
        for result in found:
            print(json.dumps(result.as_json()))
    else:
        for result in found:
            print(f"{result.case:<14}{result.subject:<14}{result.value:>8.2f} {result.unit}")
        print(f"{'kept' if kept else 'BROKEN'}: plain messages of 100 B at {PROMISE} M msg/s or more, claim to commit")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
