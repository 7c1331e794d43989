"""The record data of a fetch response: payloads with their attributes, decoded when they are read.

Strategy: payloads and keys are lists of `bytes`; headers, which few records have, are in a dictionary by the record's
number. Or, with the native codec, all of them are a buffer and an index, and objects when they are asked for. Offsets
and timestamps are kept once per *run* (the records of one batch, wrapper or row of plain messages): offsets as a range
wherever they have no gaps, timestamps in the form in which the data has them. Unlike in 0.7 every record has an offset
of its own, and each of them is a position that can be committed.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from functools import partial
from itertools import chain, islice, repeat
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple, TypeVar, Unpack

from consumerd.base import native as native_codec
from consumerd.base.native import NativeBinary, NativeRecords
from consumerd.base.partition import UNKNOWN_LOG
from consumerd.wire.batch import (
    MAX_NUMBER,
    OVERHEAD_PER_MESSAGE,
    PIECE,
    BatchEnd,
    BatchEnding,
    DecodedBatch,
)
from consumerd.wire.column_buffers import BinaryBuffers, ColumnBuffers, HeaderBuffers, Headers

_Made = TypeVar("_Made")

#: The timestamp of a record that has none.
NO_TIMESTAMP = -1
#: Memory of a record in addition to its payload: its places in the other lists, and a timestamp.
OVERHEAD_PER_RECORD = 24
#: Memory of a run: a tuple, a range and a list.
OVERHEAD_PER_RUN = 300
#: Memory of a header in addition to its bytes: a tuple, a `str` and a `bytes`.
OVERHEAD_PER_HEADER = 200
#: Memory of a key in addition to its bytes.
OVERHEAD_PER_KEY = 33


class TimestampType(IntEnum):
    """Whose clock a timestamp is of."""

    #: Messages of magic 0 have no timestamp.
    NONE = -1
    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class Record(NamedTuple):
    """One record. `next_offset` is the position to commit once it is handled, all before it being handled too.

    `index` is 0: no two records share an offset. `timestamp` is in milliseconds, -1 where there is none.
    """

    offset: int
    index: int  # type: ignore[assignment]  # the word of the field, as in v07.Message
    next_offset: int
    payload: bytes | None
    key: bytes | None
    timestamp: int
    timestamp_type: TimestampType
    headers: Headers


class RecordRun(NamedTuple):
    """Consecutive records from one source.

    `first` is the number of the first one; `offsets` and `times` have one entry per record, `times` counted from
    `base_time`. `codec` is the number of the compression that they came in.
    """

    first: int
    offsets: Sequence[int]
    timestamp_type: TimestampType
    base_time: int
    times: Sequence[int]
    codec: int = 0

    @property
    def timestamps(self) -> Iterable[int]:
        """One per record, in milliseconds."""
        return map(self.base_time.__add__, self.times) if self.base_time else self.times

    def timestamp(self, at: int) -> int | None:
        """That of its record number `at`; None where it has none, or none that has 64 bits, as hostile ones may."""
        timestamp = self.base_time + self.times[at]
        return timestamp if self.timestamp_type is not TimestampType.NONE and 0 <= timestamp < 1 << 63 else None


_TYPES = (TimestampType.NONE, TimestampType.CREATE_TIME, TimestampType.LOG_APPEND_TIME)
_FIRST = attrgetter("first")
_SUCCESSOR = (1).__add__


def _last(run: RecordRun) -> int:
    return run.offsets[-1]


_record = partial(tuple.__new__, Record)


class RecordSet(DecodedBatch["bytes | None", RecordRun]):
    """The records of one partition; see `DecodedBatch`. `next_offset` is also behind control batches and gaps.

    They are lists, or a buffer and an index, as the native codec makes them. These become lists, and are gone, when
    `payloads` are asked for: what is held stays within `memory_bytes`.
    """

    __slots__ = ("_headers", "_keys", "_native")

    #: Its messages have keys, timestamps and headers.
    keyed: ClassVar[bool] = True

    def __init__(
        self,
        payloads: list[bytes | None] | NativeRecords,
        keys: list[bytes | None],
        headers: dict[int, Headers],
        runs: Sequence[RecordRun],
        start_offset: int,
        next_offset: int,
        record_bytes: int,
        **ending: Unpack[BatchEnding],
    ) -> None:
        """`headers` are all there are of lists, else those that the index does not have; it has `keys` and `runs`."""
        # As the base class has it, without a call of that for each response.
        self._payloads = payloads  # type: ignore[assignment]
        self._runs = runs
        self.start_offset = start_offset
        self.next_offset = next_offset
        self.memory_bytes = record_bytes + OVERHEAD_PER_MESSAGE * len(payloads)
        self.end = BatchEnd.COMPLETE
        self.problem = self.resume_offset = self.needed = None
        self.log = UNKNOWN_LOG
        if ending:
            self._ended(**ending)
        #: The native records with keys, headers and runs, until they become lists.
        self._native = None if isinstance(payloads, list) else payloads
        self._keys = keys
        self._headers = headers

    @property
    def payloads(self) -> Sequence[bytes | None]:
        """One per record, in order; None where it is null."""
        native = self._native
        if native is not None:
            self._runs, self._keys, self._headers = self.runs, self.keys, self.headers
            self._payloads, self._native = self._payloads[:], None
        return self._payloads

    @property
    def keys(self) -> list[bytes | None]:
        """One per record, None where it has none. Created by each call until `payloads` were read."""
        return self._keys if self._native is None else self._native.keys(0, len(self))

    @property
    def headers(self) -> dict[int, Headers]:
        """The headers of the records that have some, by number. Created by each call until `payloads` were read."""
        return self._headers if self._native is None else {**dict(self._native.headers), **self._headers}

    @property
    def runs(self) -> Sequence[RecordRun]:
        """The records in runs of one origin, in order: for code that makes columns of them."""
        if self._native is not None and not self._runs:
            self._runs = [_run(*fields) for fields in self._native.runs]
        return self._runs

    @property
    def offsets(self) -> list[int]:
        """One per record, created by each call."""
        return list(chain.from_iterable(run.offsets for run in self.runs))

    @property
    def timestamps(self) -> list[int]:
        """One per record, in milliseconds; -1 where there is none. Created by each call."""
        return list(chain.from_iterable(run.timestamps for run in self.runs))

    def timestamp_from(self, offset: int) -> int | None:
        """The timestamp of the first record at or after `offset`, in milliseconds; None where it has none."""
        runs = self.runs
        at = bisect_left(runs, offset, key=_last)
        if at == len(runs):
            return None
        return runs[at].timestamp(bisect_left(runs[at].offsets, offset))

    def timestamp_at(self, number: int) -> int | None:
        """The timestamp of record `number`, in milliseconds; None where it has none.

        Of native records neither objects nor runs are made.
        """
        if self._native is not None and not self._runs:
            return self._native.timestamp(number)
        run = self.runs[bisect_right(self.runs, number, key=_FIRST) - 1]
        return run.timestamp(number - run.first)

    def column_buffers(self, first: int, stop: int, most: int, *, wide: bool) -> ColumnBuffers | None:
        native = self._native
        if native is None:
            return None
        payload, key, headers, offset, next_offset, timestamp = native.arrow(first, stop, self.next_offset, most, wide)
        return ColumnBuffers(
            BinaryBuffers(*payload),
            offset,
            next_offset,
            key=key and BinaryBuffers(*key),
            timestamp=timestamp,
            headers=self.headers if self._headers else headers and _header_buffers(*headers),
        )

    def message_lists(
        self, kind: type[Any], partition: object, first: int, stop: int, most: int
    ) -> Iterator[list[Any]] | None:
        native, codec = self._native, native_codec.in_use
        if native is None or codec is None or self.next_offset > MAX_NUMBER:
            return None
        common, headers = codec.MessageKind(partition, kind), self._headers
        if found := native.headers:
            headers = dict(found) | headers
        return native.messages(common, first, stop, self.next_offset, most, _TYPES, headers)

    def fitting(self, first: int, stop: int, size: int) -> tuple[int, int] | None:
        return None if self._native is None else self._native.fitting(first, stop, size)

    def messages(self) -> Iterator[Record]:
        """Iterate over the records, made on access."""
        return self.messages_as(_record)

    def _pieces(
        self, make: Callable[[tuple[Any, ...]], _Made], before: Sequence[Iterator[object]], first: int
    ) -> Iterator[Iterator[_Made]]:
        """`messages_as`, in pieces that are made without a line of Python for each record."""
        last = len(self) - 1
        headers_of = self.headers
        for run in self.runs:
            begin = max(first - run.first, 0)
            timestamps = islice(run.timestamps, begin, None)
            for start in range(begin, len(run.offsets), PIECE):
                offsets = run.offsets[start : start + PIECE]
                at = run.first + start
                stop = at + len(offsets)
                after: Iterable[int] = map(_SUCCESSOR, offsets)
                if stop > last:
                    after = chain(islice(after, len(offsets) - 1), (self.next_offset,))
                headers = map(headers_of.get, range(at, stop), repeat(())) if headers_of else repeat(())
                yield map(
                    make,
                    zip(
                        *before,
                        offsets,
                        repeat(0),
                        after,
                        self._payloads[at:stop],
                        self._keys[at:stop] if self._native is None else self._native.keys(at, stop),
                        islice(timestamps, len(offsets)),
                        repeat(run.timestamp_type),
                        headers,
                        strict=False,
                    ),
                )

    def _inside(self, count: int) -> int:
        run = self.runs[bisect_right(self.runs, count - 1, key=_FIRST) - 1]
        return run.offsets[count - 1 - run.first] + 1


def _header_buffers(offsets: bytes, names: NativeBinary, values: NativeBinary) -> HeaderBuffers:
    return HeaderBuffers(offsets, BinaryBuffers(*names), BinaryBuffers(*values))


def _run(
    first: int, offset: int, count: int, listed: bytes | None, kind: int, base_time: int, times: bytes, codec: int
) -> RecordRun:
    """Return a run from the native codec's fields."""
    offsets = range(offset, offset + count) if listed is None else array("q", listed)
    return RecordRun(first, offsets, TimestampType(kind), base_time, array("q", times), codec)
