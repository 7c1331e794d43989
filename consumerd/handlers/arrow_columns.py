"""Batches as Arrow record batches: the columns of `Batch.to_arrow` and of the handler `parquet`.

Columns: those of an export that say which message it is (`consumerd.storage.archives.parquet`), then `key`,
`timestamp`, `raw_timestamp`, `headers` and `payload`. Messages of 0.7 have null in the former four; a null payload is a
tombstone.

A time after the year 9999, such as microseconds where Kafka has milliseconds, makes a column of times unreadable for
Spark, Python and others. `timestamp` is null then, and the number is in `raw_timestamp`, which is null otherwise.

Strategy: where the native codec holds the messages, it writes the buffers of the columns, and
`pyarrow.Array.from_buffers` takes these as they are: no object is created for any message. Other messages are made some
thousands at a time. Both ways give equal buffers. 32-bit offsets never overflow: a larger column is an error.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, islice
from typing import Any, Final

from consumerd.base.partition import NO_BROKER, TopicPartition
from consumerd.handlers.contents import Content, Source, known_timestamp
from consumerd.storage.archives.arrays import MOST_BYTES as MOST_NARROW
from consumerd.storage.archives.arrays import array_of, data_size, header_lists
from consumerd.storage.archives.extras import extra
from consumerd.storage.archives.parquet import identity_fields, same_text
from consumerd.wire.batch import DecodedBatch
from consumerd.wire.column_buffers import ColumnBuffers

#: The most bytes in a column whose offsets have 32 bits, and in one whose offsets have 64.
MOST_BYTES: Final = {False: MOST_NARROW, True: (1 << 63) - 1}
#: Messages that are objects at the same time.
PIECE: Final = 1 << 14
#: Payloads whose sizes are looked at at once.
_SIZES: Final = 1024
#: The last millisecond of the year 9999.
LAST_TIME: Final = 253_402_300_799_999
#: The columns that are the same for all messages of a batch come first.
_SAME: Final = 3


@lru_cache(maxsize=2)
def arrow_schema(arrow: Any, *, large: bool = False) -> Any:
    """The columns, of `arrow`, the module `pyarrow`. Offsets of `key` and `payload` have 64 bits if `large`."""
    binary = arrow.large_binary() if large else arrow.binary()
    header = arrow.struct([arrow.field("name", arrow.string(), nullable=False), arrow.field("value", arrow.binary())])
    return arrow.schema(
        [
            *identity_fields(arrow),
            arrow.field("key", binary),
            arrow.field("timestamp", arrow.timestamp("ms", tz="UTC")),
            arrow.field("raw_timestamp", arrow.int64()),
            arrow.field("headers", arrow.list_(header)),
            arrow.field("payload", binary),
        ]
    )


def record_batch(partition: TopicPartition, sources: Iterable[Source], count: int, *, large: bool = False) -> Any:
    """As `Batch.to_arrow`, of `count` messages of a partition."""
    arrow = extra("pyarrow", "Batch.to_arrow()")
    columns = _Columns(arrow, arrow_schema(arrow, large=large), large=large)
    try:
        varying = columns.joined([piece for source in sources for piece in columns.pieces(*source)])
    except OverflowError as error:
        raise OverflowError(
            f"{error}, which one Arrow column cannot hold: "
            "convert parts of the batch (Batch.part), or call to_arrow(large=True)"
        ) from error
    topic, broker, number = partition
    same = [
        same_text(arrow, topic, count),
        _same_number(arrow, None if broker == NO_BROKER else broker, count),
        _same_number(arrow, number, count),
    ]
    return arrow.RecordBatch.from_arrays([*same, *varying], schema=columns.schema)


def _same_number(arrow: Any, number: int | None, count: int) -> Any:
    """A column of `count` equal numbers."""
    if number is None:
        return arrow.nulls(count, arrow.int32())
    return arrow.Array.from_buffers(arrow.int32(), count, [None, arrow.py_buffer(array("i", (number,)) * count)])


def count_within(sources: Iterable[Source], count: int, size: int) -> int:
    """How many of the first messages are at most `count`, with payloads of at most `size` bytes together.

    At least 1: a message that is larger is alone.
    """
    found, room = 0, size
    for content, start, end in sources:
        stop = min(end, start + count - found)
        number, used = _fitting(content, start, stop, room)
        found, room = found + number - start, room - used
        if number < end:
            break
    return max(found, 1)


def _fitting(content: Content, first: int, stop: int, size: int) -> tuple[int, int]:
    """As `DecodedBatch.fitting`, of any content."""
    native = content.fitting(first, stop, size) if isinstance(content, DecodedBatch) else None
    if native is not None:
        return native
    used = 0
    for start in range(first, stop, _SIZES):
        sizes = [len(payload or b"") for payload in content[start : min(start + _SIZES, stop)]]
        sums = list(accumulate(sizes, initial=used))
        number = bisect_right(sums, size) - 1
        used = sums[number]
        if number < len(sizes):
            return start + number, used
    return stop, used


class _Columns:
    """The columns that vary from message to message, in the order of the schema."""

    def __init__(self, arrow: Any, schema: Any, *, large: bool) -> None:
        self._arrow = arrow
        self._large = large
        self._most = MOST_BYTES[large]
        self.schema = schema
        self._fields = list(schema)[_SAME:]

    def joined(self, pieces: Sequence[list[Any]]) -> list[Any]:
        """The columns of consecutive pieces. Raises OverflowError."""
        if not pieces:
            return [self._arrow.array([], field.type) for field in self._fields]
        if len(pieces) == 1:
            return pieces[0]
        columns = dict(zip((field.name for field in self._fields), zip(*pieces, strict=True), strict=True))
        for name in ("payload", "key"):
            self._check(f"{name}s", sum(data_size(column, large=self._large) for column in columns[name]))
        return [self._arrow.concat_arrays(arrays) for arrays in columns.values()]

    def pieces(self, content: Content, first: int, stop: int) -> Iterator[list[Any]]:
        """The columns of messages of a content. Raises OverflowError."""
        buffers = None
        if isinstance(content, DecodedBatch):
            buffers = content.column_buffers(first, stop, self._most, wide=self._large)
        if buffers is not None:
            yield self._from_buffers(buffers, first, stop - first)
            return
        messages = islice(content.messages_as(tuple, first=first), stop - first)
        while piece := list(islice(messages, PIECE)):
            yield self._from_objects(piece)

    def _from_buffers(self, buffers: ColumnBuffers, first: int, count: int) -> list[Any]:
        offset, index, next_offset, key, timestamp, raw, headers, payload = (field.type for field in self._fields)
        return [
            self._array(offset, count, b"", buffers.offset),
            self._array(index, count, b"", buffers.index or bytes(4 * count)),
            self._array(next_offset, count, b"", buffers.next_offset),
            self._nulls(key, count) if buffers.key is None else self._array(key, count, *buffers.key),
            *(
                [self._nulls(timestamp, count), self._nulls(raw, count)]
                if buffers.timestamp is None
                else self._times(timestamp, self._array(raw, count, *buffers.timestamp))
            ),
            self._headers(headers, buffers, first, count),
            self._array(payload, count, *buffers.payload),
        ]

    def _times(self, kind: Any, numbers: Any) -> list[Any]:
        """The columns `timestamp`, of the type `kind`, and `raw_timestamp`, of milliseconds or null."""
        compute = extra("pyarrow.compute", "Batch.to_arrow()")
        if (compute.max(numbers).as_py() or 0) <= LAST_TIME:
            return [numbers.view(kind), self._nulls(numbers.type, len(numbers))]
        fits, null = compute.less_equal(numbers, LAST_TIME), self._arrow.scalar(None, numbers.type)
        return [compute.if_else(fits, numbers, null).view(kind), compute.if_else(fits, null, numbers)]

    def _headers(self, kind: Any, buffers: ColumnBuffers, first: int, count: int) -> Any:
        if buffers.timestamp is None:
            return self._nulls(kind, count)  # 0.7
        return header_lists(self._arrow, kind, buffers.headers, first, count)

    def _array(self, kind: Any, count: int, validity: bytes, *buffers: bytes) -> Any:
        return array_of(self._arrow, kind, count, validity, *buffers)

    def _nulls(self, kind: Any, count: int) -> Any:
        return self._arrow.nulls(count, kind)

    def _from_objects(self, messages: list[tuple[Any, ...]]) -> list[Any]:
        count, kinds = len(messages), {field.name: field.type for field in self._fields}
        offsets, indexes, nexts, payloads, *later = zip(*messages, strict=True)
        found: dict[str, Any] = {"offset": offsets, "index": indexes, "next_offset": nexts}
        times: dict[str, Any] = {}
        self._check("payloads", _size(payloads))
        if later:
            keys, numbers, _, headers = later
            self._check("keys", _size(keys))
            found["key"] = keys
            numbers = self._arrow.array([*map(known_timestamp, numbers)], kinds["raw_timestamp"])
            times = dict(zip(("timestamp", "raw_timestamp"), self._times(kinds["timestamp"], numbers), strict=True))
            found["headers"] = [_header_list(each) for each in headers]
        found["payload"] = payloads
        made = times | {name: self._arrow.array(values, kinds[name]) for name, values in found.items()}
        return [made[name] if name in made else self._nulls(kind, count) for name, kind in kinds.items()]

    def _check(self, what: str, size: int) -> None:
        """Raises OverflowError, with the native codec's words, if a column does not hold `size` bytes."""
        if size > self._most:
            raise OverflowError(f"the {what} have more than {self._most} bytes")


def _size(payloads: Sequence[bytes | None]) -> int:
    return sum(len(payload or b"") for payload in payloads)


def _header_list(headers: Sequence[tuple[str, bytes | None]]) -> list[dict[str, Any]]:
    return [{"name": name, "value": value} for name, value in headers]
