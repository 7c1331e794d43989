"""The world of a group whose members store messages with the sink `files`, in one directory of one machine.

Strategy: members are `daemon.Daemon`s with the product's sink on `disk.SimulatedDisk`, and blocking calls take their
time in `threads`. `read` sees the directory as any other program does, and `check` compares it row by row with what
the producers sent: at every moment each partition's rows are the beginning of its log, and in the end all of it.

The account holds members to their ownership as everywhere. A message counts as handled when the sink has confirmed it,
or has told a position behind it.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import re
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

from consumerd.handlers import Handler
from consumerd.handlers.builtin import files
from consumerd.handlers.builtin.disk import OsDisk
from consumerd.handlers.builtin.files import FilesHandler
from consumerd.partition import TopicPartition
from consumerd.wire.v07 import Codec
from tests.simulation.daemon import Daemon
from tests.simulation.disk import SimulatedDisk
from tests.simulation.kernel import SimulationError
from tests.simulation.threads import ThreadedLoop
from tests.simulation.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from consumerd.handlers import Batch, HandlerContext

#: Lines that the sink writes at once: few, so that a batch takes several writes.
_LINES = 2
_NAME = re.compile(r"([0-9]{20})-([0-9]{20})\.ndjson")


class Row(NamedTuple):
    """One stored message."""

    offset: int
    #: The number of the message in the one that holds it.
    inner: int
    payload: bytes


class SinkWorld(World):
    """One run. `watcher` is called before each turn of a member's loop and each call of its threads to the disk."""

    def __init__(self, seed: int = 0, *, round_trip: float = 0.001) -> None:
        super().__init__(seed, round_trip=round_trip)
        self.disk = SimulatedDisk(random.Random(f"disk/{seed}"))
        self.directory = self.disk.path("/srv/data")
        self.watcher: Callable[[Daemon, str], None] = lambda daemon, step: None
        #: The messages of each partition, as they were produced.
        self.produced: dict[TopicPartition, list[Row]] = {}
        self._patches += [*self.disk.patches(), mock.patch.object(files, "_LINES", _LINES)]

    # -- producers

    def produce(self, partition: TopicPartition, count: int = 1) -> None:
        """Append messages, some of which are compressed and hold several."""
        store, rng = self.brokers[partition.broker].store, self.rng
        for _ in range(count):
            inner = rng.choice((0, 0, 2, 5))
            payloads = [self._payload() for _ in range(inner or 1)]
            offset = store.end(partition.topic, partition.partition)
            codec = Codec.GZIP if inner else Codec.NONE
            store.append(partition.topic, partition.partition, *payloads, codec=codec)
            self.produced.setdefault(partition, []).extend(
                Row(offset, index, payload) for index, payload in enumerate(payloads)
            )
            self.account.produced(partition, offset)

    def _payload(self) -> bytes:
        self._produced += 1
        return b"%d %s" % (self._produced, self.rng.choice((b"", b"a\nb", b"\xff\x00", b"x" * 40)))

    # -- members

    def daemon(
        self,
        name: str,
        settings: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        handling: float = 0.0,
        stubborn: bool = False,
        lingering: bool = False,
    ) -> Daemon:
        peculiar = handling or stubborn or lingering
        assert not peculiar, "the sink and its disk say how long a batch takes"
        made = self.daemons[name] = SinkDaemon(self, name, settings or {})
        return made

    def lose_power(self) -> None:
        """All members die, and the disk forgets what was not synced."""
        self.kernel.note("machine", "loses power")
        for daemon in self.daemons.values():
            if daemon.alive:
                daemon.kill()
        self.check()
        self.disk.lose_power()
        self.check()

    # -- the rows

    def read(self) -> dict[TopicPartition, list[Row]]:
        """The rows of all partitions. Raises SimulationError for a file that cannot be read as data."""
        found: dict[TopicPartition, list[Row]] = {}
        for topic in self._entries(self.directory):
            for folder in self._entries(topic):
                partition = TopicPartition.parse(topic.name, folder.name)
                found[partition] = [row for path in self._entries(folder) for row in self._rows(path, partition)]
        return found

    def _entries(self, directory: Path) -> list[Path]:
        """What other programs see in a directory: hidden names are not data, as for Spark and globs."""
        if not self.disk.forgetful.is_directory(directory):
            return []
        names = sorted(entry.name for entry in self.disk.forgetful.entries(directory))
        return [directory / name for name in names if not name.startswith(".")]

    def _rows(self, path: Path, partition: TopicPartition) -> list[Row]:
        match, data = _NAME.fullmatch(path.name), self.disk.read(path)
        if match is None or (data and not data.endswith(b"\n")):
            raise SimulationError(f"{path} is not a whole file of rows: {data!r}")
        rows = []
        for line in data.splitlines():
            try:
                record = json.loads(line)
                identity = TopicPartition(record["topic"], record["broker"], record["partition"])
                text, encoded = record.get("payload"), record.get("payload_base64")
                payload = base64.b64decode(encoded) if text is None else text.encode()
                row = Row(record["offset"], record["index"], payload)
            except (ValueError, KeyError, TypeError) as error:
                raise SimulationError(f"{path} has a row that is not one: {line!r} ({error!r})") from error
            if identity != partition or not int(match[1]) <= row.offset < int(match[2]):
                raise SimulationError(f"{path} has a row of another range: {line!r}")
            rows.append(row)
        return rows

    def check(self, *, complete: bool = False) -> None:
        """Raise SimulationError unless the rows are the beginnings of the logs, or with `complete` all of them."""
        stored = self.read()
        for partition in self.partitions:
            rows, expected = stored.pop(partition, []), self.produced.get(partition, [])
            wrong = next((n for n, row in enumerate(rows) if n >= len(expected) or row != expected[n]), None)
            if wrong is not None:
                after = rows[wrong - 1] if wrong else None
                expect = expected[wrong] if wrong < len(expected) else None
                raise SimulationError(f"{partition} has row {rows[wrong]} after {after}; expected {expect}")
            if complete and len(rows) < len(expected):
                raise SimulationError(f"{partition} has {len(rows)} rows; {expected[len(rows)]} is not stored")
        if stored:
            raise SimulationError(f"there are rows of unknown partitions: {list(stored)}")


