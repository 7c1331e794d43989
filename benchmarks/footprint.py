"""What partitions and brokers cost one daemon: memory, file descriptors, processor time, while idle and while busy.

ZooKeeper is a process of its own and so is `consumerd run` with the handler `null`; all brokers run in this process, so
that a hundred of them fit on one machine. `--partitions` is the number on all brokers together, and must be a multiple
of `--brokers`. Before the daemon starts, each partition has one message.

    start  from the start of the process until it has begun to read every partition
    idle   no messages come in
    busy   `--rate` messages a second to each partition, each in a request of its own and so in a batch of its own

    python -m benchmarks footprint --partitions 4 --brokers 1
    python -m benchmarks footprint --partitions 10000 --brokers 10 --rate 0.1 --session-timeout 30

Memory is resident memory (VmRSS), and its peak VmHWM. `docs/scale.md` has the last figures.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
import structlog

from benchmarks.group_stage.feed import Feed
from benchmarks.race import Measurement, table
from consumerd.base.clock import SystemClock
from consumerd.demo.processes import DaemonProcess, parse_event
from consumerd.demo.zookeeper import ZooKeeperServer
from consumerd.net.zk.session import Session
from consumerd.storage.broker.config import BrokerConfig
from consumerd.storage.broker.server import Broker

TOPIC = "events"
#: Of ZooKeeper, as in its own example: it grants session timeouts of 2 to 20 ticks.
TICK_MS = 2000
#: Seconds: limit for the start, and the pause after it in which caches are written and first offsets committed.
PATIENCE = 300.0
REST = 15.0
#: Consumers see what is flushed: soon, and without a sync for every message.
SETTINGS = {"log.default.flush.interval.ms": "500", "log.default.flush.scheduler.interval.ms": "250"}


@contextlib.asynccontextmanager
async def brokers(directory: Path, zookeeper: str, count: int, partitions: int) -> AsyncIterator[list[int]]:
    """Run `count` brokers with `partitions` each on this loop; their ports."""
    async with contextlib.AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        running = []
        for number in range(count):
            clock, rng = SystemClock(), random.Random(number)
            zk = await stack.enter_async_context(Session(zookeeper, clock=clock, rng=rng, session_timeout=30))
            config = BrokerConfig.from_properties(
                SETTINGS, log_dir=directory / f"{number}", broker_id=number, partitions=partitions, port=0,
                zookeeper=zookeeper,
            )  # fmt: skip
            broker = Broker(config, clock=clock, rng=rng, zookeeper=zk)
            group.create_task(broker.run())
            await broker.ready.wait()
            running.append(broker)
        try:
            yield [broker.port for broker in running]
        finally:
            for broker in running:
                broker.request_stop()


class Watch:
    """What the process `daemon` uses."""

    def __init__(self, daemon: DaemonProcess, case: str) -> None:
        self._process = psutil.Process(daemon.pid)
        self._log = daemon.log_path
        self._case = case
        self.found: list[Measurement] = []

    def add(self, subject: str, value: float, unit: str) -> None:
        """One figure."""
        self.found.append(Measurement("footprint", self._case, subject, round(value, 2), unit))

    def seconds(self) -> float:
        """Processor time since its start."""
        times = self._process.cpu_times()
        return times.user + times.system

    def memory(self, field: str) -> float:
        """MiB by the kernel's field."""
        lines = Path(f"/proc/{self._process.pid}/status").read_text("ascii").splitlines()
        return int(next(line for line in lines if line.startswith(f"{field}:")).split()[1]) / 1024

    def begun(self) -> int:
        """Partitions that it has begun to read."""
        events = [parse_event(line) or {} for line in self._log.read_text("utf-8").splitlines()]
        return sum(event.get("partitions", 1) for event in events if event.get("event") == "partition_started")

    def add_descriptors(self) -> None:
        """Open files, and which of them are connections."""
        self.add("file descriptors", self._process.num_fds(), "")
        connected = [it for it in self._process.net_connections("tcp") if it.status == psutil.CONN_ESTABLISHED]
        self.add("connections", len(connected), "")
        self.add("threads", self._process.num_threads(), "")

    async def period(self, name: str, work: Callable[[], Awaitable[object]]) -> None:
        """Processor time and memory while `work` lasts."""
        before, began = self.seconds(), time.monotonic()
        await work()
        used, lasted = self.seconds() - before, time.monotonic() - began
        self.add(f"{name}: processor", used / lasted * 100, "% of a core")
        self.add(f"{name}: memory", self.memory("VmRSS"), "MiB")


async def measure(options: argparse.Namespace, directory: Path) -> list[Measurement]:
    """All figures of one daemon."""
    each = options.partitions // options.brokers
    config: dict[str, dict[str, Any]] = {
        "group": {"id": "footprint", "topics": {TOPIC: 1}},
        "handler": {"name": "null"},
    }
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(ZooKeeperServer(directory / "zookeeper", tick_ms=TICK_MS))
        ports = await stack.enter_async_context(brokers(directory, server.connect, options.brokers, each))
        feeds = [Feed(port, TOPIC, each, options.rate) for port in ports]
        for feed in feeds:
            await feed.backlog(1)
        config["zookeeper"] = {"connect": server.connect, "session_timeout": options.session_timeout}
        daemon = await stack.enter_async_context(DaemonProcess(directory, config, name="daemon"))
        watch = Watch(daemon, f"{options.partitions} partitions, {options.brokers} brokers")
        deadline = time.monotonic() + PATIENCE
        while watch.begun() < options.partitions:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the daemon reads {watch.begun()} of {options.partitions} partitions")
            await asyncio.sleep(0.2)
        watch.add("start: processor", watch.seconds(), "s")
        await asyncio.sleep(REST)
        watch.add_descriptors()
        await watch.period("idle", lambda: asyncio.sleep(options.seconds))

        async def feed_all() -> None:
            async with contextlib.AsyncExitStack() as feeding:
                for feed in feeds:
                    await feeding.enter_async_context(feed.running())
                await asyncio.sleep(options.seconds)

        before = sum(len(feed.sent) for feed in feeds)
        await watch.period("busy", feed_all)
        watch.add("busy: messages", (sum(len(feed.sent) for feed in feeds) - before) / options.seconds, "/s")
        watch.add("memory, peak", watch.memory("VmHWM"), "MiB")
    return watch.found


def main(arguments: list[str] | None = None) -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks footprint", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--partitions", type=int, default=1000, help="of all brokers together")
    parser.add_argument("--brokers", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=30.0, help="length of each of idle and busy")
    parser.add_argument("--rate", type=float, default=1.0, help="messages a second to each partition, while busy")
    parser.add_argument("--session-timeout", type=float, default=6.0, help="of the daemon, in seconds")
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    options = parser.parse_args(arguments)
    if options.brokers < 1 or options.partitions < 1 or options.partitions % options.brokers:
        parser.error("--partitions must be a multiple of --brokers")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    with tempfile.TemporaryDirectory(prefix="consumerd-footprint-") as name:
        found = asyncio.run(measure(options, Path(name)))
    print("\n".join([json.dumps(it.as_json()) for it in found] if options.json else table(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
