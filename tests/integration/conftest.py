"""Daemons as whole processes beside a broker in this loop, and what they said when they ended."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from consumerd.base.clock import SystemClock
from consumerd.base.partition import TopicPartition
from consumerd.demo.processes import (
    DaemonProcess,
    clean_environment,
    consumerd_command,
    format_toml,
    parse_event,
)
from consumerd.net.connect import connect
from consumerd.net.zk.errors import NoNode
from consumerd.net.zk.session import Session
from consumerd.storage.broker.config import BrokerConfig
from consumerd.storage.broker.server import Broker
from consumerd.wire.registry.paths import offset_path
from consumerd.wire.v07 import (
    LATEST,
    OffsetsRequest,
    ProduceRequest,
    decode_offsets_response,
    encode_message_set,
)
from tests.support.waiting import until

GROUP = "g"
#: Of the daemons, in seconds; the shared server grants no less than one.
SESSION_TIMEOUT = 2.0

HANDLERS = '''
import asyncio
import ctypes
import os
import re
import time

from consumerd.handlers import message_handler


class Failing:
    """Fails at every message that holds `text`."""

    def __init__(self, text):
        self.text = text.encode()

    async def handle(self, batch):
        for count, payload in enumerate(batch, 1):
            if self.text in payload:
                raise ValueError("cannot digest " + self.text.decode())
            batch.mark(count)


class Exiting:
    """Calls sys.exit(0) in one of its methods."""

    def __init__(self, method):
        self.method = method
        self.exit("__init__")

    def exit(self, method):
        if method == self.method:
            raise SystemExit(0)

    async def start(self, context):
        self.exit("start")

    async def handle(self, batch):
        self.exit("handle")

    async def stop(self):
        self.exit("stop")


class Steering:
    """Commits each message at once, counts it, and pauses its partition after a message `pause` for a second."""

    async def start(self, context):
        assert context.partitions == () and await context.commit() == {}
        self.context = context
        self.counted = context.metrics.counter("seen", "Messages that were seen.", labels=["topic"])
        self.sizes = context.metrics.histogram("size_bytes", "Sizes.", buckets=[1, 10, 100])
        context.log.info("handler_opened", attempts=context.config["max_attempts"], level=context.config["options"])

    @message_handler
    async def handle(self, message):
        context = self.context
        self.counted.add(1, message.topic)
        self.sizes.observe(len(message.payload))
        print(message.payload.decode(), flush=True)
        if message.payload == b"commit":
            context.log.info("handler_committed", offset=(await context.commit()).get(message.partition))
        if message.payload == b"pause":
            context.pause(message.partition)
            context.log.info("handler_paused", partitions=[str(each) for each in context.partitions])
            asyncio.get_running_loop().call_later(1.0, self.resume, message.partition)

    def resume(self, partition):
        print("resumed", flush=True)
        self.context.resume(partition)


class Computing:
    """In worker processes: prints its process and each payload, and computes for ever at `forever`."""

    def handle(self, messages):
        for message in messages:
            print(os.getpid(), message.payload.decode(), flush=True)
            while message.payload == b"forever" and not os.path.exists(".free"):
                time.sleep(0.01)


class Stubborn:
    """Obeys no cancellation."""

    async def handle(self, batch):
        print("in hand", flush=True)
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                pass


class Holding:
    """Holds the event loop for ever, in one of several ways."""

    def __init__(self, by):
        self.by = by

    async def handle(self, batch):
        print("in hand", flush=True)
        getattr(self, self.by)()

    def computing(self):
        while True:
            pass

    def sleeping(self):
        time.sleep(1000)

    def deadlock_in_c(self, library=ctypes.CDLL):  # which signals do not interrupt, without the interpreter's lock
        mutex = ctypes.create_string_buffer(256)
        lock = library(None).pthread_mutex_lock
        lock(mutex)
        lock(mutex)

    def deadlock_with_gil(self):  # the same with the interpreter's lock
        self.deadlock_in_c(ctypes.PyDLL)

    def matching(self):  # with the interpreter's lock
        re.match("(a+)+$", "a" * 60 + "b")


class Building:
    """Takes long to be built."""

    def __init__(self):
        print("building", flush=True)
        time.sleep(1000)

    async def handle(self, batch):
        pass


class Leaving:
    """Has a task of its own that calls sys.exit(0) while a batch is in hand."""

    async def handle(self, batch):
        print("in hand", flush=True)
        self.task = asyncio.create_task(self.leave())
        await asyncio.sleep(0.2)
        print("finished", flush=True)

    async def leave(self):
        raise SystemExit(0)


class Stopping:
    """Stops the event loop."""

    async def handle(self, batch):
        asyncio.get_running_loop().stop()
        print("in hand", flush=True)
        await asyncio.sleep(0.2)
        print("finished", flush=True)


class Forking:
    """Forks a process that does not end by itself."""

    async def handle(self, batch):
        child = os.fork()
        if child:
            print("child ended with", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


class Slow:
    """Says when it has a batch, and finishes it after `seconds`."""

    def __init__(self, seconds):
        self.seconds = seconds

    async def handle(self, batch):
        print("in hand", flush=True)
        await asyncio.sleep(self.seconds)
        print("finished", flush=True)


class Refusing:
    """Takes no batch."""

    async def handle(self, batch):
        raise ValueError("cannot digest that")


class Each:
    """Takes one message at a time, and waits for nothing."""

    @message_handler
    async def handle(self, message):
        pass


class Stalled:
    """Takes the first batch of each partition, and never ends."""

    async def handle(self, batch):
        print("in hand", flush=True)
        await asyncio.Event().wait()
'''


@dataclass
class Outcome:
    """The exit code of a process, and the text of its streams."""

    code: int
    stdout: str
    stderr: str
    #: The lines on standard error that are not the daemon's own log.
    sentences: list[str] = field(init=False)
    events: list[dict[str, Any]] = field(init=False)

    def __post_init__(self) -> None:
        lines = self.stderr.splitlines()
        self.events = [event for line in lines if (event := parse_event(line)) is not None]
        self.sentences = [line for line in lines if parse_event(line) is None]

    def said(self, name: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == name]


async def consumerd(*arguments: str, stdin: bytes = b"", seconds: float = 60.0) -> Outcome:
    """Run a command to its end."""
    process = await asyncio.create_subprocess_exec(
        *consumerd_command(*arguments),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=clean_environment(),
    )
    try:
        async with asyncio.timeout(seconds):
            stdout, stderr = await process.communicate(stdin)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return Outcome(process.returncode, stdout.decode(errors="replace"), stderr.decode(errors="replace"))


class World:
    """A chroot, a session that looks at it, brokers in this loop, daemons as processes."""

    def __init__(self, directory: Path, chroot: str, zk: Session, stack: AsyncExitStack) -> None:
        self.directory = directory
        self.chroot = chroot
        self.zk = zk
        self.brokers: dict[int, Broker] = {}
        self._stack = stack
        self._files = 0
        modules = directory / "modules"
        modules.mkdir()
        (modules / "bad_handlers.py").write_text(HANDLERS)
        self.module_path = os.pathsep.join([str(modules), *filter(None, [os.environ.get("PYTHONPATH")])])

    # -- brokers

    async def broker(self, broker_id: int = 0, *, partitions: int = 1, **settings: Any) -> Broker:
        """Start a broker; messages are visible at once."""
        config = BrokerConfig(
            log_dir=self.log_dir(broker_id),
            broker_id=broker_id,
            port=0,
            partitions=partitions,
            flush_messages=1,
            **settings,
        )
        made = Broker(config, clock=SystemClock(), rng=random.Random(1), zookeeper=self.zk)
        self.brokers[broker_id] = await self._stack.enter_async_context(made)
        return made

    def log_dir(self, broker_id: int = 0) -> Path:
        return self.directory / f"broker-{broker_id}"

    def segment(self, partition: TopicPartition) -> Path:
        (path,) = (self.log_dir(partition.broker) / f"{partition.topic}-{partition.partition}").glob("*.kafka")
        return path

    async def append(self, partition: TopicPartition, *payloads: bytes, **encoding: Any) -> int:
        """Produce one set and return where the log ends then."""
        connection = await connect("127.0.0.1", self.brokers[partition.broker].port)
        try:
            data = encode_message_set(payloads, **encoding)
            await connection.send(ProduceRequest(partition.topic, partition.partition, data).encode())
            request = OffsetsRequest(partition.topic, partition.partition, LATEST, 1)
            answer = decode_offsets_response(await connection.request(request.encode()))
        finally:
            await connection.close()
        await self.until_registered(partition)
        return answer.offsets[0]

    async def until_registered(self, partition: TopicPartition) -> None:
        """Brokers register topics in the background."""
        path = f"/brokers/topics/{partition.topic}/{partition.broker}"
        await self.until(lambda: self.zk.exists(path))

    # -- daemons

    def config(self, **tables: Any) -> dict[str, Any]:
        """A configuration of the group; `tables` are merged in, and lists of tables added."""
        made: dict[str, Any] = {
            "group": {"id": GROUP},
            "zookeeper": {"connect": self.chroot, "session_timeout": SESSION_TIMEOUT, "allow_empty": True},
            "fetch": {"idle_backoff": 0.05},
            "handler": {"name": "print"},
            "log": {"format": "json"},
        }
        for table, keys in tables.items():
            made[table] = keys if isinstance(keys, list) else {**made.get(table, {}), **keys}
        if not made["group"].keys() & {"topics", "whitelist", "blacklist"}:
            made["group"]["topics"] = {"t": 1}
        return made

    def write(self, text: str) -> str:
        self._files += 1
        path = self.directory / f"config-{self._files}.toml"
        path.write_text(text)
        return str(path)

    async def run(self, *options: str, command: str = "run", seconds: float = 60.0, **tables: Any) -> Outcome:
        """`consumerd run` to its end, which it has to find by itself."""
        path = self.write(format_toml(self.config(**tables)))
        return await consumerd(*options, command, "-c", path, seconds=seconds)

    async def daemon(self, name: str = "daemon", **tables: Any) -> DaemonProcess:
        """Start a daemon that runs until it is stopped at the end of the test."""
        made = DaemonProcess(self.directory, self.config(**tables), name=name)
        return await self._stack.enter_async_context(made)

    def printed(self, daemon: DaemonProcess) -> list[str]:
        """The payloads that a daemon with the `print` handler printed."""
        whole, _, _ = daemon.stdout_path.read_text().rpartition("\n")
        return [json.loads(line).get("payload") for line in whole.splitlines()]

    async def until_printed(self, daemon: DaemonProcess, *payloads: str, seconds: float = 60.0) -> None:
        """Wait until a daemon has printed these, in any order, and nothing else."""
        await self.until(lambda: sorted(self.printed(daemon)) == sorted(payloads), seconds)

    # -- what is so now

    async def offset(self, partition: TopicPartition) -> int | None:
        try:
            data, _ = await self.zk.get(offset_path(GROUP, partition))
        except NoNode:
            return None
        return int(data or b"")

    async def until(self, condition: Callable[[], Any], seconds: float = 60.0) -> None:
        """Wait, as `tests.support.waiting.until`."""
        await until(condition, seconds)


@pytest_asyncio.fixture
async def world(tmp_path: Path, zk_root: str, monkeypatch: Any) -> AsyncIterator[World]:
    """Everything ends with the test."""
    async with AsyncExitStack() as stack:
        zk = Session(zk_root, clock=SystemClock(), rng=random.Random(1), session_timeout=10.0)
        await stack.enter_async_context(zk)
        made = World(tmp_path, zk_root, zk, stack)
        monkeypatch.setenv("PYTHONPATH", made.module_path)
        yield made


@pytest_asyncio.fixture
async def cli() -> Callable[..., Any]:
    """`await cli("topics", "list", ...)` runs a command to its end."""
    return consumerd


@pytest.fixture(autouse=True)
def _without_nohup() -> Iterator[None]:
    """Children ignore what we do; these tests may run under `nohup`."""
    former = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, former)
