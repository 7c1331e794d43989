"""Shared parts of the readers of all kinds of splits: the request, the limits of an Arrow batch, constant columns."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from consumerd.spark.lake.arrays import repeated
from consumerd.spark.source.columns import ParseMode, arrow_schema, offered
from consumerd.spark.source.errors import DataLossError, MalformedMessageError
from consumerd.wire.v07 import DEFAULT_LIMITS, Codec, DecodeLimits

if TYPE_CHECKING:
    from consumerd.spark.source.options import SourceOptions
    from consumerd.spark.source.split import Split

log = logging.getLogger(__name__)

#: Bytes per FETCH: what Kafka 0.7's own consumers ask for (golden notes, 6).
DEFAULT_FETCH_SIZE: Final = 1 << 20
#: Seconds for connecting to a broker, and for each response.
DEFAULT_TIMEOUT: Final = 30.0


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """The settings of a query that apply to every split.

    `columns`: names of `consumerd.spark.source.columns.COLUMNS` in the order of the batches. `fetch_size`: bytes asked
    of a broker at once. `timeout`: seconds that a broker may take for anything.
    """

    columns: tuple[str, ...]
    mode: ParseMode = ParseMode.PERMISSIVE
    fail_on_data_loss: bool = True
    limits: DecodeLimits = DEFAULT_LIMITS
    fetch_size: int = DEFAULT_FETCH_SIZE
    timeout: float = DEFAULT_TIMEOUT

    @classmethod
    def of(cls, options: SourceOptions, columns: tuple[str, ...] | None = None) -> ReadRequest:
        """The settings among the options of a reader. `columns`: all by default."""
        every = offered(include_headers=options.include_headers, mode=options.mode)
        return cls(
            columns=tuple(column.name for column in every) if columns is None else columns,
            mode=options.mode,
            fail_on_data_loss=options.fail_on_data_loss,
            limits=options.limits,
            fetch_size=options.fetch_size,
            timeout=options.timeout,
        )


#: A batch ends at the first of these. Both are soft: a run is not cut at the byte.
BATCH_ROWS: Final = 1 << 16
BATCH_BYTES: Final = 4 << 20


class ConstantColumns:
    """Columns that are constant in a split, or for all its uncompressed messages. `columns`: names of a batch's."""

    def __init__(self, split: Split, columns: Sequence[str], *, codec: Codec | None = Codec.NONE) -> None:
        self.schema = arrow_schema(columns)
        self._values = {
            "topic": split.topic,
            "partition": split.partition,
            "broker": split.broker,
            "broker_partition": split.broker_partition,
            "topic_id": split.topic_id,
            "index": 0,
            "codec": None if codec is None else codec.name.lower(),
            "crc_ok": True,
        }
        self._made: dict[str, pa.Array] = {}

    def batch(self, varying: Mapping[str, pa.Array], rows: int) -> pa.RecordBatch:
        """A batch of this many rows, with these columns among others."""
        columns = [varying[each.name] if each.name in varying else self.column(each, rows) for each in self.schema]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def column(self, field: pa.Field, rows: int) -> pa.Array:
        """The column of that name, this many rows long; null where it has no value."""
        made = self._made.get(field.name)
        if made is None or len(made) < rows:
            value = self._values.get(field.name)
            made = self._made[field.name] = repeated(value, field.type, rows)
        return made.slice(0, rows)


class SplitReader:
    """What readers of all kinds of splits have in common: columns, and the policies for what cannot be read."""

    def __init__(self, split: Split, request: ReadRequest) -> None:
        self.request = request
        self.dropped = 0
        self._split = split

    def is_row(self, problem: str) -> bool:
        """Whether bytes that are not a message become a row, by the mode; else they are counted as dropped.

        `problem`: the place and the reason. Raises MalformedMessageError in mode FAILFAST.
        """
        if self.request.mode is ParseMode.FAILFAST:
            raise MalformedMessageError(f"{problem}; read with mode=PERMISSIVE or DROPMALFORMED to continue")
        self.dropped += self.request.mode is ParseMode.DROPMALFORMED
        return self.request.mode is ParseMode.PERMISSIVE

    def lost(self, what: str, remedy: str = "start later, or set failOnDataLoss=false") -> None:
        """Log that planned offsets no longer exist. Raises DataLossError where that is to fail."""
        if self.request.fail_on_data_loss:
            raise DataLossError(f"{what}; {remedy} to continue without them")
        log.warning("%s; continuing without them", what)

    def end(self, what: str = "ranges") -> None:
        """Log how many malformed parts of the split were dropped."""
        if self.dropped:
            log.warning("dropped %d malformed %s of %s", self.dropped, what, self._split)


def numbers(values: array[int], kind: pa.DataType) -> pa.Array:
    """The array's own memory as a column."""
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])
