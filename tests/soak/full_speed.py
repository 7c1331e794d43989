"""One daemon at full speed for minutes, without faults: is its memory flat, whatever the messages look like?

Strategy: no producer could keep up, and no disk could hold what is read in ten minutes. So the log consists of a few
segment files, one for each kind of messages, each linked into it thousands of times: a message of 0.7 does not contain
its offset. The handler looks at no value, so that the daemon's own path is the work. It counts what it is handed, and
that each batch begins where the one before it ended; at the end the count must be the number of messages that the log
has before the committed offset.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import psutil

from consumerd.base.clock import SystemClock
from consumerd.base.partition import TopicPartition
from consumerd.demo.ports import free_port
from consumerd.demo.processes import BrokerProcess, DaemonProcess
from consumerd.net.zk.session import Session
from consumerd.storage.log.dump import read_segment
from consumerd.wire import compress
from consumerd.wire.v07 import Codec, encode_message, encode_message_set
from tests.soak.sampling import Sampler
from tests.soak.verdict import measure, memory_limit, not_flat, too_large
from tests.support.zookeeper_ensemble import ZooKeeperEnsemble
from tests.torture.stage import GROUP, PATIENCE, ROOT

TOPIC: Final = "events"
PARTITIONS: Final = 4
BUDGET: Final = 32 << 20
_MIB: Final = 1 << 20
_SEGMENT: Final = 32 * _MIB
#: Bytes per second of which the log has enough for the whole run.
_FASTEST: Final = 1500 * _MIB
#: Seconds between samples. Not a divisor of ten: a broker closes files every ten seconds (`verdict`).
_INTERVAL: Final = 3.0
_NOISE: Final = random.Random(3).randbytes(600_000).hex().encode()


def _messages(size: int, total: int) -> list[bytes]:
    count = total // (size + 10)
    return [_NOISE[start : start + size] for start in (n * 97 % (len(_NOISE) - size) for n in range(count))]


#: Sets of messages of each kind, which are repeated until a segment is full.
BLOCKS: Final[dict[str, Callable[[], bytes]]] = {
    "100 B": lambda: encode_message_set(_messages(100, _MIB)),
    "gzip of 100 B": lambda: encode_message_set(_messages(100, _MIB), codec=Codec.GZIP),
    "2 B": lambda: encode_message_set(_messages(2, _MIB)),
    "snappy of 1 kB": lambda: encode_message_set(_messages(1000, _MIB), codec=Codec.SNAPPY),
    "100 kB": lambda: encode_message_set(_messages(100_000, _MIB)),
    "large gzip of 1 kB": lambda: encode_message_set(_messages(1000, 16 * _MIB), codec=Codec.GZIP),
    "large gzip of empty messages": lambda: encode_message(
        compress(Codec.GZIP, encode_message(b"") * 1_000_000), codec=Codec.GZIP
    ),
}
#: Kinds of which a segment has one set only: it expands to very much.
_ONCE: Final = frozenset({"large gzip of empty messages"})


class Kind:
    """A segment file, and how many messages it has before each offset in it."""

    def __init__(self, path: Path, block: bytes, size: int) -> None:
        path.write_bytes(block)
        entries = list(read_segment(path, 0))
        self._ends = [entry.next_offset for entry in entries]
        self._counts = list(accumulate(len(entry.payloads) for entry in entries))
        self._block = len(block)
        blocks = max(1, size // len(block))
        path.write_bytes(block * blocks)
        self.path = path
        self.size = len(block) * blocks
        self.messages = self._counts[-1] * blocks

    def before(self, offset: int) -> int:
        """The messages before an offset of the file. Raises ValueError where no message ends."""
        blocks, rest = divmod(offset, self._block)
        if not rest:
            return blocks * self._counts[-1]
        at = bisect_right(self._ends, rest) - 1
        if at < 0 or self._ends[at] != rest:
            raise ValueError(f"no message ends at {offset}")
        return blocks * self._counts[-1] + self._counts[at]


class EndlessLog:
    """The same segments for each partition, of all kinds in turn, `size` bytes or more of each."""

    def __init__(self, directory: Path, size: int, segment: int = _SEGMENT) -> None:
        kinds = directory / "kinds"
        kinds.mkdir(parents=True)
        self.kinds = [
            Kind(kinds / str(number), make(), 1 if name in _ONCE else segment)
            for number, (name, make) in enumerate(BLOCKS.items())
        ]
        self._cycle = [0, *accumulate(kind.size for kind in self.kinds)]
        self._messages = [0, *accumulate(kind.messages for kind in self.kinds)]
        self.cycles = -(-size // self._cycle[-1])
        self.end = self.cycles * self._cycle[-1]

    def link(self, directory: Path) -> None:
        """Make a broker's directory of it."""
        for number in range(PARTITIONS):
            folder = directory / f"{TOPIC}-{number}"
            folder.mkdir(parents=True)
            for cycle in range(self.cycles):
                for kind, start in zip(self.kinds, self._cycle, strict=False):
                    os.link(kind.path, folder / f"{cycle * self._cycle[-1] + start:020d}.kafka")
        (directory / ".kafka_cleanshutdown").touch()

    def before(self, offset: int) -> int:
        """The messages of a partition before an offset. Raises ValueError where no message ends."""
        cycles, rest = divmod(offset, self._cycle[-1])
        at = bisect_right(self._cycle, rest) - 1
        return cycles * self._messages[-1] + self._messages[at] + self.kinds[at].before(rest - self._cycle[at])


