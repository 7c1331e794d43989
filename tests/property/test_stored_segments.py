"""Segments since 0.8: what is read is what was written, whatever damage lies between."""

from __future__ import annotations

import io
from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from consumerd.storage.segments.batches import SegmentFlaw, StoredBatch, read_batches
from consumerd.storage.segments.dialect import SegmentDialect, recognise
from consumerd.wire.v08.records import RecordCodec, encode_message_set, encode_record_batch

#: Magic, codec, values, and how many offsets are left out before it.
Set = tuple[int, RecordCodec, list[bytes | None], int]
CODECS = {0: list(RecordCodec)[:3], 1: list(RecordCodec)[:4], 2: list(RecordCodec)}


@st.composite
def sets(draw: st.DrawFn) -> Set:
    magic = draw(st.sampled_from([0, 1, 2, 2]))
    values = st.one_of(st.none(), st.binary(max_size=30))
    gap = draw(st.sampled_from([0, 0, 0, 5]))
    return magic, draw(st.sampled_from(CODECS[magic])), draw(st.lists(values, min_size=1, max_size=5)), gap


LOGS = st.lists(sets(), min_size=1, max_size=8)


def written(log: list[Set]) -> tuple[list[bytes], list[tuple[int, bytes | None]]]:
    """The sets' bytes, and the records by offset."""
    pieces: list[bytes] = []
    records: list[tuple[int, bytes | None]] = []
    offset = 100
    for magic, codec, values, gap in log:
        offset += gap
        if magic == 2:
            pieces.append(encode_record_batch(values, codec=codec, base_offset=offset, timestamps=5))
        else:
            pieces.append(encode_message_set(values, magic=magic, codec=codec, base_offset=offset))
        records += enumerate(values, offset)
        offset += len(values)
    return pieces, records


def read(data: bytes, window: int = 1 << 20) -> list[StoredBatch | SegmentFlaw]:
    """All items; they tile the data."""
    found = list(read_batches(io.BytesIO(data), 100, window=window))
    position = 0
    for item in found:
        assert item.position == position
        position += item.size
    assert position == len(data)
    return found


def records_of(found: list[StoredBatch | SegmentFlaw]) -> Iterator[tuple[int, bytes | None]]:
    for item in found:
        if isinstance(item, StoredBatch):
            yield from ((record.offset, record.payload) for record in item.records.messages())


@given(LOGS, st.integers(1, 400))
def test_reads_what_was_written_whatever_the_window(log: list[Set], window: int) -> None:
    pieces, records = written(log)
    data = b"".join(pieces)
    found = read(data, window)
    assert list(records_of(found)) == records
    assert all(isinstance(item, StoredBatch) and item.problem is None for item in found)
    assert recognise(data) is SegmentDialect.V08


@settings(max_examples=200)
@given(LOGS, st.data())
def test_one_damaged_byte_costs_one_set_at_most(log: list[Set], data: st.DataObject) -> None:
    pieces, records = written(log)
    struck = data.draw(st.integers(0, len(pieces) - 1))
    at = data.draw(st.integers(0, len(pieces[struck]) - 1))
    bits = data.draw(st.integers(1, 255))
    piece = bytearray(pieces[struck])
    piece[at] ^= bits
    found = read(b"".join([*pieces[:struck], bytes(piece), *pieces[struck + 1 :]]))
    spared = [len(values) for _, _, values, _ in log]
    begin = sum(spared[:struck])
    lost = set(records[begin : begin + spared[struck]])
    assert set(records) - lost <= set(records_of(found))


@settings(max_examples=200)
@given(st.binary(max_size=300), st.integers(1, 100))
def test_hostile_bytes_are_tiled(data: bytes, window: int) -> None:
    assert [item.position for item in read(data, window)] == [item.position for item in read(data)]
