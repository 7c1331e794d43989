"""Splits of local files: rows, modes, boundaries, and what is not there any more."""

from __future__ import annotations

import gzip
import logging
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition

from consumerd.spark.source import datasource
from consumerd.spark.source.columns import COLUMNS, ParseMode, arrow_schema
from consumerd.spark.source.errors import DataLossError, FileReadError, MalformedMessageError, SplitBoundaryError
from consumerd.spark.source.options import read_options
from consumerd.spark.source.request import ReadRequest
from consumerd.spark.source.split import BrokerRange, FileRange, V07Split
from consumerd.spark.source.v07 import reading
from consumerd.spark.source.v07.reading import read_split
from consumerd.wire.v07 import Codec, DecodeLimits, encode_message, encode_message_set
from tests.unit.spark.source.conftest import SegmentWriter

ALL = tuple(column.name for column in COLUMNS)
ONE, TWO = encode_message(b"one"), encode_message(b"two", magic=0)
ZIPPED = encode_message_set([b"a", b"", b"c"], codec=Codec.GZIP)
SNAPPED = encode_message_set([b"d"], codec=Codec.SNAPPY)
BAD = ONE[:-1] + b"X"
BOTCHED = encode_message(b"no gzip", codec=Codec.GZIP)
NO_LENGTH = b"\xff" * 40


def read_rows(split: V07Split, columns: tuple[str, ...] = ALL, **arguments: Any) -> list[dict[str, Any]]:
    return [row for batch in read_split(split, ReadRequest(columns, **arguments)) for row in batch.to_pylist()]


def seen(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(row["offset"], row["index"], row["next_offset"], row["value"]) for row in rows]


def test_reads_rows_of_all_kinds_of_messages(segment: SegmentWriter) -> None:
    split = segment(ONE, TWO, ZIPPED, SNAPPED, start=100)
    after_two = 100 + len(ONE) + len(TWO)
    zipped_end = after_two + len(ZIPPED)
    rows = read_rows(split)
    assert seen(rows) == [
        (100, 0, 100 + len(ONE), b"one"),
        (100 + len(ONE), 0, after_two, b"two"),
        (after_two, 0, after_two, b"a"),
        (after_two, 1, after_two, b""),
        (after_two, 2, zipped_end, b"c"),
        (zipped_end, 0, split.end, b"d"),
    ]
    assert [row["codec"] for row in rows] == ["none", "none", "gzip", "gzip", "gzip", "snappy"]
    for row in rows:
        assert (row["topic"], row["partition"], row["broker"], row["broker_partition"]) == ("events", 3, 2, "2-3")
        assert row["crc_ok"] is True
        nulls = ("key", "timestamp", "timestampType", "headers", "_corrupt")
        assert [row[name] for name in nulls] == [None] * len(nulls)


def test_broker_columns_are_null_without_a_known_broker(segment: SegmentWriter) -> None:
    (row,) = read_rows(replace(segment(ONE), broker=None))
    assert (row["broker"], row["broker_partition"]) == (None, "3")


def test_joins_long_and_short_runs_in_one_batch(segment: SegmentWriter) -> None:
    payloads = [b"%d" % number for number in range(1000)]
    old = [b"old %d" % number for number in range(1000)]
    split = segment(
        encode_message_set(payloads), ZIPPED, encode_message_set(old, magic=0), BAD, encode_message_set(payloads)
    )
    (batch,) = read_split(split, ReadRequest(ALL))
    assert batch.column("value").to_pylist() == [*payloads, b"a", b"", b"c", *old, b"onX", *payloads]
    starts, nexts = batch.column("offset").to_pylist(), batch.column("next_offset").to_pylist()
    plain = [row for row in range(3004) if not 1000 <= row < 1003]
    assert all(nexts[row] == starts[row] + len(payload) + (9 if b"old" in payload else 10)
               for row in plain for payload in [batch.column("value")[row].as_py()])  # fmt: skip
    assert [*nexts[:999], nexts[1002]] == [*starts[1:1000], starts[1003]]
    assert nexts[-1] == split.end
    assert [row for row in range(3004) if not batch.column("crc_ok")[row].as_py()] == [2003]


