"""A broker for tests, on loopback: in this process or in one of its own. Its methods are plain and wait by themselves.

Strategy: the broker lives on the loop of a `LoopThread`, never on the test's, so it serves sync and async tests alike,
and clients that block. Its messages are read from its segment files, so that they can be inspected also while it is
down. Every message is flushed before the next request is answered, hence visible as soon as `produce` returns.
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Literal, Self

from consumerd.base.clock import SystemClock
from consumerd.base.partition import TopicPartition
from consumerd.demo.processes import BrokerProcess
from consumerd.handlers import Message
from consumerd.net.connect import connect
from consumerd.net.zk.session import Session
from consumerd.storage.broker.config import BrokerConfig
from consumerd.storage.broker.server import Broker
from consumerd.storage.log.dump import LogEntry, read_segment
from consumerd.storage.segments.finding import find_segment_files
from consumerd.testing.errors import HarnessError
from consumerd.testing.loop import LoopThread
from consumerd.wire.compression import Codec
from consumerd.wire.v07 import FetchRequest, ProduceRequest, encode_message_set, validate_topic

# Damaging segment files on purpose, as disks and crashes do (spec 003; golden notes, 3).
#
# Strategy: the file is changed where it is. A running broker serves file ranges, so its clients see the damage at once;
# a start without the clean marker checks the last segment and cuts the log there.

#: `payload`: a wrong CRC, the length stands. `length`: an impossible one; nothing behind it can be read. `cut`: the
#: file ends within the message.
Damage = Literal["payload", "length", "cut"]


def segments_of(directory: Path) -> list[tuple[Path, int]]:
    """The segment files of one partition's `directory` with their start offsets; none where there is no folder."""
    found = find_segment_files([directory]) if any(directory.glob("*.kafka")) else []
    return [(each.path, each.start) for each in found]


def entries_of(directory: Path) -> list[tuple[Path, int, LogEntry]]:
    """The entries of a partition's segments: (file, its start offset, entry)."""
    return [(path, start, entry) for path, start in segments_of(directory) for entry in read_segment(path, start)]


def end_of(directory: Path) -> int:
    """Return the end of a partition's log; 0 without one."""
    segments = segments_of(directory)
    return segments[-1][1] + segments[-1][0].stat().st_size if segments else 0


