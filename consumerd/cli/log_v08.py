"""`consumerd log dump` of segments of 0.8 and later."""

from __future__ import annotations

import json
import sys
from base64 import b64encode
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

from consumerd.cli.tables import Column
from consumerd.storage.archives.dumped import DumpedSegment
from consumerd.storage.segments.batches import SegmentFlaw, StoredBatch, read_batches
from consumerd.storage.segments.transactions import UncommittedRanges

COLUMNS = (
    Column("offset", 0, right=True),
    Column("last", 0, right=True),
    Column("position", 8, right=True),
    Column("size", 8, right=True),
    Column("valid", 5),
    Column("magic", 5),
    Column("codec", 6),
    Column("epoch", 5, right=True),
    Column("last timestamp", 24),
    Column("records", 7, right=True),
)


class DumpedBatch(NamedTuple):
    """A batch or a flaw, with its problem as a sentence."""

    item: StoredBatch | SegmentFlaw
    next_offset: int
    problem: str | None


def read(segment: DumpedSegment, left_out: UncommittedRanges | None = None) -> Iterator[DumpedBatch]:
    """The batches of a segment without those of transactions in `left_out`. Raises the errors of its stream."""
    for item in read_batches(segment.stream, segment.start):
        if isinstance(item, SegmentFlaw):
            yield DumpedBatch(item, item.offset, item.problem)
        elif left_out is None or not left_out.has(item):
            yield DumpedBatch(item, item.next_offset, None if item.problem is None else item.problem[1])


def show_json(name: str, batches: Iterator[DumpedBatch]) -> None:
    """One object per line."""
    for batch in batches:
        line = {"file": name, **(_batch(batch) if isinstance(batch.item, StoredBatch) else _flaw(batch))}
        sys.stdout.write(json.dumps(line) + "\n")


def _batch(batch: DumpedBatch) -> dict[str, Any]:
    item = batch.item
    assert isinstance(item, StoredBatch)
    producer = item.producer
    line: dict[str, Any] = {
        "offset": item.offset,
        "last_offset": item.last_offset,
        "next_offset": item.next_offset,
        "position": item.position,
        "size": item.size,
        "valid": item.problem is None,
        "magic": item.magic,
        "codec": item.codec.name.lower(),
        "timestamp_type": item.timestamp_type.name.lower(),
        "max_timestamp": item.max_timestamp,
        "delete_horizon": item.delete_horizon,
        "leader_epoch": item.leader_epoch,
        "producer_id": None if producer is None else producer.id,
        "producer_epoch": None if producer is None else producer.epoch,
        "base_sequence": None if producer is None else producer.sequence,
        "transactional": item.transactional,
        "control": item.control,
        "records": [
            {
                "offset": record.offset,
                "timestamp": None if record.timestamp < 0 else record.timestamp,
                "key_base64": _base64(record.key),
                "value_base64": _base64(record.payload),
                "headers": [[name, _base64(value)] for name, value in record.headers],
            }
            for record in item.records.messages()
        ],
    }
    return line if batch.problem is None else line | {"problem": batch.problem}


def _flaw(batch: DumpedBatch) -> dict[str, Any]:
    item = batch.item
    return {
        "offset": item.offset,
        "next_offset": item.offset,
        "position": item.position,
        "size": item.size,
        "valid": False,
        "problem": batch.problem,
    }


def _base64(data: bytes | None) -> str | None:
    return None if data is None else b64encode(data).decode()


def cells(batch: DumpedBatch) -> tuple[str, ...]:
    """The row of a table."""
    item = batch.item
    if isinstance(item, SegmentFlaw):
        return str(item.offset), "", str(item.position), str(item.size), "NO", "", "", "", "", "", item.problem
    stamp = "" if item.max_timestamp is None else _time(item.max_timestamp)
    epoch = "" if item.leader_epoch is None else str(item.leader_epoch)
    first = next((payload for payload in item.records.payloads if payload is not None), None)
    text = f"control: {item.control}" if item.control is not None else "" if first is None else repr(first[:200])[1:]
    return (
        str(item.offset),
        str(item.last_offset),
        str(item.position),
        str(item.size),
        "yes" if item.problem is None else "NO",
        str(item.magic),
        item.codec.name.lower(),
        epoch,
        stamp,
        str(len(item.records)),
        batch.problem or text,
    )


def _time(milliseconds: int) -> str:
    try:
        return (
            datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        )
    except (OverflowError, ValueError, OSError):
        return str(milliseconds)
