"""Splits: however a log is cut at boundaries of its outer set, the rows are those of the whole, column by column."""

from __future__ import annotations

import tempfile
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumerd.base.errors import ConsumerdError
from consumerd.spark.source.columns import COLUMNS, ParseMode, arrow_schema
from consumerd.spark.source.errors import SplitBoundaryError
from consumerd.spark.source.request import ReadRequest
from consumerd.spark.source.split import FileRange, V07Split
from consumerd.spark.source.v07 import reading
from consumerd.spark.source.v07.reading import read_split
from consumerd.wire import compress
from consumerd.wire.v07 import BatchEnd, Codec, DecodeLimits, decode_batch, encode_message

if TYPE_CHECKING:
    import pyarrow as pa

#: A log may be thousands of messages after all, and is read about twice.
patient = settings(deadline=None)

NAMES = [column.name for column in COLUMNS]
LIMITS = DecodeLimits(max_message_bytes=1 << 20, max_decompressed_bytes=1 << 20)

PAYLOAD = st.one_of(st.binary(max_size=30), st.sampled_from([b"", b"x" * 400, encode_message(b"recorded")]))
PLAIN = st.builds(lambda payload, magic: encode_message(payload, magic=magic), PAYLOAD, st.sampled_from([0, 1, 1]))
LONG = st.builds(
    lambda payload, magic: encode_message(payload, magic=magic) * 130, st.binary(max_size=5), st.sampled_from([0, 1])
)


def wrapped(messages: list[bytes], codec: Codec) -> bytes:
    return encode_message(compress(codec, b"".join(messages)), codec=codec)


CODEC = st.sampled_from([Codec.GZIP, Codec.SNAPPY])
WRAPPED = st.recursive(
    PLAIN, lambda inner: st.builds(wrapped, st.lists(st.one_of(inner, LONG), max_size=4), CODEC), max_leaves=6
)
MESSAGES = st.lists(st.one_of(PLAIN, WRAPPED), max_size=15)
COLUMNS_ASKED_FOR = st.lists(st.sampled_from(NAMES), min_size=1, unique=True)


def read(data: bytes, begin: int, start: int, end: int, names: list[str], **arguments: Any) -> list[pa.RecordBatch]:
    with tempfile.NamedTemporaryFile(suffix=".kafka") as file:
        Path(file.name).write_bytes(data)
        split = V07Split("topic", 1, 2, start, end, FileRange(file.name, begin))
        return list(read_split(split, ReadRequest(tuple(names), limits=LIMITS, **arguments)))


def listed(batches: list[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


@patient
@given(
    messages=MESSAGES,
    begin=st.sampled_from([0, 17, 1 << 40]),
    names=COLUMNS_ASKED_FOR,
    cuts=st.sets(st.integers(0, 15)),
    bounds=st.sampled_from([(1 << 16, 1 << 22, 1 << 20), (3, 1 << 22, 100), (1 << 16, 200, 40)]),
)
def test_rows_of_all_splits_are_the_rows_of_the_whole(
    messages: list[bytes], begin: int, names: list[str], cuts: set[int], bounds: tuple[int, int, int]
) -> None:
    data = b"".join(messages)
    edges = list(accumulate(map(len, messages), initial=begin))
    edges = [edge for number, edge in enumerate(edges) if number in cuts or number in {0, len(messages)}]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "BATCH_ROWS", bounds[0])
        patch.setattr(reading, "BATCH_BYTES", bounds[1])
        patch.setattr(reading, "_PIECE_BYTES", bounds[2])
        whole = listed(read(data, begin, begin, begin + len(data), NAMES))
        parts = [batch for start, end in pairwise(edges) for batch in read(data, begin, start, end, names)]
    assert all(batch.schema.equals(arrow_schema(names)) and batch.num_rows for batch in parts)
    assert listed(parts) == [{name: row[name] for name in names} for row in whole]

    expected = decode_batch(data, begin)
    assert expected.end is BatchEnd.COMPLETE
    assert [(row["offset"], row["index"], row["next_offset"], row["value"]) for row in whole] == [
        tuple(message) for message in expected.messages()
    ]
    assert all(row["crc_ok"] and row["_corrupt"] is None for row in whole)


@patient
@given(messages=st.lists(st.one_of(PLAIN, WRAPPED), min_size=1, max_size=6), data=st.data())
def test_rejects_a_split_that_ends_inside_a_message(messages: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(messages)
    edges = set(accumulate(map(len, messages), initial=0))
    end = data.draw(st.integers(1, len(whole)).filter(lambda end: end not in edges))
    with pytest.raises(SplitBoundaryError, match="maxSplitBytes=0"):
        read(whole, 0, 0, end, ["offset"])


@patient
@given(
    messages=st.lists(st.one_of(PLAIN, WRAPPED), max_size=6),
    patch=st.binary(max_size=20),
    mode=st.sampled_from(list(ParseMode)),
    data=st.data(),
)
def test_hostile_segments_have_declared_outcomes(
    messages: list[bytes], patch: bytes, mode: ParseMode, data: st.DataObject
) -> None:
    whole = b"".join(messages)
    at = data.draw(st.integers(0, len(whole)))
    whole = whole[:at] + patch + whole[at + data.draw(st.integers(0, 20)) :]
    end = data.draw(st.integers(0, len(whole)))
    try:
        found = listed(read(whole, 0, 0, end, NAMES, mode=mode))
    except ConsumerdError:
        assert mode is ParseMode.FAILFAST or end < len(whole)
        return
    positions = [row["offset"] for row in found]
    assert positions == sorted(positions)
    assert all(0 <= row["offset"] <= row["next_offset"] <= end for row in found)
    assert mode is ParseMode.PERMISSIVE or all(row["crc_ok"] for row in found)
    assert all(row["crc_ok"] is (row["_corrupt"] is None) for row in found)
