"""Segments since 0.8: what is read is what was written, whatever damage lies between."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumerd.base import native
from consumerd.storage.archives.findings import SegmentSummary
from consumerd.storage.segments.batches import SegmentFlaw, StoredBatch, check_batches, read_batches
from consumerd.storage.segments.checking import CheckedBatches
from consumerd.storage.segments.dialect import SegmentDialect, recognise
from consumerd.storage.segments.kinds import same_kind
from consumerd.wire.v08.records import RecordCodec, encode_message_set, encode_record_batch
from tests.support.codecs import installed_native_codec

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


def seen(data: bytes, *, together: bool) -> tuple[list[object], SegmentSummary]:
    """The records with what their batches say of them, the flaws, and their sum."""
    found: list[object] = []
    summary = SegmentSummary("source", "stamp", "t-0", 100, dialect=SegmentDialect.V08)
    for item in read_batches(io.BytesIO(data), 100, window=300, together=together):
        summary.see_batch(item)
        if isinstance(item, SegmentFlaw):
            found.append(item)
            continue
        same = (item.magic, item.codec, item.timestamp_type, item.leader_epoch, item.transactional, item.control)
        producer = item.producer.id if item.producer is not None and item.transactional else None
        found += [(record, same, producer, item.problem) for record in item.records.messages()]
    return found, summary


@st.composite
def segments(draw: st.DrawFn) -> bytes:
    """Many small batches of few kinds, with gaps, orders and epochs that are wrong, and a damaged byte in some."""
    offset, pieces = 100, []
    for _ in range(draw(st.integers(1, 12))):
        offset += draw(st.sampled_from([0, 0, 0, 0, 3, -2]))
        values = draw(st.lists(st.binary(max_size=4), min_size=1, max_size=3))
        codec = draw(st.sampled_from([RecordCodec.NONE, RecordCodec.NONE, RecordCodec.GZIP]))
        if draw(st.booleans()):
            epoch, producer = draw(st.sampled_from([-1, 3, 3, 4])), draw(st.sampled_from([-1, 7, 8]))
            piece = encode_record_batch(
                values,
                codec=codec,
                base_offset=offset,
                timestamps=5,
                leader_epoch=epoch,
                producer_id=producer,
                transactional=producer == 8,
            )
        else:
            piece = encode_message_set(values, magic=draw(st.integers(0, 1)), codec=codec, base_offset=offset)
        pieces.append(piece)
        offset += len(values)
    data = bytearray(b"".join(pieces))
    if draw(st.booleans()):
        data[draw(st.integers(0, len(data) - 1))] ^= draw(st.integers(1, 255))
    return bytes(data[: draw(st.sampled_from([len(data), max(1, len(data) - 5)]))])


@settings(max_examples=300)
@given(segments())
def test_batches_read_together_are_those_read_one_by_one(data: bytes) -> None:
    one_by_one = seen(data, together=False)
    assert seen(data, together=True) == one_by_one
    with native.using(None):
        assert seen(data, together=True) == one_by_one


@settings(max_examples=300)
@given(st.one_of(segments(), st.binary(max_size=300)), st.integers(0, 40), st.integers(0, 110), st.integers(1, 400))
def test_native_codec_follows_headers_as_the_pure_one(data: bytes, at: int, least: int, room: int) -> None:
    codec = installed_native_codec()
    if codec is None:
        pytest.skip("the native codec is not installed")
    with native.using(codec):
        found = same_kind(data, min(at, len(data)), least, 150, room)
    with native.using(None):
        assert same_kind(data, min(at, len(data)), least, 150, room) == found


def checked(data: bytes, *, shallow: bool) -> tuple[SegmentSummary, list[CheckedBatches]]:
    """The sum of a segment that is only checked, and what passed at once."""
    summary = SegmentSummary("source", "stamp", "t-0", 100, dialect=SegmentDialect.V08)
    items = list(check_batches(io.BytesIO(data), 100, window=300, shallow=shallow))
    for item in items:
        summary.see_batch(item)
    return summary, [item for item in items if isinstance(item, CheckedBatches)]


@settings(max_examples=300)
@given(segments(), st.booleans())
def test_a_check_sums_up_what_a_reader_sees(data: bytes, shallow: bool) -> None:
    """No batch is whole and unreadable here: a damaged byte is one that the CRC finds."""
    _, summary = seen(data, together=False)
    assert checked(data, shallow=shallow)[0] == summary
    with native.using(None):
        assert checked(data, shallow=shallow)[0] == summary


@given(st.one_of(segments(), st.binary(max_size=300)))
def test_both_codecs_pass_the_same_batches_by_their_headers(data: bytes) -> None:
    codec = installed_native_codec()
    if codec is None:
        pytest.skip("the native codec is not installed")
    with native.using(codec):
        found = checked(data, shallow=True)
    with native.using(None):
        assert checked(data, shallow=True) == found


@given(LOGS)
def test_a_shallow_check_passes_sound_batches_without_decoding(log: list[Set]) -> None:
    pieces, records = written([one for one in log if one[0] == 2])
    summary, passed = checked(b"".join(pieces), shallow=True)
    assert sum(item.records for item in passed) == summary.messages == len(records)
