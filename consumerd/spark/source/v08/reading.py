"""A split of offsets -> its rows as Arrow batches: the work of an executor's task.

Strategy: fetch, decode, cut to the range, and repeat from where the records end until the end of the split. Offsets may
have gaps: compaction removes records, and transaction markers are not records. The broker's response distinguishes a
gap from lost data: either it has the offset and skips ahead, or it does not have it any more. A broker that returns
nothing although its log continues may only be slow (a new leader, remote storage), so it is queried several times
before that counts as a gap at the end of the log.

A topic that was deleted and created again has another log, whose offsets do not belong to the split. Brokers since 3.1
reject a fetch that names the former id; of older ones that have ids the metadata are compared, before the first row and
after the last one.

Records arrive as lists of values and keys and as *runs* of offsets and timestamps (`consumerd.wire.v08.records`).
Numbers are collected run by run in typed arrays, whose memory becomes the column; values and keys become columns in
pieces of bounded size. Constant columns are made once and sliced.
"""

from __future__ import annotations

import logging
import time
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from consumerd.spark.lake.arrays import texts
from consumerd.spark.source.columns import HEADERS
from consumerd.spark.source.errors import (
    BrokerReadError,
    DataLossError,
    LogReplacedError,
    OffsetUnavailableError,
)
from consumerd.spark.source.request import (
    BATCH_BYTES,
    BATCH_ROWS,
    ConstantColumns,
    ReadRequest,
    SplitReader,
    numbers,
)
from consumerd.spark.source.v08.client import FetchedRecords, KafkaClient
from consumerd.wire.v07 import EARLIEST, LATEST, BatchEnd
from consumerd.wire.v08.records import Headers, RecordSet, decode_records
from consumerd.wire.v08.records.codecs import RecordCodec
from consumerd.wire.v08.records.record_set import RecordRun

if TYPE_CHECKING:
    from consumerd.spark.source.split import StoredSplit, V08Split

log = logging.getLogger(__name__)

#: Fetches are never larger, unless for one message or batch: what one of them brings is in memory several times.
_LARGEST_FETCH: Final = 8 << 20
#: Empty answers in a row after which a gap is believed. The broker takes its time for each.
_BELIEVED: Final = 5
#: Seconds before a request is repeated whose response may change soon.
_PAUSE: Final = 0.2
#: Bytes of a message or batch that its size field does not count.
_ROOM: Final = 12
_INT32: Final = (1 << 31) - 1


def read_v08_split(split: V08Split, request: ReadRequest) -> Iterator[pa.RecordBatch]:
    """The split's rows, in the order of the log.

    Raises MalformedMessageError in mode FAILFAST, DataLossError for offsets that are gone where that is to fail, and
    BrokerReadError. Memory: some times a fetch, or the largest message or batch, decompressed.
    """
    reader = _Reader(split, request)
    yield from reader.read()
    reader.end()


