"""A handler's batch -> rows of bronze, with the columns and values that `land` writes.

Strategy: the columns that a batch has as Arrow (`Batch.to_arrow`) are taken as they are; those that are the same for
all of its messages are repeated; whose clock a time is of, and the compression, follow from the runs of its content. Of
a compressed message of 0.7 the daemon does not keep the codec, so it is null.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from consumerd.base.partition import NO_BROKER
from consumerd.handlers.arrow_columns import count_within
from consumerd.handlers.contents import Source
from consumerd.handlers.messages import Batch
from consumerd.spark.lake.arrays import repeated, texts
from consumerd.spark.source.columns import HEADERS
from consumerd.spark.source.request import BATCH_ROWS, numbers
from consumerd.wire.v07.batch import MessageBatch
from consumerd.wire.v08.records.codecs import RecordCodec
from consumerd.wire.v08.records.record_set import RecordSet

#: Payload bytes of rows that are made at once.
_BYTES: Final = 4 << 20
#: Milliseconds beyond which Spark cannot hold a time: it counts microseconds in 64 bits.
_LAST_MS: Final = ((1 << 63) - 1) // 1000
_CODECS: Final = pa.concat_arrays([texts([codec.name.lower() for codec in RecordCodec]), pa.nulls(1, pa.string())])
_NO_CODEC: Final = len(RecordCodec)
#: The place of `timestamp_type` among the fields of a `KeyedMessage` after its partition.
_TYPE: Final = 6


def rows_of(batch: Batch, first_offset: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The messages from `first_offset` on, in pieces. `schema`: columns of `consumerd.spark.source.columns`."""
    first = 0
    while first < len(batch):
        piece = batch.part(first, count_within(batch.sources(first), BATCH_ROWS, _BYTES))
        first += len(piece)
        rows = _rows(piece, schema)
        behind = pc.greater_equal(rows.column("offset"), pa.scalar(first_offset, pa.int64()))
        kept = rows if pc.all(behind).as_py() else rows.filter(behind)
        if kept.num_rows:
            yield kept


def _rows(batch: Batch, schema: pa.Schema) -> pa.RecordBatch:
    found, count, partition = batch.to_arrow(), len(batch), batch.partition
    offset, next_offset = found.column("offset"), found.column("next_offset")
    if batch.keyed:
        # Not where the next record is: that would depend on what compaction has left by now.
        next_offset = pc.add(offset, pa.scalar(1, pa.int64()))
    same = {
        "topic": partition.topic,
        "partition": partition.partition,
        "broker": None if partition.broker == NO_BROKER else partition.broker,
        "broker_partition": partition.name,
        "topic_id": batch.topic_id,
        "leader_epoch": batch.leader_epoch,
        "crc_ok": True,
    }
    columns: dict[str, pa.Array] = {
        "key": found.column("key"),
        "value": found.column("payload"),
        "offset": offset,
        "index": found.column("index"),
        "timestamp": _times(found.column("timestamp"), found.column("raw_timestamp")),
        "next_offset": next_offset,
    }
    kinds, codecs = _runs(batch.sources(), keyed=batch.keyed)
    columns["timestampType"] = pc.if_else(pc.less(kinds, 0), pa.scalar(None, pa.int32()), kinds)
    columns["codec"] = _CODECS.take(codecs)
    if HEADERS.name in schema.names:
        columns[HEADERS.name] = _headers(found.column("headers"))
    arrays = [
        columns[each.name] if each.name in columns else repeated(same.get(each.name), each.type, count)
        for each in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _times(times: pa.Array, raw: pa.Array) -> pa.Array:
    """Microseconds; null where there is none, or none that Spark can hold."""
    milliseconds = pc.coalesce(times.cast(pa.int64()), raw)
    held = pc.if_else(pc.less_equal(milliseconds, _LAST_MS), milliseconds, pa.scalar(None, pa.int64()))
    return pc.multiply(held, pa.scalar(1000, pa.int64())).cast(pa.timestamp("us", tz="UTC"))


def _headers(found: pa.Array) -> pa.Array:
    """Null for messages without any, and with the names that Spark's Kafka connector gives the parts."""
    rows = [
        [{"key": each["name"], "value": each["value"]} for each in headers] if headers else None
        for headers in found.to_pylist()
    ]
    return pa.array(rows, HEADERS.arrow)


def _runs(sources: Iterable[Source], *, keyed: bool) -> tuple[pa.Array, pa.Array]:
    """Of each message the type of its timestamp, -1 for none, and the number of its codec."""
    kinds, codecs = array("i"), array("b")

    def add(count: int, kind: int, codec: int) -> None:
        kinds.extend(array("i", (kind,)) * count)
        codecs.extend(array("b", (codec,)) * count)

    for content, first, stop in sources:
        if isinstance(content, RecordSet):
            for run in content.runs:
                add(_shared(run.first, run.first + len(run.offsets), first, stop), run.timestamp_type, run.codec)
        elif isinstance(content, MessageBatch):
            ends = [*(run.first for run in content.runs), len(content)][1:]
            for plain, end in zip(content.runs, ends, strict=True):
                codec = RecordCodec.NONE if plain.overhead else _NO_CODEC
                add(_shared(plain.first, end, first, stop), -1, codec)
        else:
            fields: Iterator[Any] = islice(content.messages_as(tuple, first=first), stop - first)
            for each in fields:
                add(1, each[_TYPE] if keyed else -1, _NO_CODEC)
    return numbers(kinds, pa.int32()), numbers(codecs, pa.int8())


def _shared(first: int, end: int, from_number: int, stop: int) -> int:
    """How many numbers of [first, end) are in [from_number, stop)."""
    return max(0, min(end, stop) - max(first, from_number))