def damage(directory: Path, offset: int | None, how: Damage) -> int:
    """Damage the outer message at `offset`, or the last one; returns its offset. Raises HarnessError without one."""
    found = [item for item in entries_of(directory) if offset in (None, item[2].offset) and item[2].valid]
    if not found:
        where = "" if offset is None else f" at offset {offset}"
        raise HarnessError(f"{directory.name} has no message{where} to damage")
    path, start, entry = found[-1]
    begin, end = entry.offset - start, entry.next_offset - start
    with path.open("r+b") as file:
        if how == "cut":
            file.truncate((begin + end) // 2)
        elif how == "length":
            file.seek(begin)
            file.write(b"\x7f\xff\xff\xff")
        else:
            file.seek(end - 1)
            last = file.read(1)[0]
            file.seek(end - 1)
            file.write(bytes([last ^ 0xFF]))
    return entry.offset


HOST = "127.0.0.1"
#: By their 0.7 names; a test may give others.
DEFAULTS: Mapping[str, str | int] = {"log.flush.interval": 1, "zk.sessiontimeout.ms": 2000}


class LoopbackBroker(ABC):
    """One broker with id `broker_id`, registered at the connect string `zookeeper`, or nowhere with None.

    The port is free at the first start and then stays. Raises what the broker raises: ConfigError for `settings`
    that 0.7 does not have, and from the start StorageError, ZooKeeperError, ChildError.
    """

    def __init__(
        self,
        directory: Path,
        loop: LoopThread,
        *,
        broker_id: int = 0,
        partitions: int = 1,
        zookeeper: str | None = None,
        settings: Mapping[str, str | int] | None = None,
    ) -> None:
        self.directory = directory
        self.broker_id = broker_id
        self.zookeeper = zookeeper
        self.settings = {**DEFAULTS, **(settings or {})}
        self._loop = loop
        self.config = BrokerConfig.from_properties(
            {name: str(value) for name, value in self.settings.items()},
            log_dir=directory / "data",
            broker_id=broker_id,
            partitions=partitions,
            port=0,
            zookeeper=zookeeper,
            use_zookeeper=zookeeper is not None,
        )

    @property
    @abstractmethod
    def port(self) -> int:
        """The port on which it listens."""

    @property
    @abstractmethod
    def running(self) -> bool:
        """Whether it serves."""

    @property
    def host(self) -> str:
        """The address on which it listens."""
        return HOST

    @property
    def address(self) -> str:
        """`host:port`."""
        return f"{HOST}:{self.port}"

    @property
    def log_directory(self) -> Path:
        """The directory of its segment files."""
        return self.config.log_dir

    # -- life

    @abstractmethod
    def start(self) -> None:
        """Return when it serves (and is registered); nothing happens when it does already."""

    @abstractmethod
    def stop(self) -> None:
        """Stop gracefully: the logs end with the clean marker."""

    @abstractmethod
    def kill(self) -> None:
        """End it at once: its connections break, there is no clean marker, the next start checks the logs."""

    def restart(self) -> None:
        """Stop it, if it runs, and start it on the same port with the same logs."""
        self.stop()
        self.start()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # -- messages

    def produce(
        self,
        topic: str,
        payloads: Iterable[bytes],
        *,
        partition: int = 0,
        codec: Codec = Codec.NONE,
        magic: int = 1,
    ) -> int:
        """Store one message set, with a codec as one compressed message; where the partition's log ends now.

        Raises HarnessError for a partition that the broker has not, InvalidTopicError, BrokerError.
        """
        validate_topic(topic)
        count = self.config.partitions_of(topic)
        if not 0 <= partition < count:
            raise HarnessError(
                f"{topic!r} has partitions 0 to {count - 1} on broker {self.broker_id}, and no {partition}"
            )
        request = ProduceRequest(topic, partition, encode_message_set(payloads, magic=magic, codec=codec))
        self._loop.run(self._send(request))
        return self.end(topic, partition)

    async def _send(self, request: ProduceRequest) -> None:
        connection = await connect(HOST, self.port)
        try:
            await connection.send(request.encode())
            # A PRODUCE has no answer; that of a later request shows that the broker is through with it.
            await connection.request(FetchRequest(request.topic, request.partition, 0, 0).encode())
        finally:
            await connection.close()

    def messages(self, topic: str, partition: int | None = None) -> list[Message]:
        """Return the messages of a topic, or of one partition, in the order of partitions, without damaged ones."""
        found = []
        for number in range(self.config.partitions_of(topic)) if partition is None else (partition,):
            where = TopicPartition(topic, self.broker_id, number)
            for _, _, entry in entries_of(self._directory_of(topic, number)):
                last = len(entry.payloads) - 1
                found += [
                    Message(where, entry.offset, index, entry.next_offset if index == last else entry.offset, payload)
                    for index, payload in enumerate(entry.payloads)
                ]
        return found

    def payloads(self, topic: str, partition: int | None = None) -> list[bytes]:
        """The payloads of `messages`."""
        return [message.payload for message in self.messages(topic, partition)]

    def end(self, topic: str, partition: int = 0) -> int:
        """Return the end of the partition's log; 0 without one."""
        return end_of(self._directory_of(topic, partition))

    def corrupt(self, topic: str, partition: int = 0, *, offset: int | None = None, how: Damage = "payload") -> int:
        """Damage the outer message at `offset`, or the last one; returns its offset. `cut` needs a broker that is down.

        Raises HarnessError where there is no such message.
        """
        if how == "cut" and self.running:
            raise HarnessError("a running broker cannot be truncated: `kill` or `stop` it first")
        return damage(self._directory_of(topic, partition), offset, how)

    def _directory_of(self, topic: str, partition: int) -> Path:
        return self.log_directory / f"{topic}-{partition}"


class InProcessBroker(LoopbackBroker):
    """A broker in this process: it starts in milliseconds. When it is killed, its ZooKeeper session ends at once."""

    _port = 0
    _task: asyncio.Task[None] | None = None
    _session: Session | None = None

    @property
    def port(self) -> int:
        return self._port

    @property
    def running(self) -> bool:
        return self._task is not None and not self._task.done()

    def start(self) -> None:
        if not self.running:
            self._loop.run(self._start())

    def stop(self) -> None:
        self._loop.run(self._end(graceful=True))

    def kill(self) -> None:
        self._loop.run(self._end(graceful=False))

    async def _start(self) -> None:
        await self._end(graceful=False)
        clock, rng = SystemClock(), random.Random()
        if self.zookeeper is not None:
            timeout = self.config.zk_session_ms / 1000
            self._session = Session(self.zookeeper, clock=clock, rng=rng, session_timeout=timeout)
            await self._session.start(20.0)
        config = self.config.replace(port=self._port)
        self._broker = Broker(config, clock=clock, rng=rng, zookeeper=self._session)
        self._task = asyncio.create_task(self._broker.run(), name=f"broker {self.broker_id}")
        ready = asyncio.create_task(self._broker.ready.wait())
        await asyncio.wait({self._task, ready}, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if self._task.done():
            await self._end(graceful=True)
        self._port = self._broker.port

    async def _end(self, *, graceful: bool) -> None:
        """Raises the error that ended the broker, unless the test stopped it."""
        task, self._task = self._task, None
        session, self._session = self._session, None
        try:
            if task is not None:
                if graceful:
                    self._broker.request_stop()
                else:
                    task.cancel()
                await asyncio.wait({task})
        finally:
            if session is not None:
                await session.close()
        if task is not None and not task.cancelled():
            task.result()


class ChildBroker(LoopbackBroker):
    """`consumerd broker` in a process of its own: killed, its registration stays until the session times out."""

    @cached_property
    def process(self) -> BrokerProcess:
        """The process."""
        known = {"broker_id": self.broker_id, "partitions": self.config.partitions}
        return BrokerProcess(self.directory, self.zookeeper, settings=self.settings, **known)

    @property
    def port(self) -> int:
        return self.process.port

    @property
    def running(self) -> bool:
        return self.process.running

    def start(self) -> None:
        if not self.running:
            self._loop.run(self.process.start())

    def stop(self) -> None:
        self._loop.run(self.process.stop())

    def kill(self) -> None:
        self.process.kill()

    def pause(self) -> None:
        """Freeze it: connections stay open and nothing answers."""
        self.process.pause()

    def resume(self) -> None:
        """Resume it."""
        self.process.resume()
