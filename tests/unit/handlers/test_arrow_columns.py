"""`Batch.to_arrow`: its columns, parts and joined batches, limits, and what it does without pyarrow."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow
import pytest

from consumerd.base import native
from consumerd.base.partition import TopicPartition
from consumerd.handlers import Batch
from consumerd.handlers.arrow_columns import MOST_BYTES, count_within
from consumerd.handlers.batching import join
from consumerd.handlers.builtin.parquet_rows import parquet_schema
from consumerd.handlers.decoding.stage import DecodedContent
from consumerd.handlers.sparse_content import SparseContent
from consumerd.storage.archives.errors import MissingExtraError
from consumerd.wire.batch import DecodedBatch
from consumerd.wire.v07 import Codec, decode_batch, encode_message_set
from consumerd.wire.v08.records import decode_records, encode_record_batch
from tests.support.arrow import columns_of, expected_columns

pytestmark = pytest.mark.usefixtures("either_codec")

PLACE, LATER = TopicPartition("t", 2, 1), TopicPartition.numbered("t", 3)
RECORDS = encode_record_batch(
    [b"one", None, b"", b"\xff"],
    keys=[b"k", b"gone", None, b""],
    timestamps=[1_700_000_000_123, 0, -1, 5],
    headers={1: (("h", b"v"), ("n", None), ("", b"")), 3: (("h", b""),)},
    base_offset=7,
)


def v07(*sets: Sequence[bytes], codec: Codec = Codec.NONE, start: int = 100) -> Batch:
    return Batch(PLACE, decode_batch(b"".join(encode_message_set(each, codec=codec) for each in sets), start))


def v08(data: bytes = RECORDS, start: int = 7) -> Batch:
    return Batch(LATER, decode_records(data, start))


def test_columns_of_messages_of_07() -> None:
    rows = v07([b"one", b"", b"three"]).to_arrow()
    assert rows.schema.equals(parquet_schema(), check_metadata=True)
    assert columns_of(rows) == {
        "topic": ["t"] * 3,
        "broker": [2] * 3,
        "partition": [1] * 3,
        "offset": [100, 113, 123],
        "index": [0] * 3,
        "next_offset": [113, 123, 138],
        "key": [None] * 3,
        "timestamp": [None] * 3,
        "raw_timestamp": [None] * 3,
        "headers": [None] * 3,
        "payload": [b"one", b"", b"three"],
    }


def test_columns_of_records() -> None:
    rows = v08().to_arrow()
    assert rows.schema.equals(parquet_schema(), check_metadata=True)
    assert columns_of(rows) == {
        "topic": ["t"] * 4,
        "broker": [None] * 4,
        "partition": [3] * 4,
        "offset": [7, 8, 9, 10],
        "index": [0] * 4,
        "next_offset": [8, 9, 10, 11],
        "key": [b"k", b"gone", None, b""],
        "timestamp": [1_700_000_000_123, 0, None, 5],
        "raw_timestamp": [None] * 4,
        "headers": [
            [],
            [{"name": "h", "value": b"v"}, {"name": "n", "value": None}, {"name": "", "value": b""}],
            [],
            [{"name": "h", "value": b""}],
        ],
        "payload": [b"one", None, b"", b"\xff"],
    }


def test_leaves_of_a_compressed_message_move_the_position_at_the_last_one() -> None:
    batch = v07([b"a", b"b"], [b"c"], codec=Codec.GZIP)
    first, second = batch.next_offset, batch.prefix(2)
    rows = columns_of(batch.to_arrow())
    assert (rows["offset"], rows["index"]) == ([100, 100, second], [0, 1, 0])
    assert rows["next_offset"] == [100, second, first]


@pytest.mark.parametrize("batch", [v07, v08, lambda: v08(b""), lambda: v07([b"x"] * 9, [b"y"], codec=Codec.SNAPPY)])
def test_parts_of_a_batch(batch: Callable[[], Batch]) -> None:
    whole = batch()
    for first in range(len(whole) + 1):
        for length in range(len(whole) - first + 1):
            part = whole.part(first, length)
            assert columns_of(part.to_arrow()) == expected_columns(part)
        assert columns_of(whole.rest(first).to_arrow()) == expected_columns(whole.rest(first))


def test_empty_batches_have_all_columns() -> None:
    for batch in (v07(), v08(b""), v07([b"one"]).part(1, 0)):
        rows = batch.to_arrow()
        assert (len(rows), rows.schema) == (0, parquet_schema())
        rows.validate(full=True)


def test_batches_of_several_contents() -> None:
    one, two = encode_message_set([b"a", b"b"]), encode_message_set([b"c"] * 3, codec=Codec.GZIP)
    contents = [decode_batch(one, 0), decode_batch(b"", len(one)), decode_batch(two, len(one))]
    joined = Batch(PLACE, join(contents))
    decoded = Batch(PLACE, DecodedContent(joined.part(1, 3), [1, 2, 3]))
    picked = Batch(PLACE, SparseContent([*joined.messages()][1:3]))
    for batch in (joined, joined.part(1, 3), joined.part(2, 2), decoded, decoded.part(1, 1), picked, picked.part(1, 1)):
        assert columns_of(batch.to_arrow()) == expected_columns(batch)
    keyed = Batch(
        LATER, join([decode_records(RECORDS, 7), decode_records(encode_record_batch([b"x"], base_offset=11), 11)])
    )
    assert columns_of(keyed.to_arrow()) == expected_columns(keyed)


def test_batches_whose_payloads_have_become_objects() -> None:
    for batch in (v07([b"one", b"two"]), v08()):
        before = batch.to_arrow()
        assert len(batch.payloads) == len(batch)
        after = batch.to_arrow()
        assert after.equals(before, check_metadata=True)
        assert after.serialize().equals(before.serialize())


def test_large_columns_have_64_bit_offsets() -> None:
    for batch in (v07([b"one"]), v08()):
        rows = batch.to_arrow(large=True)
        assert rows.schema.field("payload").type == rows.schema.field("key").type == pyarrow.large_binary()
        assert columns_of(rows) == expected_columns(batch)


def test_rejects_a_column_whose_offsets_would_overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    keyed = encode_record_batch([None, None], keys=[b"12345", b"6"])
    one, two = encode_message_set([b"123"]), encode_message_set([b"456"])
    joined = Batch(PLACE, join([decode_batch(one, 0), decode_batch(two, len(one))]))
    for what, batch in (("payloads", v07([b"123", b"456"])), ("keys", v08(keyed, 0)), ("payloads", joined)):
        monkeypatch.setitem(MOST_BYTES, False, 6)
        assert len(batch.to_arrow()) == 2
        monkeypatch.setitem(MOST_BYTES, False, 5)
        with pytest.raises(
            OverflowError,
            match=rf"^the {what} have more than 5 bytes, .*: convert parts .*, or call to_arrow\(large=True\)",
        ):
            batch.to_arrow()
        assert len(batch.to_arrow(large=True)) == 2


def test_times_that_have_more_than_64_bits_are_null() -> None:
    data = bytearray(encode_record_batch([b"a", b"b"], timestamps=[5, 6]))
    data[27:35] = ((1 << 63) - 1).to_bytes(8, "big")  # the base timestamp, to which the second record adds 1
    crc = importlib.import_module("google_crc32c").value(bytes(data[21:]))
    data[17:21] = crc.to_bytes(4, "big")
    batch = v08(bytes(data), 0)
    assert [message.timestamp for message in batch.messages()] == [(1 << 63) - 1, 1 << 63]
    rows = columns_of(batch.to_arrow())
    assert (rows["timestamp"], rows["raw_timestamp"]) == ([None, None], [(1 << 63) - 1, None])
    assert rows == expected_columns(batch)


def test_times_after_the_year_9999_are_numbers_in_a_column_of_their_own() -> None:
    last = 253_402_300_799_999
    times = [1_700_000_000_123, 1_700_000_000_123_000, -1, last, last + 1]
    decoded = v08(encode_record_batch([b"x"] * 5, timestamps=times), 0)
    for made in (decoded, Batch(LATER, SparseContent([*decoded.messages()]))):
        rows = columns_of(made.to_arrow())
        assert rows == expected_columns(made)
        assert rows["timestamp"] == [times[0], None, None, last, None]
        assert rows["raw_timestamp"] == [None, times[1], None, None, last + 1]
        assert columns_of(made.part(1, 1).to_arrow())["raw_timestamp"] == [times[1]]


def test_cuts_by_number_and_bytes() -> None:
    for batch in (v07([b"1", b"22", b"", b"333"]), v08(encode_record_batch([b"1", b"22", None, b"333"]), 0)):
        for first, count, size, expected in (
            (0, 9, 99, 4), (0, 2, 99, 2), (0, 9, 3, 3), (0, 9, 2, 1), (0, 9, 0, 1), (1, 9, 1, 1),
            (2, 9, 2, 1), (3, 1, 3, 1),
        ):  # fmt: skip
            assert count_within(batch.sources(first), count, size) == expected
    one, two = encode_message_set([b"22"]), encode_message_set([b"333", b"4"])
    joined = Batch(PLACE, join([decode_batch(one, 0), decode_batch(two, len(one))]))
    assert [count_within(joined.sources(), 9, size) for size in (1, 2, 4, 5, 6)] == [1, 1, 1, 2, 3]


def test_creates_no_object_for_a_message_with_the_native_codec(
    either_codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = v07([b"one", b"two"]), v08()
    made: list[str] = []

    def noted(name: str) -> Callable[..., Any]:
        original = getattr(DecodedBatch, name)

        def called(self: Any, *arguments: Any, **options: Any) -> Any:
            made.append(name)
            return original(self, *arguments, **options)

        return called

    for name in ("messages_as", "__getitem__", "__iter__"):
        monkeypatch.setattr(DecodedBatch, name, noted(name))
    for batch in batches:
        batch.to_arrow()
    assert bool(made) is (either_codec == "pure")


def test_names_the_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = v07([b"one"])

    def missing(name: str) -> Any:
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(
        MissingExtraError,
        match=r"^Batch.to_arrow\(\) needs the package pyarrow; .*: pip install 'consumerd\[archive\]'$",
    ):
        batch.to_arrow()


def test_native_codec_checks_its_arguments(native_codec: native.NativeCodec) -> None:
    with native.using(native_codec):
        contents = decode_batch(encode_message_set([b"one", b"two"]), 0), decode_records(RECORDS, 7)
    for content in contents:
        for first, stop in ((0, len(content) + 1), (2, 1), (1 << 60, 1 << 60)):
            with pytest.raises(IndexError):
                content.column_buffers(first, stop, 99, wide=False)
            with pytest.raises(IndexError):
                content.fitting(first, stop, 99)