class _Reader(SplitReader):
    """One pass over one split."""

    _split: V08Split

    def __init__(self, split: V08Split, request: ReadRequest) -> None:
        super().__init__(split, request)
        self._partition = split.topic, split.partition
        self._rows = V08Rows(split, request.columns)
        self._usual = self._size = min(request.fetch_size, _LARGEST_FETCH)
        #: The bytes of a fetch that one message or batch may take.
        self._most = min(request.limits.max_message_bytes + _ROOM, _INT32)
        #: Empty answers in a row, and when the first of them came.
        self._empty = 0
        self._empty_since = 0.0

    def read(self) -> Iterator[pa.RecordBatch]:
        split, request = self._split, self.request
        position = split.start
        leaders, largest = {self._partition: split.leader}, max(self._usual, self._most)
        with KafkaClient(split.location, request.timeout, leaders=leaders, largest=largest) as client:
            while position < split.end:
                try:
                    answer = client.fetch(self._partition, position, self._size, split.topic_id)
                    if position == split.start and split.topic_id is not None and client.fetches_by_name:
                        client.must_have(split.topic, split.topic_id)
                except LogReplacedError as error:
                    self._lost_between(position, split.end, str(error))
                    return
                except OffsetUnavailableError as error:
                    position = self._gone(client, position, error)
                    continue
                records = decode_records(answer.data, position, limits=request.limits, aborted=answer.aborted)
                if (later := self._written_since(records)) is not None:
                    self._lost_between(position, split.end, later)
                    return
                yield from self._rows.batches(records, split.end)
                if records.next_offset > position:
                    self._size, self._empty = self._usual, 0
                    position = records.next_offset
                elif records.end is BatchEnd.CORRUPT or (records.end is BatchEnd.PARTIAL and self._size >= self._most):
                    following = min(records.resume_offset or position + 1, split.end)
                    yield from self._flaw(position, following, records)
                    position = following
                elif records.end is BatchEnd.PARTIAL:
                    self._size = min(max(records.needed or 0, 2 * self._size), self._most)
                else:
                    position = self._nothing(position, answer)
            if split.topic_id is not None and client.fetches_by_name:
                self._check_rows(client, split.topic_id)

    def _check_rows(self, client: KafkaClient, topic_id: str) -> None:
        """Fail the task if the topic was replaced while its rows were read: some may be of the other log."""
        try:
            client.must_have(self._split.topic, topic_id)
        except LogReplacedError as error:
            raise DataLossError(f"{error}, while {self._split} was read; run the query again") from error

    def _written_since(self, records: RecordSet) -> str | None:
        """Why records are not those that were planned: a leader that came later has written them."""
        epoch, last = records.log.leader_epoch, self._split.last_epoch
        if epoch is None or last is None or epoch <= last or not len(records):
            return None
        first = records.offsets[0]
        if first >= self._split.end:
            return None
        return (
            f"the messages at offset {first} are of leader epoch {epoch}, and the planned ones of {last} at most, so "
            "the log was cut off after the read was planned"
        )

    def _flaw(self, position: int, following: int, records: RecordSet) -> Iterator[pa.RecordBatch]:
        problem = records.problem or f"a message or batch larger than maxMessageBytes ({self._most - _ROOM})"
        if self.is_row(f"{self._split.topic}/{self._split.partition} cannot be read at offset {position}: {problem}"):
            yield self._rows.flaw(position, following, problem)

    def _nothing(self, position: int, answer: FetchedRecords) -> int:
        """Return the offset to continue at if the broker has the offset, and no records from there on."""
        if answer.throttled:  # the client is silent for as long as the broker wants
            return position
        now = time.monotonic()
        self._empty += 1
        if self._empty == 1:
            self._empty_since = now
        end = self._split.end
        if answer.reach >= end:
            if self._empty >= _BELIEVED:
                log.info("%s has no messages from offset %d to %d", self._split, position, end)
                return end
        elif now - self._empty_since > self.request.timeout:
            self._lost_between(position, end, f"the log ends at {answer.reach} now")
            return end
        time.sleep(_PAUSE)
        return position

    def _gone(self, client: KafkaClient, position: int, error: OffsetUnavailableError) -> int:
        """Return the offset to continue at if the broker does not have it. Raises DataLossError if that is to fail."""
        end = self._split.end
        first, last = (client.offsets([self._partition], when)[self._partition] for when in (EARLIEST, LATEST))
        if first is not None and position < first:
            following = min(first, end)
            self._lost_between(position, following, "the start of the log was deleted after the read was planned")
            return following
        if last is not None and position > last:
            self._lost_between(position, end, f"the log ends at {last} now")
            return end
        self._empty += 1  # it has it after all
        if self._empty > _BELIEVED:
            raise BrokerReadError(f"{error}, although it reports offsets {first} to {last}")
        time.sleep(_PAUSE)
        return position

    def _lost_between(self, start: int, end: int, why: str) -> None:
        self.lost(f"the offsets {start} to {end} of {self._split.topic}/{self._split.partition} no longer exist: {why}")


#: The values of the cells of `codec`, by number.
_CODECS: Final = texts([codec.name.lower() for codec in RecordCodec])
#: Spark cannot hold timestamps beyond: it counts microseconds in 64 bits.
_LAST_MS: Final = ((1 << 63) - 1) // 1000
_INT64: Final = 1 << 63


