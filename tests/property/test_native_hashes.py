"""Both codecs give rows the same hashes, and the native one hashes no bytes that a column does not have."""

from __future__ import annotations

import random
from array import array
from types import SimpleNamespace
from typing import cast

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumerd.base import native
from consumerd.spark.lake.row_hash import content_hashes

BYTES = st.none() | st.binary(max_size=40) | st.integers(0, 200).map(bytes)
ROWS = st.lists(
    st.tuples(st.none() | st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-(1 << 31), (1 << 31) - 1), BYTES, BYTES),
    max_size=12,
)


def batch_of(made: list[tuple[int | None, int, bytes | None, bytes | None]]) -> pa.RecordBatch:
    columns = [*zip(*made, strict=True)] or [()] * 4
    kinds = {"offset": pa.int64(), "index": pa.int32(), "value": pa.binary(), "key": pa.binary()}
    arrays = [pa.array(each, kind) for each, kind in zip(columns, kinds.values(), strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=list(kinds))


@settings(max_examples=60)
@given(ROWS, st.booleans(), st.text(max_size=5), st.integers(0, 1 << 32))
def test_of_rows_and_of_parts_of_them(
    native_codec: native.NativeCodec,
    made: list[tuple[int | None, int, bytes | None, bytes | None]],
    keyed: bool,
    topic: str,
    seed: int,
) -> None:
    rows = batch_of([(*each[:3], each[3] if keyed else None) for each in made])
    first, stop = sorted(random.Random(seed).randint(0, len(made)) for _ in range(2))
    for part in (rows, rows.slice(first, stop - first)):
        with native.using(None):
            expected = content_hashes(part, topic, "0-1")
        with native.using(native_codec):
            assert content_hashes(part, topic, "0-1").equals(expected)


def test_takes_the_hashes_of_the_codec() -> None:
    codec = SimpleNamespace(row_hashes=lambda *_: array("Q", [7]).tobytes())
    with native.using(cast("native.NativeCodec", codec)):
        assert content_hashes(batch_of([(0, 0, b"", None)]), "t", "0").to_pylist() == [7]


Column = tuple[bytes, list[int], bytes]
PLACES = bytes(16), bytes(8)
FITTING: Column = b"", [5, 6, 7], b"ab"


@pytest.mark.parametrize(
    "wrong",
    [
        (b"\1", [0, 1, 2], b"ab"),
        (b"", [0, 1], b"ab"),
        (b"", [0, 2, 1], b"ab"),
        (b"", [0, 1, 3], b"ab"),
        (b"", [-2, 1, 2], b"ab"),
    ],
    ids=["validity", "count", "descending", "beyond the end", "before the beginning"],
)
def test_hashes_nothing_of_columns_that_do_not_fit(native_codec: native.NativeCodec, wrong: Column) -> None:
    right, wrong_column = packed(FITTING), packed(wrong)
    assert len(native_codec.row_hashes(1, *PLACES, right, right) or b"") == 16
    assert native_codec.row_hashes(1, *PLACES, wrong_column, None) is None
    assert native_codec.row_hashes(1, *PLACES, right, wrong_column) is None
    assert native_codec.row_hashes(1, PLACES[0][1:], PLACES[1], right, None) is None
    assert native_codec.row_hashes(1, PLACES[0], PLACES[1][4:], right, None) is None


def packed(column: Column) -> native.NativeBinary:
    valid, ends, content = column
    return valid, array("i", ends).tobytes(), content
