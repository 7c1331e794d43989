"""The world of a group whose members store messages with the sink `files`, in one directory of one machine.

Strategy: members are `daemon.Daemon`s with the product's sink on `disk.SimulatedDisk`, and blocking calls take their
time in `threads`. `read` sees the directory as any other program does.
"""

from __future__ import annotations

import base64
import json
import random
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from unittest import mock

from consumerd.base.files import SystemFiles
from consumerd.base.partition import TopicPartition
from consumerd.handlers import Handler
from consumerd.handlers.builtin import files
from consumerd.handlers.builtin.files import FilesHandler
from tests.simulation.disk import SimulatedDisk
from tests.simulation.kernel import SimulationError
from tests.simulation.rows_world import Row, RowsWorld

#: Lines that the sink writes at once: few, so that a batch takes several writes.
_LINES = 2


class SinkWorld(RowsWorld):
    """One run. Steps of members are calls of their threads to the disk, too."""

    #: The names of files, with the ends of their ranges.
    names = re.compile(r"([0-9]{20})-([0-9]{20})\.ndjson")

    def __init__(self, seed: int = 0, *, round_trip: float = 0.001) -> None:
        super().__init__(seed, round_trip=round_trip)
        self.disk = SimulatedDisk(random.Random(f"disk/{seed}"))
        self.directory = Path("/srv/data")
        self._patches.append(mock.patch.object(files, "_LINES", _LINES))

    def sink(self) -> Handler:
        return FilesHandler.on(SystemFiles(self.disk), self.directory)

    @property
    def writes(self) -> int:
        return self.disk.calls.get("rename", 0)

    def slow_down(self, factor: float) -> None:
        self.disk.slowness = factor

    def lose_power(self) -> None:
        """All members die, and the disk forgets what was not synced."""
        self.kernel.note("machine", "loses power")
        self.kill_all()
        self.check()
        self.disk.lose_power()
        self.check()

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
        match = self.names.fullmatch(path.name)
        if match is None:
            raise SimulationError(f"{path} has not the name of a file of rows")
        rows = []
        for record in self.records(path, self.disk.content(path)):
            try:
                identity = TopicPartition(record["topic"], record["broker"], record["partition"])
                row = Row(record["offset"], record["index"], self.payload(record))
            except (ValueError, KeyError, TypeError) as error:
                raise SimulationError(f"{path} has a row that is not one: {record!r} ({error!r})") from error
            if identity != partition or not int(match[1]) <= row.offset < int(match[2]):
                raise SimulationError(f"{path} has a row of another range: {record!r}")
            rows.append(row)
        return rows

    # -- what is in a file

    def records(self, path: Path, data: bytes) -> Iterable[dict[str, Any]]:
        """The rows of a file, by the names of their columns. Raises SimulationError for bytes that are not rows."""
        if data and not data.endswith(b"\n"):
            raise SimulationError(f"{path} is not a whole file of rows: {data!r}")
        try:
            return [json.loads(line) for line in data.splitlines()]
        except ValueError as error:
            raise SimulationError(f"{path} has a row that is not one: {data!r} ({error!r})") from error

    def payload(self, record: dict[str, Any]) -> bytes:
        """The message of a row."""
        text: str | None = record.get("payload")
        return base64.b64decode(record["payload_base64"]) if text is None else text.encode()
