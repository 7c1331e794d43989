"""Tables of shapes: what they look up, and that they do not grow without end."""

from __future__ import annotations

import struct
from itertools import islice

import pytest

from consumerd.wire.v08.records import shapes
from consumerd.wire.v08.records.shapes import RecordShape, shape_at
from consumerd.wire.v08.records.varint import varint


def record(length: int, time: int, offset: int, key: bytes | None) -> bytes:
    """The beginning of a record, with some bytes after it."""
    size = varint(-1) if key is None else varint(len(key)) + key
    return varint(length) + b"\0" + varint(time) + varint(offset) + size + bytes(20)


@pytest.mark.parametrize("offset", [0, 63, 64, 100, 8191, 8192, 20_000, (1 << 20) - 1])
@pytest.mark.parametrize("key", [None, b"", b"k" * 63])
def test_knows_offsets_before_records_are_made(offset: int, key: bytes | None) -> None:
    shape = shape_at(record(100, 5, offset, key), 0)
    assert shape is not None
    assert shape.keyed == (key is not None)
    for number, wanted in zip(range(offset, offset + 200), shape.expected(offset), strict=False):
        length, time, found, size = shape.head(record(100, 5, number, key), 0)
        assert (found, time, length) == (wanted, 10, int.from_bytes(varint(100)))
        assert shape.deltas[size >> 8 << 16 | found] == number
        if key is None:
            assert size == shape.null_key(offset)
        else:
            assert shape.keys(offset)[size][length][3] == len(key)


@pytest.mark.parametrize("offset", [63, 8191, (1 << 20) - 1])
def test_run_ends_where_offsets_take_another_byte(offset: int) -> None:
    shape = shape_at(record(10, 0, offset, None), 0)
    assert shape is not None
    assert len(list(shape.expected(offset))) == 1
    assert list(shape.expected(offset + 1)) == []


def test_run_ends_where_the_third_byte_of_offsets_changes() -> None:
    shape = shape_at(record(10, 0, 8192, None), 0)
    assert shape is not None
    assert len(list(shape.expected(8192 + 10))) == 8192 - 10
    assert shape.null_key(16384) != shape.null_key(8192)


@pytest.mark.parametrize(
    "data",
    [
        record(8192, 0, 0, None),
        record(10, 0, 1 << 20, None),
        record(10, 0, 0, b"k" * 64),
        varint(10) + b"\0" + b"\x80" * 12 + bytes(20),
    ],
)
def test_reads_irregular_records_one_by_one(data: bytes) -> None:
    assert shape_at(data, 0) is None


@pytest.mark.parametrize("field", [0x7F, 0xFF, 0x8080, 0x0101, 0x8100])
def test_rejects_invalid_lengths(field: int) -> None:
    """Odd ones are negative; the continuation bits have to be as the shape says."""
    shape = RecordShape(2 if field > 0xFF else 1, 1, 1, keyed=False)
    with pytest.raises(struct.error):
        shape.totals[field]


def test_tables_are_bounded() -> None:
    shape = RecordShape(2, 1, 2, keyed=True)
    fields = [int.from_bytes(varint(length)) for length in range(200, 8000)]
    for field in fields:
        left = shape.totals[field]
        shape.keys(64)[20][field]
        shape.keys(64)[40][field]
        shape.deltas[field]
        assert left > 0
    assert max(len(shape.totals), len(shape.lengths), len(shape.values), len(shape.deltas)) <= 2048
    assert len(shape.keys(64)[20]) + len(shape.keys(64)[40]) <= 4096
    for time in range(1, 11):
        for offset in (0, 64, 8192):
            for key in (None, b""):
                data = (
                    varint(10)
                    + b"\0"
                    + b"\x80" * (time - 1)
                    + b"\0"
                    + varint(offset)
                    + varint(-1 if key is None else 0)
                )
                assert shape_at(data + bytes(9), 0) is not None
    assert len(shapes._SHAPES) <= 24


def test_makes_expected_numbers_on_demand() -> None:
    assert list(islice(RecordShape(1, 1, 3, keyed=False).expected(1 << 19), 2)) == [0x8080, 0x8280]