class SinkDaemon(Daemon):
    """A member with the sink."""

    world: SinkWorld

    def __init__(self, world: SinkWorld, name: str, settings: Mapping[str, Mapping[str, Any]]) -> None:
        super().__init__(world, name, settings, 0.0, stubborn=False, lingering=False)

    def make_loop(self) -> ThreadedLoop:
        return ThreadedLoop(
            self.world.kernel, self.world.network, self.name, lambda step: self.world.watcher(self, step)
        )

    def plugin(self) -> Handler:
        return _Observed(self, FilesHandler.on(OsDisk(), self.world.directory))


class _Observed(Handler):
    """Tells the account what a sink gets and what it has stored."""

    def __init__(self, daemon: Daemon, sink: Handler) -> None:
        self._daemon = daemon
        self._sink = sink

    async def start(self, context: HandlerContext) -> None:
        await self._sink.start(context)

    async def stop(self) -> None:
        await self._sink.stop()

    async def position(self, partition: TopicPartition) -> int | None:
        position = await self._sink.position(partition)
        if not self._daemon.loop.dead:
            account = self._daemon.world.account
            account.handled(partition, [each for each in account.offsets(partition) if each < (position or 0)])
        return position

    async def handle(self, batch: Batch) -> None:
        daemon, account = self._daemon, self._daemon.world.account
        if daemon.loop.dead:
            return
        offsets = sorted({message.offset for message in batch.messages()})
        account.begin(daemon.name, batch.partition, offsets)
        call = asyncio.ensure_future(self._sink.handle(batch))
        cancelled: asyncio.CancelledError | None = None
        while not call.done():
            try:
                await asyncio.wait([call])
            except asyncio.CancelledError as error:
                # The member has done what it can; a sink may store a batch all the same, and then says so.
                if cancelled is None and not daemon.loop.dead:
                    account.end(daemon.name, batch.partition, offsets, handled=False)
                cancelled = error
                call.cancel()
        failed = call.cancelled() or call.exception() is not None
        if not daemon.loop.dead:
            if cancelled is None:
                account.end(daemon.name, batch.partition, offsets, handled=not failed)
            elif batch.counted and batch.handled == len(batch):
                account.handled(batch.partition, offsets)
        if cancelled is not None:
            raise cancelled
        call.result()