@pytest.mark.parametrize(
    "columns", [("offset",), ("codec", "value"), ("next_offset", "index"), ("topic",), ("_corrupt",)]
)
def test_builds_only_the_requested_columns(segment: SegmentWriter, columns: tuple[str, ...]) -> None:
    split = segment(encode_message_set([b"x"] * 500), ZIPPED, BAD, ONE)
    whole = read_rows(split)
    assert read_rows(split, columns) == [{name: row[name] for name in columns} for row in whole]
    (batch,) = read_split(split, ReadRequest(columns))
    assert batch.schema.equals(arrow_schema(columns))


def test_limits_batches_by_rows_and_by_bytes(segment: SegmentWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "BATCH_ROWS", 2)
    split = segment(*[encode_message_set([b"x"], codec=Codec.GZIP)] * 5)
    assert [batch.num_rows for batch in read_split(split, ReadRequest(("offset",)))] == [2, 2, 1]
    monkeypatch.setattr(reading, "BATCH_ROWS", 100)
    monkeypatch.setattr(reading, "BATCH_BYTES", 3000)
    split = segment(*[encode_message_set([b"x" * 1000], codec=Codec.GZIP)] * 5)
    assert [batch.num_rows for batch in read_split(split, ReadRequest(("offset",)))] == [3, 2]


def test_reads_a_part_of_a_segment(segment: SegmentWriter) -> None:
    split = segment(ONE, ZIPPED, TWO, start=50)
    assert isinstance(split.location, FileRange)
    part = replace(split, start=50 + len(ONE), end=50 + len(ONE) + len(ZIPPED))
    assert [row["value"] for row in read_rows(part)] == [b"a", b"", b"c"]
    assert read_rows(replace(split, start=50, end=50)) == []


@pytest.mark.parametrize("cut", [1, 4, 5, 10, len(ZIPPED) - 1])
@pytest.mark.parametrize("mode", list(ParseMode))
def test_rejects_a_split_that_ends_inside_a_message(segment: SegmentWriter, cut: int, mode: ParseMode) -> None:
    split = segment(ONE, ZIPPED, TWO)
    wrong = replace(split, end=len(ONE) + cut)
    columns = ("value",)
    with pytest.raises(SplitBoundaryError, match=f"events/2-3 from 0 to {wrong.end} ends inside .* offset {len(ONE)}.*"
                       "maxSplitBytes=0") as caught:  # fmt: skip
        read_rows(wrong, columns, mode=mode)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_rejects_a_malformed_message_that_crosses_the_split_end(segment: SegmentWriter) -> None:
    """The next split would begin inside of it, and take what stands there for messages."""
    split = segment(ONE, BAD, TWO, TWO)
    with pytest.raises(SplitBoundaryError, match=f"inside the message at offset {len(ONE)}"):
        read_rows(replace(split, end=len(ONE) + 6))


