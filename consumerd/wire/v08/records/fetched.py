"""The record data of a fetch response -> `RecordSet`, for all record formats.

Strategy: magic, size and first offset stand at the same places in all three formats, so one loop reads the header of
each message or batch and passes it to its reader. Nothing is raised for invalid bytes: the set holds the readable
records and the reason for its end. A broker starts with the batch or wrapper that holds the requested offset; records
below it are dropped. Offsets only grow: what goes back is corrupt. The native codec takes all that is whole and intact
at once; what it stops at is read here, so that every verdict is.

A leader epoch is part of a log's identity, so batches of one set have the same: it ends where another one begins, which
is once in an election, and the next fetch continues there. Messages of the older formats have none.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import islice
from operator import ge
from typing import Unpack, cast

from consumerd.base import native as native_codec
from consumerd.base.native import NativeCodec, NativeLimits, NativeRecords
from consumerd.base.partition import LogId
from consumerd.wire.batch import BatchEnd, BatchEnding, memory_of
from consumerd.wire.column_buffers import Headers
from consumerd.wire.errors import CorruptMessageError, DecompressionError
from consumerd.wire.v07.constants import DEFAULT_LIMITS, DecodeLimits
from consumerd.wire.v08.records import message_set, record_batch
from consumerd.wire.v08.records.codecs import CODEC_MASK, decompress
from consumerd.wire.v08.records.columns import RecordColumns
from consumerd.wire.v08.records.record_batch import BatchHeader
from consumerd.wire.v08.records.record_set import RecordRun, RecordSet, TimestampType

_OFFSET_AND_SIZE = struct.Struct(">qi")
_LEADER_EPOCH = struct.Struct(">i")
#: Bytes of offset and size, which the size does not count.
LOG_OVERHEAD = _OFFSET_AND_SIZE.size
#: Position of the magic in all formats.
_MAGIC = 16
_MIN_SIZE = (*message_set.MIN_SIZE, record_batch.MIN_LENGTH)
#: The position after it has to be a 64-bit number, too.
_MAX_OFFSET = (1 << 63) - 2
#: The key of a control record: version and type.
_MARKER = struct.Struct(">hh")
_ABORT = 0
#: Positions of the native codec's index have 32 bits: input and output must stay below.
_NATIVE_BYTES = 0xFFFFFFFF


class AbortedTransactions:
    """The batches of aborted transactions in one fetch; `transactions`: (producer id, first offset) of each.

    From that offset on the producer's transactional batches are aborted, until the control batch that ends the
    transaction. Fed with the batches in the order of offsets.
    """

    __slots__ = ("_active", "_coming")

    def __init__(self, transactions: Iterable[tuple[int, int]] = ()) -> None:
        #: By first offset, the next one at the end.
        self._coming = sorted(transactions, key=lambda one: one[1], reverse=True)
        self._active: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._coming or self._active)

    def covers(self, header: BatchHeader) -> bool:
        """Whether the transactional batch `header` is of an aborted transaction."""
        self._begin(header)
        return header.producer_id in self._active

    def end(self, header: BatchHeader, marker: bytes | None) -> None:
        """A control batch; `marker`: the key of its record."""
        self._begin(header)
        if _is_abort(marker):
            self._active.discard(header.producer_id)

    def _begin(self, header: BatchHeader) -> None:
        last = header.base_offset + header.last_offset_delta
        while self._coming and self._coming[-1][1] <= last:
            self._active.add(self._coming.pop()[0])


def _is_abort(marker: bytes | None) -> bool:
    return marker is not None and len(marker) >= _MARKER.size and _MARKER.unpack_from(marker)[1] == _ABORT


class _NativeAborted:
    """As `AbortedTransactions`, of what the native codec knows of them."""

    __slots__ = ("_index",)

    def __init__(self, index: NativeRecords) -> None:
        self._index = index

    def __bool__(self) -> bool:
        return self._index.any_aborted

    def covers(self, header: BatchHeader) -> bool:
        return self._index.is_aborted(header.producer_id, header.last_offset)

    def end(self, header: BatchHeader, marker: bytes | None) -> None:
        self._index.is_aborted(header.producer_id, header.last_offset)
        if _is_abort(marker):
            self._index.end_aborted(header.producer_id)


def decode_records(
    data: bytes | bytearray | memoryview,
    offset: int,
    *,
    limits: DecodeLimits = DEFAULT_LIMITS,
    aborted: Iterable[tuple[int, int]] = (),
) -> RecordSet:
    """Decode the record data of one partition, fetched at `offset`.

    `aborted`: (producer id, first offset) of the aborted transactions that the response names; their records are left
    out, as a consumer of isolation READ_COMMITTED wants it. `limits.max_message_bytes` is that of a whole message or
    batch; `limits.max_depth` has no meaning here. Never raises for bad bytes: it stops there and says so. The set
    keeps `data` alive only where its `memory_bytes` cover that.
    """
    native = native_codec.in_use
    if native is not None and 2 * (len(data) + limits.max_decompressed_bytes) <= _NATIVE_BYTES:
        if not (
            isinstance(data, memoryview) and isinstance(data.obj, bytes) and data.contiguous and data.format == "B"
        ):
            data = bytes(data)
        codec, known, bounds = _latest_limits
        if codec is not native or known is not limits:
            bounds = record_limits(native, limits)
        index, place, size, epoch = native.read_records(data, offset, list(aborted), bounds)
        if place[0] == len(data):  # nearly always
            made = RecordSet(index, [], {}, [], offset, place[2], size)
            if epoch is not None:
                made.log = _log_of(epoch)
            return made
        return _NativeDecoder(data, offset, limits, index, bounds, place).decode()
    return _Decoder(bytes(data), offset, limits, AbortedTransactions(aborted)).decode()


class _Decoder:
    """One decode: the state that the steps share."""

    __slots__ = (
        "aborted",
        "columns",
        "data",
        "expanded",
        "leader_epoch",
        "least",
        "limits",
        "next_offset",
        "offset",
        "position",
        "runs",
    )

    def __init__(
        self, data: bytes, offset: int, limits: DecodeLimits, aborted: AbortedTransactions | _NativeAborted
    ) -> None:
        self.data = data
        self.offset = offset
        self.limits = limits
        self.aborted = aborted
        self.columns = RecordColumns()
        self.runs: list[RecordRun] = []
        self.position = 0
        #: The least offset that may follow in the data.
        self.least = 0
        self.next_offset = offset
        self.expanded = 0
        #: Of what was read, if that had one.
        self.leader_epoch: int | None = None

    def decode(self) -> RecordSet:
        data, end = self.data, len(self.data)
        while self._advanced() < end:
            left = end - self.position
            if left < LOG_OVERHEAD:
                return self._set(end=BatchEnd.PARTIAL)
            offset, size = _OFFSET_AND_SIZE.unpack_from(data, self.position)
            if not _MIN_SIZE[0] <= size <= self.limits.max_message_bytes:
                problem = f"the message at offset {offset} has the impossible size {size}"
                return self._set(end=BatchEnd.CORRUPT, problem=problem)
            if left < LOG_OVERHEAD + size:
                return self._set(end=BatchEnd.PARTIAL, needed=LOG_OVERHEAD + size)
            first, magic = len(self.columns), data[self.position + _MAGIC]
            epoch = self._epoch_of(magic)
            if epoch is not None and self.leader_epoch not in (None, epoch):
                break
            try:
                taken = self._next(magic)
            except CorruptMessageError as error:
                self.columns.cut(first)
                return self._corrupt(error)
            if not taken:
                return self._set(end=BatchEnd.PARTIAL, needed=LOG_OVERHEAD + size)
            if epoch is not None and self.next_offset > self.offset:
                self._note_epoch(epoch)
        return self._set(end=BatchEnd.COMPLETE)

    def _epoch_of(self, magic: int) -> int | None:
        """The leader epoch of what stands at the position, if it has one."""
        if magic != record_batch.MAGIC:
            return None
        epoch: int = _LEADER_EPOCH.unpack_from(self.data, self.position + LOG_OVERHEAD)[0]
        return epoch if epoch >= 0 else None

    def _note_epoch(self, epoch: int) -> None:
        self.leader_epoch = epoch

    def _advanced(self) -> int:
        """The position, after what goes fast, if anything."""
        return self.position

    def _next(self, magic: int) -> bool:
        """Read what stands at the position; False if it is compressed and the set has no room for more."""
        if magic == record_batch.MAGIC:
            return self._batch()
        if magic > record_batch.MAGIC:
            raise CorruptMessageError(f"the unknown magic {magic}")
        attributes = self.data[self.position + _MAGIC + 1]
        if attributes & CODEC_MASK == 0 and self._row(magic, attributes):
            return True
        return self._message()

    def _row(self, magic: int, attributes: int) -> bool:
        """Read the row of plain messages here; False if there is none, or only one that is the last of the data."""
        first, start = len(self.columns), self.position
        row = message_set.walk(self.data, start, magic, attributes, self.columns)
        if not row.offsets:
            return False
        self._check(row.offsets[0], row.offsets[-1])
        self.position = row.position
        kind = message_set.timestamp_type(magic, attributes)
        self._add(RecordRun(first, row.offsets, kind, 0, row.timestamps), self.position - start)
        return True

    def _message(self) -> bool:
        message = message_set.read_message(self.data, self.position)
        self._check(message.offset, message.offset)
        kind = message_set.timestamp_type(message.magic, message.attributes)
        first = len(self.columns)
        if message.attributes & CODEC_MASK == 0:
            self.columns.add(message.key, message.value, ())
            stored = message.end - self.position
            self._add(RecordRun(first, range(message.offset, message.offset + 1), kind, 0, [message.timestamp]), stored)
        elif message.offset >= self.offset:
            if self._is_full():
                return False
            limit = self.limits.max_decompressed_bytes
            offsets, timestamps, expanded = message_set.unwrap(message, self.columns, limit=limit)
            if offsets:
                self._check(offsets[0], offsets[-1])
                if offsets[-1] > message.offset > 0 or any(map(ge, offsets, islice(offsets, 1, None))):
                    raise CorruptMessageError("messages whose offsets do not grow up to its own")
            self.expanded += expanded
            self._add(RecordRun(first, offsets, kind, 0, timestamps, message.attributes & CODEC_MASK), expanded)
        self._advance(message.offset)
        self.position = message.end
        return True

    def _batch(self) -> bool:
        start = self.position
        if len(self.data) - start < record_batch.HEADER.size:
            raise CorruptMessageError("less than the header of a batch")
        header = record_batch.read_header(self.data, start)
        end = start + LOG_OVERHEAD + header.length
        if header.length < record_batch.MIN_LENGTH:
            raise CorruptMessageError(f"a length of {header.length}, less than any batch has")
        # 2 MiB, with the library of C++: not before the first batch, nor with the native codec.
        from consumerd.wire.v08.records.crc32c import crc32c  # noqa: PLC0415

        crc = crc32c(self.data[start + record_batch.CRC_END : end])
        if crc != header.crc:
            raise CorruptMessageError(f"a CRC of {crc:08x} where its header says {header.crc:08x}")
        if header.last_offset_delta < 0:
            raise CorruptMessageError(f"a last offset delta of {header.last_offset_delta}")
        self._check(header.base_offset, header.last_offset)
        start += record_batch.HEADER.size
        if header.control:
            self._control(header, start, end)
        elif header.last_offset >= self.offset and not (header.transactional and self.aborted.covers(header)):
            if header.attributes & CODEC_MASK:
                if self._is_full():
                    return False
                limit = self.limits.max_decompressed_bytes
                body = decompress(header.attributes, self.data[start:end], record_batch.MAGIC, limit=limit)
                self.expanded += len(body)
                self._records(header, body, 0, len(body))
            else:
                self._records(header, self.data, start, end)
        self._advance(header.last_offset)
        self.position = end
        return True

    def _control(self, header: BatchHeader, start: int, end: int) -> None:
        if self.aborted:
            marker = RecordColumns()
            record_batch.read_records(self.data, start, end, header, marker)
            self.aborted.end(header, marker.keys[0] if marker.keys else None)

    def _records(self, header: BatchHeader, data: bytes, start: int, end: int) -> None:
        first = len(self.columns)
        deltas, times = record_batch.read_records(data, start, end, header, self.columns)
        base = header.base_offset
        offsets: Sequence[int]
        if isinstance(deltas, range):
            offsets = range(base + deltas.start, base + deltas.stop)
        else:
            offsets = [base + delta for delta in deltas]
        kind, base_time = TimestampType.CREATE_TIME, header.base_timestamp
        if header.log_append_time:
            kind, base_time, times = TimestampType.LOG_APPEND_TIME, header.max_timestamp, [0] * len(times)
        self._add(RecordRun(first, offsets, kind, base_time, times, header.attributes & CODEC_MASK), end - start)

    def _is_full(self) -> bool:
        memory = memory_of(len(self.columns), self.columns.record_bytes)
        return memory >= self.limits.max_batch_bytes or self.expanded >= self.limits.max_decompressed_bytes

    def _check(self, first: int, last: int) -> None:
        """Raise CorruptMessageError unless offsets from `first` to `last` may follow."""
        if last > _MAX_OFFSET:
            raise CorruptMessageError(f"offset {last}, after which there is no other")
        if first < self.least:
            raise CorruptMessageError(f"offset {first} where offset {self.least} is the least that may follow")

    def _advance(self, last: int) -> None:
        self.least = max(self.least, last + 1)
        self.next_offset = max(self.next_offset, self.least)

    def _add(self, run: RecordRun, stored: int) -> None:
        """Take up a run, without records below the requested offset; `stored`: its bytes in the data."""
        first, offsets = run.first, run.offsets
        if not offsets:
            return
        self._advance(offsets[-1])
        if offsets[0] < self.offset:
            below = bisect_left(offsets, self.offset)
            self.columns.drop(first, below)
            run = run._replace(offsets=offsets[below:], times=run.times[below:])
        if run.offsets:
            self.columns.account(first, stored)
            self.runs.append(run)

    def _corrupt(self, error: CorruptMessageError) -> RecordSet:
        """End at a whole but bad message. Reading can continue if its offset is possible and another may follow."""
        offset, size = _OFFSET_AND_SIZE.unpack_from(self.data, self.position)
        batch = self.data[self.position + _MAGIC] == record_batch.MAGIC
        what = f"the {'batch' if batch else 'message'} at offset {offset}"
        after = offset + 1
        if batch and size >= record_batch.MIN_LENGTH:
            after += max(0, record_batch.read_header(self.data, self.position).last_offset_delta)
        believed = self.next_offset < after <= _MAX_OFFSET and self._plausible(
            self.position + LOG_OVERHEAD + size, after
        )
        verb = "cannot be decompressed:" if isinstance(error, DecompressionError) else "has"
        return self._set(
            end=BatchEnd.CORRUPT, problem=f"{what} {verb} {error}", resume_offset=after if believed else None
        )

    def _plausible(self, position: int, least: int) -> bool:
        """Whether a message or batch could begin at `position`, as far as the data shows."""
        if len(self.data) - position <= _MAGIC:
            return True
        offset, size = _OFFSET_AND_SIZE.unpack_from(self.data, position)
        magic = self.data[position + _MAGIC]
        return bool(
            offset >= least and magic < len(_MIN_SIZE) and _MIN_SIZE[magic] <= size <= self.limits.max_message_bytes
        )

    def _set(self, **ending: Unpack[BatchEnding]) -> RecordSet:
        columns = self.columns
        made = RecordSet(
            columns.payloads,
            columns.keys,
            columns.headers,
            self.runs,
            self.offset,
            self.next_offset,
            columns.record_bytes,
            **ending,
        )
        return _identified(made, self.leader_epoch)


class _NativeDecoder(_Decoder):
    """One decode in which the native codec takes all that is whole and intact.

    Everything else stops it, and is judged by the pure code, whose verdicts and words therefore are the only ones.
    """

    __slots__ = ("headers", "index", "native_limits", "whole")

    def __init__(
        self,
        data: bytes | memoryview,
        offset: int,
        limits: DecodeLimits,
        index: NativeRecords,
        native_limits: NativeLimits,
        place: tuple[int, int, int, int],
    ) -> None:
        self.index = index
        self.native_limits = native_limits
        #: Of the records that the pure code has read.
        self.headers: dict[int, Headers] = {}
        #: Whether `data` are bytes, as the readers of single things need them.
        self.whole = isinstance(data, bytes)
        super().__init__(cast("bytes", data), offset, limits, _NativeAborted(self.index))
        self.position, self.least, self.next_offset, self.expanded = place

    def _advanced(self) -> int:
        place = (self.position, self.least, self.next_offset, self.expanded)
        self.position, self.least, self.next_offset, self.expanded = self.index.read(place, self.native_limits)
        self.leader_epoch = self.index.leader_epoch
        return self.position

    def _next(self, magic: int) -> bool:
        if not self.whole:
            self.data, self.whole = bytes(self.data), True
        taken = super()._next(magic)
        self._hand_over()
        return taken

    def _hand_over(self) -> None:
        """Add to the index what the pure code has read."""
        columns, first = self.columns, len(self.index)
        if not self.runs:
            return
        assert len(self.runs) == 1
        run = self.runs.pop()
        self.index.add(
            columns.payloads,
            columns.keys,
            run.offsets,
            run.timestamp_type,
            run.base_time,
            run.times,
            run.codec,
            columns.record_bytes,
        )
        self.headers.update((first + number, found) for number, found in columns.headers.items())
        self.columns = RecordColumns()

    def _is_full(self) -> bool:
        memory = memory_of(len(self.index), self.index.record_bytes)
        return memory >= self.limits.max_batch_bytes or self.expanded >= self.limits.max_decompressed_bytes

    def _set(self, **ending: Unpack[BatchEnding]) -> RecordSet:
        return _native_set(self.index, self.headers, self.offset, self.next_offset, **ending)

    def _note_epoch(self, epoch: int) -> None:
        self.leader_epoch = self.index.leader_epoch = epoch


def _native_set(
    index: NativeRecords, headers: dict[int, Headers], offset: int, next_offset: int, **ending: Unpack[BatchEnding]
) -> RecordSet:
    index.settle()
    made = RecordSet(index, [], headers, [], offset, next_offset, index.record_bytes, **ending)
    return _identified(made, index.leader_epoch)


def _identified(made: RecordSet, leader_epoch: int | None) -> RecordSet:
    if leader_epoch is not None:
        made.log = _log_of(leader_epoch)
    return made


@lru_cache(maxsize=64)
def _log_of(leader_epoch: int) -> LogId:
    """The log of an epoch; mostly found without a call of Python code."""
    return LogId(leader_epoch=leader_epoch)


#: What `record_limits` returned last, and of what: finding it by the values of all limits takes longer than decoding
#: a message that is alone.
_latest_limits: tuple[NativeCodec | None, DecodeLimits | None, NativeLimits] = (None, None, cast("NativeLimits", None))


def record_limits(native: NativeCodec, limits: DecodeLimits) -> NativeLimits:
    """The limits as the native codec reads them."""
    global _latest_limits  # noqa: PLW0603 - a cache of one
    codec, known, found = _latest_limits
    if codec is not native or known is not limits:
        found = _native_limits(native, limits)
        _latest_limits = native, limits, found
    return found


@lru_cache(maxsize=16)
def _native_limits(native: NativeCodec, limits: DecodeLimits) -> NativeLimits:
    return native.Limits(
        max_message_bytes=limits.max_message_bytes,
        max_wrapper_bytes=limits.max_decompressed_bytes,
        max_decompressed_bytes=limits.max_decompressed_bytes,
        max_batch_bytes=limits.max_batch_bytes,
        max_depth=limits.max_depth,
        max_pieces=limits.max_pieces,
    )