class V08Rows:
    """Makes the rows of one split. `columns`: names in the order in which the batches have them, at least one."""

    def __init__(self, split: V08Split | StoredSplit, columns: Sequence[str]) -> None:
        self._wanted = frozenset(columns)
        self._same = ConstantColumns(split, columns)
        #: A leader epoch, and a column of it: most sets have that of the one before.
        self._epochs: tuple[int | None, pa.Array] = None, pa.nulls(0, pa.int32())

    def batches(self, records: RecordSet, end: int) -> Iterator[pa.RecordBatch]:
        """The records below offset `end`."""
        count = len(records)
        if records.next_offset > end:
            count = bisect_left(records.offsets, end)
        if not count:
            return
        whole = {name: make(records.runs) for name, make in _BY_RUN.items() if name in self._wanted}
        if "next_offset" in self._wanted:
            offsets = whole["offset"] if "offset" in whole else _offsets(records.runs)
            # Not where the next record is: that would depend on what compaction has left by now.
            whole["next_offset"] = pc.add(offsets, pa.scalar(1, pa.int64()))
        payloads, keys, headers = records.payloads, records.keys, records.headers
        if "leader_epoch" in self._wanted:
            whole["leader_epoch"] = self._epoch_column(records.log.leader_epoch, count)
        for first, last in _pieces(records, count):
            columns = {name: column.slice(first, last - first) for name, column in whole.items()}
            for name, values in (("value", payloads), ("key", keys)):
                if name in self._wanted:
                    columns[name] = pa.array(values[first:last], pa.binary())
            if HEADERS.name in self._wanted and headers:
                columns[HEADERS.name] = _headers([headers.get(number) for number in range(first, last)])
            yield self._same.batch(columns, last - first)

    def _epoch_column(self, epoch: int | None, rows: int) -> pa.Array:
        known, column = self._epochs
        if known != epoch or len(column) < rows:
            column = pa.repeat(pa.scalar(epoch, pa.int32()), rows)
            self._epochs = epoch, column
        return column.slice(0, rows)

    def flaw(self, offset: int, next_offset: int, problem: str) -> pa.RecordBatch:
        """One row that says why the bytes at `offset` cannot be read."""
        columns = {
            "offset": pa.array([offset], pa.int64()),
            "next_offset": pa.array([next_offset], pa.int64()),
            "codec": pa.nulls(1, pa.string()),
            "crc_ok": pa.array([False]),
            "_corrupt": pa.array([problem], pa.string()),
        }
        return self._same.batch(columns, 1)


def _pieces(records: RecordSet, count: int) -> Iterator[tuple[int, int]]:
    """Ranges of the first `count` records that fit into a batch each."""
    if records.memory_bytes <= BATCH_BYTES and count <= BATCH_ROWS:
        yield 0, count
        return
    first = size = 0
    pairs = zip(records.payloads[:count], records.keys, strict=False)
    for number, (value, key) in enumerate(pairs):
        size += len(value or b"") + len(key or b"")
        if size >= BATCH_BYTES or number + 1 - first >= BATCH_ROWS:
            yield first, number + 1
            first, size = number + 1, 0
    if first < count:
        yield first, count


def _offsets(runs: Iterable[RecordRun]) -> pa.Array:
    found = array("q")
    for run in runs:
        found.extend(run.offsets)
    return numbers(found, pa.int64())


def _timestamps(runs: Iterable[RecordRun]) -> pa.Array:
    """Return timestamps in microseconds; null where there is none, or none that Spark can hold."""
    found = array("q")
    for run in runs:
        try:
            found.extend(array("q", run.timestamps))
        except OverflowError:  # a delta that no producer writes
            found.extend(each if -_INT64 <= each < _INT64 else -1 for each in run.timestamps)
    milliseconds = numbers(found, pa.int64())
    fine = pc.and_(pc.greater_equal(milliseconds, 0), pc.less_equal(milliseconds, _LAST_MS))
    held = pc.if_else(fine, milliseconds, pa.scalar(None, pa.int64()))
    return pc.multiply(held, pa.scalar(1000, pa.int64())).cast(pa.timestamp("us", tz="UTC"))


def _types(runs: Iterable[RecordRun]) -> pa.Array:
    """0: the producer's time, 1: that of appending; null for messages that have none."""
    found = array("i")
    for run in runs:
        found.extend(array("i", (run.timestamp_type,)) * len(run.offsets))
    kinds = numbers(found, pa.int32())
    return pc.if_else(pc.less(kinds, 0), pa.scalar(None, pa.int32()), kinds)


def _codecs(runs: Iterable[RecordRun]) -> pa.Array:
    found = array("b")
    for run in runs:
        found.extend(array("b", (run.codec,)) * len(run.offsets))
    return _CODECS.take(numbers(found, pa.int8()))


_BY_RUN: Final[dict[str, Callable[[Iterable[RecordRun]], pa.Array]]] = {
    "offset": _offsets,
    "timestamp": _timestamps,
    "timestampType": _types,
    "codec": _codecs,
}


def _headers(found: Sequence[Headers | None]) -> pa.Array:
    """Null for records without any, as Spark's Kafka connector has it."""
    rows = [None if not headers else [{"key": key, "value": value} for key, value in headers] for headers in found]
    return pa.array(rows, HEADERS.arrow)