@pytest.mark.parametrize("rest", [b"", TWO + TWO])
def test_malformed_bytes_end_with_the_split(segment: SegmentWriter, rest: bytes) -> None:
    split = segment(ONE, NO_LENGTH, rest)
    row = read_rows(replace(split, end=len(ONE) + 6))[-1]
    assert (row["offset"], row["next_offset"], row["crc_ok"]) == (len(ONE), len(ONE) + 6, False)
    following = read_rows(replace(split, start=len(ONE) + 6))
    assert [row["value"] for row in following] == [None, *[b"two"] * (len(rest) // len(TWO))]


def test_inspects_but_does_not_return_bytes_after_the_split(segment: SegmentWriter) -> None:
    """To tell that the length of a bad message is right, what follows it is decoded along."""
    split = segment(ONE, BAD, encode_message_set([b"x"] * 500))
    end = len(ONE) + len(BAD) + 11 * 3
    assert [row["value"] for row in read_rows(replace(split, end=end))] == [b"one", b"onX", b"x", b"x", b"x"]


# -- what cannot be read


@pytest.mark.parametrize(
    ("bad", "value", "codec", "sentence"),
    [
        (BAD, b"onX", "none", "has a CRC of"),
        (BOTCHED, b"no gzip", "gzip", "cannot be decompressed"),
        (encode_message(b"?")[:5] + b"\x03" + encode_message(b"?")[6:], b"?", None, "compression codec 3"),
        (ONE[:4] + b"\x07" + ONE[5:], b"\x07" + ONE[5:], None, "magic 7"),
        (NO_LENGTH, None, None, f"the 40 bytes from offset {1000 + len(ONE)} on are not messages"),
    ],
)
def test_malformed_bytes_are_a_row(
    segment: SegmentWriter, bad: bytes, value: bytes | None, codec: str | None, sentence: str
) -> None:
    split = segment(ONE, bad, TWO, TWO, start=1000)
    rows = read_rows(split)
    assert [row["value"] for row in rows] == [b"one", value, b"two", b"two"]
    row = rows[1]
    start = 1000 + len(ONE)
    assert (row["offset"], row["next_offset"], row["index"]) == (start, start + len(bad), 0)
    assert (row["crc_ok"], row["codec"]) == (False, codec)
    assert sentence in row["_corrupt"]
    assert [row["_corrupt"] for row in (rows[0], *rows[2:])] == [None] * 3


@pytest.mark.parametrize("bad", [BAD, BOTCHED, NO_LENGTH])
def test_drops_malformed_messages(segment: SegmentWriter, bad: bytes, caplog: pytest.LogCaptureFixture) -> None:
    split = segment(ONE, bad, TWO, TWO, bad, TWO, TWO)
    columns = tuple(name for name in ALL if name != "_corrupt")
    rows = read_rows(split, columns, mode=ParseMode.DROPMALFORMED)
    assert [row["value"] for row in rows] == [b"one", b"two", b"two", b"two", b"two"]
    assert "dropped 2 malformed ranges of events/2-3" in caplog.text


@pytest.mark.parametrize("bad", [BAD, BOTCHED, NO_LENGTH])
def test_fails_on_malformed_messages(segment: SegmentWriter, bad: bytes) -> None:
    split = segment(ONE, bad, TWO, start=70)
    with pytest.raises(MalformedMessageError, match=f"events/2-3 cannot be read at offset {70 + len(ONE)}: "):
        read_rows(split, ("value",), mode=ParseMode.FAILFAST)


def test_a_torn_tail_is_malformed_and_not_a_split_error(segment: SegmentWriter) -> None:
    split = segment(ONE, TWO[:-2])
    assert [row["_corrupt"] is None for row in read_rows(split)] == [True, False]
    assert [row["value"] for row in read_rows(split, ("value",), mode=ParseMode.DROPMALFORMED)] == [b"one"]


def test_uses_the_limits_of_the_request(segment: SegmentWriter) -> None:
    split = segment(ONE, ZIPPED, ONE)
    rows = read_rows(split, limits=DecodeLimits(max_decompressed_bytes=20))
    assert "more than the limit of 20 bytes" in rows[1]["_corrupt"]
    assert [row["_corrupt"] is None for row in rows] == [True, False, True]


# -- what is not there


def test_reports_a_deleted_file(segment: SegmentWriter, caplog: pytest.LogCaptureFixture) -> None:
    split = replace(segment(ONE, start=5), location=FileRange("/no/such/file.kafka", 5))
    sentence = f"the offsets 5 to {split.end} of events/2-3 are no longer in /no/such/file.kafka: the file was deleted"
    with pytest.raises(DataLossError, match=f"{sentence}.*failOnDataLoss=false"):
        read_rows(split)
    assert read_rows(split, fail_on_data_loss=False) == []
    assert sentence in caplog.text
    assert caplog.records[-1].levelno == logging.WARNING


@pytest.mark.parametrize("kept", [0, len(ONE), len(ONE) + 3, len(ONE) + len(TWO)])
def test_reports_a_truncated_file(segment: SegmentWriter, kept: int, caplog: pytest.LogCaptureFixture) -> None:
    split = segment(ONE, TWO, ZIPPED)
    assert isinstance(split.location, FileRange)
    with Path(split.location.path).open("r+b") as file:
        file.truncate(kept)
    whole = [0, len(ONE), len(ONE) + len(TWO)]
    first_lost = max(end for end in whole if end <= kept)
    with pytest.raises(DataLossError, match=f"the offsets {first_lost} to {split.end} of events/2-3 are no longer in"):
        read_rows(split)
    values = [row["value"] for row in read_rows(split, fail_on_data_loss=False)]
    assert values == [b"one", b"two"][: whole.index(first_lost)]
    assert f"the offsets {first_lost} to {split.end}" in caplog.text


def test_reports_a_path_that_is_not_a_file(tmp_path: Path) -> None:
    split = V07Split("events", 2, 3, 0, 10, FileRange(str(tmp_path), 0))
    with pytest.raises(FileReadError, match=f"cannot read {tmp_path}: Is a directory"):
        read_rows(split)


# -- packed files


def test_reads_a_packed_segment(segment: SegmentWriter) -> None:
    data = ONE + TWO * 300 + ZIPPED
    packed = segment(gzip.compress(data), start=7, name="00000000000000000007.kafka.gz")
    plain = segment(data, start=7)
    whole = replace(packed, end=plain.end)
    assert read_rows(whole) == read_rows(plain)
    assert read_rows(replace(whole, start=7 + len(ONE))) == read_rows(plain)[1:]
    with pytest.raises(SplitBoundaryError, match="maxSplitBytes=0"):
        read_rows(replace(whole, end=9 + len(ONE)))


def test_reports_a_damaged_packed_segment(segment: SegmentWriter) -> None:
    data = encode_message_set([b"%d" % number for number in range(50_000)])
    packed = gzip.compress(data)
    split = replace(segment(packed[: len(packed) // 2], name="00000000000000000000.kafka.gz"), end=len(data))
    with pytest.raises(DataLossError, match=f"to {len(data)} of events/2-3 are no longer in"):
        read_rows(split)
    rows = read_rows(split, fail_on_data_loss=False)
    assert [row["value"] for row in rows[:-1]] == [b"%d" % number for number in range(len(rows) - 1)]
    assert "the gzip data is truncated" in rows[-1]["_corrupt"]


# -- travelling


def test_splits_and_requests_are_picklable() -> None:
    for place in (FileRange("s3://bucket/x.kafka", 7), BrokerRange("host", 9092)):
        split = V07Split("events", None, 3, 7, 9, place)
        assert pickle.loads(pickle.dumps(split)) == split
        assert str(split) == "events/3 from 7 to 9"
    request = ReadRequest(ALL, ParseMode.FAILFAST, fail_on_data_loss=False, limits=DecodeLimits(max_depth=2))
    assert pickle.loads(pickle.dumps(request)) == request


def test_does_not_copy_values_of_large_messages(segment: SegmentWriter) -> None:
    split = segment(encode_message(bytes(3 << 20)), ONE)
    assert [batch.num_rows for batch in read_split(split, ReadRequest(("value",)))] == [1, 1]
    before = pa.total_allocated_bytes()
    first, second = read_split(split, ReadRequest(("value",)))
    assert pa.total_allocated_bytes() - before < 1 << 20
    assert [len(batch.column(0)[0].as_py()) for batch in (first, second)] == [3 << 20, 3]


def test_freezes_imports_once_and_only_in_workers(segment: SegmentWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    frozen: list[None] = []
    monkeypatch.setattr("gc.freeze", lambda: frozen.append(None))
    monkeypatch.setattr(datasource, "_settled", False)
    reader = datasource.BatchReader(read_options({"path": "/", "subscribe": "t"}), ReadRequest(("value",)))
    task = InputPartition(segment(ONE))
    assert [batch.num_rows for batch in reader.read(task)] == [1]
    assert not frozen
    monkeypatch.setattr("pyspark.TaskContext.get", object)
    for _ in range(2):
        assert [batch.num_rows for batch in reader.read(task)] == [1]
    assert len(frozen) == 1
