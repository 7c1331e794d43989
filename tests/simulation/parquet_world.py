"""The world of a group whose members store messages with the sink `parquet`, in one directory of one machine.

Strategy: as `tests.simulation.sink_world`, with other files. They have row groups of two rows, so that a file is
written in several pieces, and are read by pyarrow, as other programs read them. `ParquetSchedule` has the random
schedules.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow
import pyarrow.parquet

from consumerd.base.files import SystemFiles
from consumerd.handlers import Handler
from consumerd.handlers.builtin import parquet_rows
from consumerd.handlers.builtin.parquet import ParquetHandler
from tests.simulation.kernel import SimulationError
from tests.simulation.sink_schedule import SinkSchedule
from tests.simulation.sink_world import SinkWorld

#: Rows of a row group.
_ROWS = 2


class ParquetWorld(SinkWorld):
    """One run."""

    names = re.compile(r"([0-9]{20})-([0-9]{20})\.parquet")

    def __init__(self, seed: int = 0, *, round_trip: float = 0.001) -> None:
        super().__init__(seed, round_trip=round_trip)
        self._patches.append(mock.patch.object(parquet_rows, "GROUP_ROWS", _ROWS))

    def sink(self) -> Handler:
        return ParquetHandler.on(SystemFiles(self.disk), self.directory)

    def records(self, path: Path, data: bytes) -> Iterable[dict[str, Any]]:
        try:
            table = pyarrow.parquet.read_table(pyarrow.BufferReader(data), use_threads=False)
        except (pyarrow.ArrowException, OSError) as error:
            raise SimulationError(f"{path} is not a whole file of rows: {error!r}") from error
        found: list[dict[str, Any]] = table.to_pylist()
        return found

    def payload(self, record: dict[str, Any]) -> bytes:
        return bytes(record["payload"])


class ParquetSchedule(SinkSchedule):
    """The schedule of one seed; `kind`: instead of the one that the seed chooses."""

    tests = "tests/simulation/test_parquet.py"

    def make_world(self) -> ParquetWorld:
        return ParquetWorld(self.seed, round_trip=self.round_trip)