class CountingDaemon(DaemonProcess):
    """A daemon whose handler is a module of the tests."""

    async def _launch(self, command: Sequence[str], event: str, timeout: float, stdout: Path | None = None) -> None:
        await super()._launch(["env", f"PYTHONPATH={ROOT}", *command], event, timeout, stdout)


async def full_speed(seconds: float, directory: Path, progress: Callable[[str], None]) -> dict[str, Any]:
    """Run for `seconds`; the record of the run."""
    progress("the log is made")
    log = await asyncio.to_thread(EndlessLog, directory, int(seconds * _FASTEST / PARTITIONS))
    metrics, broker_metrics = free_port(), free_port()
    async with ZooKeeperEnsemble(directory / "zookeeper", 1) as ensemble:
        chroot = f"{ensemble.connect}/kafka"
        settings: dict[str, str | int] = {
            "health.listen": f"127.0.0.1:{broker_metrics}",
            "health.metrics": "true",
            "log.retention.hours": 1000,
        }
        broker = BrokerProcess(directory / "broker", chroot, partitions=PARTITIONS, settings=settings)
        await asyncio.to_thread(log.link, broker.log_directory)
        counts = directory / "counts.json"
        daemon = CountingDaemon(
            directory,
            {
                "group": {"id": GROUP, "topics": {TOPIC: 1}, "dialect": "0.7"},
                "zookeeper": {"connect": chroot},
                "fetch": {"initial": "earliest", "budget": BUDGET},
                "handler": {"name": "tests.soak.handler:CountingHandler", "options": {"path": str(counts)}},
                "health": {"listen": f"127.0.0.1:{metrics}", "metrics": True},
                "metrics": {"lag_interval": 5.0, "partition_labels": False},
            },
        )
        sampler = Sampler(lambda: [(daemon, metrics), (broker, broker_metrics)], GROUP, _INTERVAL)
        async with daemon:
            at_rest = psutil.Process(daemon.pid).memory_info().rss  # there is no broker yet
            async with broker:
                progress("full speed")
                started = sampler.started = time.monotonic()
                sampling = asyncio.create_task(sampler.run())
                try:
                    await asyncio.sleep(seconds)
                finally:
                    sampling.cancel()
                    await asyncio.gather(sampling, return_exceptions=True)
                took = time.monotonic() - started
                findings = []
                if (code := await daemon.stop(PATIENCE)) != 0:
                    findings.append(f"the daemon ended with {code} after SIGTERM: {daemon.child.tail(2)}")
                committed = await _committed(chroot)
    found = json.loads(counts.read_text("utf-8"))
    findings += compare(log, found, committed)
    lives = list(sampler.lives.values())
    grown = [measure(life) for life in lives]
    limit = memory_limit(BUDGET, at_rest)
    findings += [text for each in grown for text in not_flat(each)]
    findings += too_large([life for life in lives if life.name == daemon.name], limit)
    handled = sum(each["messages"] for each in found["partitions"].values())
    return {
        "title": f"{seconds / 60:.0f} minutes at full speed",
        "seconds": round(took, 1),
        "handled": handled,
        "per_second": round(handled / took),
        "gigabytes": round(sum(committed.values()) / 1e9, 1),
        "partitions": {name: each["messages"] for name, each in found["partitions"].items()},
        "processor_seconds": {life.name: life.processor[-1] for life in lives},
        "member_at_rest": round(at_rest / _MIB, 1),
        "largest_member": max(life.peak for life in lives if life.name == daemon.name),
        "memory_limit": round(limit, 1),
        "load": " ".join(f"{load:.1f}" for load in os.getloadavg()),
        "growth": [each.as_json() for each in grown],
        "violations": findings,
        "stays": daemon.name,
        "rated": "handled",
        "faults_at": [],
        "lives": [life.as_json() for life in lives],
    }


def compare(log: EndlessLog, found: dict[str, Any], committed: dict[str, int]) -> list[str]:
    """What was delivered and committed beside what the log has, in words."""
    findings = [f"{number} batches did not begin where the one before ended" for number in [found["gaps"]] if number]
    if len(found["partitions"]) != PARTITIONS:
        findings.append(f"of {PARTITIONS} partitions {len(found['partitions'])} were handled")
    for name, each in found["partitions"].items():
        offset = each["next_offset"]
        try:
            expected = log.before(offset)
        except ValueError:
            findings.append(f"{name} was handled to {offset}, where no message ends")
            continue
        if expected != each["messages"]:
            findings.append(f"{each['messages']} messages of {name} were handled before {offset}, which has {expected}")
        if committed.get(name) != offset:
            findings.append(f"of {name} {committed.get(name)} is committed, {offset} was handled")
        if offset == log.end:
            findings.append(f"all of {name} was read before the time was over: the log is too short")
    return findings


async def _committed(chroot: str) -> dict[str, int]:
    found = {}
    async with Session(chroot, clock=SystemClock(), rng=random.Random()) as session:
        for number in range(PARTITIONS):
            name = TopicPartition(TOPIC, 0, number).name
            data, _ = await session.get(f"/consumers/{GROUP}/offsets/{TOPIC}/{name}")
            found[name] = int(data or b"0")
    return found
