"""The output of the `files` handler is listed, split and read back as the messages of the log, whole and in order."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pytest

from consumerd.base.errors import NotFoundError
from consumerd.base.partition import TopicPartition
from consumerd.handlers import Batch
from consumerd.handlers.builtin.files import FilesHandler
from consumerd.spark.source.columns import COLUMNS, CORRUPT, HEADERS, ParseMode
from consumerd.spark.source.errors import DataLossError, MalformedMessageError
from consumerd.spark.source.files.ranges import (
    OverlappingRangesError,
    boundary,
    files_splits,
    gaps,
    ranges,
    within,
)
from consumerd.spark.source.files.reading import read_files_split
from consumerd.spark.source.request import ReadRequest
from consumerd.spark.source.split import FilesSplit, RangeFile
from consumerd.wire.v07 import Codec, decode_batch, encode_message_set

HERE = TopicPartition("events", 3, 10)
ALL = tuple(column.name for column in COLUMNS)
PAYLOADS = (b'text "quoted" \\ \n\x00', b"\xff\xfe\x00 no text", "żółć \U0001f600 \u2028".encode(), b"", b"{}")
LOG = b"".join(
    encode_message_set(
        [PAYLOADS[(n + m) % len(PAYLOADS)] + b"%d.%d" % (n, m) for m in range(1 + n % 4)],
        codec=(Codec.NONE, Codec.GZIP, Codec.SNAPPY)[n % 3],
    )
    for n in range(60)
)
START = 1000
EXPECTED = list(decode_batch(LOG, START).messages())


async def store(directory: Path, *, seed: int = 1, partition: TopicPartition = HERE, start: int = START) -> None:
    """Write the output of the daemon: batches with other boundaries for each seed."""
    rng = random.Random(seed)
    handler = FilesHandler(directory)
    await handler.position(partition)
    position = 0
    while position < len(LOG):
        batch = decode_batch(LOG[position : position + rng.randrange(200, 600)], start + position)
        await handler.handle(Batch(partition, batch))
        position = batch.next_offset - start
    await handler.stop()


def read(splits: Iterable[FilesSplit], **request: object) -> list[dict[str, object]]:
    columns = request.pop("columns", ALL)
    asked = ReadRequest(columns, **request)  # type: ignore[arg-type]
    return [row for split in splits for batch in read_files_split(split, asked) for row in batch.to_pylist()]


def splits_of(files: list[RangeFile], start: int = 0, end: int = 1 << 40, size: int = 1 << 40) -> list[FilesSplit]:
    return list(files_splits(HERE.topic, HERE.name, files, start, end, size))


async def test_reads_every_message_with_its_identity_and_offset(tmp_path: Path) -> None:
    await store(tmp_path)
    ((_, files),) = ranges(str(tmp_path)).items()
    assert len(files) > 5
    rows = read(splits_of(files))
    assert [(row["offset"], row["index"], row["next_offset"], row["value"]) for row in rows] == EXPECTED
    same = {
        "key": None, "topic": "events", "partition": 10, "timestamp": None, "timestampType": None, "headers": None,
        "broker": 3, "broker_partition": "3-10", "codec": None, "crc_ok": True, "_corrupt": None,
    }  # fmt: skip
    assert all({name: row[name] for name in same} == same for row in rows)


@pytest.mark.parametrize("size", [0, 700, 1 << 30])
async def test_splits_have_the_requested_size_and_each_message_once(tmp_path: Path, size: int) -> None:
    await store(tmp_path, seed=size)
    ((_, files),) = ranges(str(tmp_path)).items()
    splits = splits_of(files, size=size)
    assert len(splits) == {0: len(files), 1 << 30: 1}.get(size, len(splits))
    assert all(split.end - split.start <= size or len(split.files) == 1 for split in splits)
    rows = read(splits, columns=("offset", "index", "next_offset", "value"))
    assert [tuple(row.values()) for row in rows] == EXPECTED


async def test_respects_offsets_within_a_range(tmp_path: Path) -> None:
    await store(tmp_path)
    ((_, files),) = ranges(str(tmp_path)).items()
    positions = sorted({offset for offset, *_ in EXPECTED})
    for start, end in [(positions[3], positions[40]), (positions[1], positions[2]), (files[1].start, files[1].end)]:
        rows = read(splits_of(files, start, end), columns=("offset", "index", "next_offset", "value"))
        assert [tuple(row.values()) for row in rows] == [message for message in EXPECTED if start <= message[0] < end]


async def test_lists_only_finished_ranges_of_valid_partitions(tmp_path: Path) -> None:
    other = TopicPartition("a topic: with *", 0, 2)
    await store(tmp_path)
    await store(tmp_path, partition=other)
    folder = tmp_path / HERE.topic / HERE.name
    finished = sorted(path.name for path in folder.iterdir())
    for name in (".writer-1", ".fenced-2"):
        (folder / name).mkdir()
        (folder / name / f"{99999:020}-{99999999:020}.ndjson").write_bytes(b"half")
    (folder / "notes.txt").write_text("x")
    (folder / f"{5:020}-{5:020}.ndjson").write_text("")
    for name in (".hidden/0-0", "events/no-partition", "events/00-1", "file-in-place-of-a-folder/x"):
        (tmp_path / name).mkdir(parents=True)
    found = ranges(str(tmp_path))
    assert list(found) == [(other.topic, other.name), (HERE.topic, HERE.name)]
    assert [Path(file.path).name for file in found[HERE.topic, HERE.name]] == finished
    with pytest.raises(NotFoundError, match="does not exist"):
        ranges(str(tmp_path / "missing"))


async def test_rejects_overlapping_ranges_by_name(tmp_path: Path) -> None:
    await store(tmp_path)
    ((_, files),) = ranges(str(tmp_path)).items()
    double = Path(files[2].path).with_name(f"{files[2].start + 1:020}-{files[2].end:020}.ndjson")
    double.write_bytes(b"")
    with pytest.raises(OverlappingRangesError, match=f"{files[2].path} and {double}"):
        ranges(str(tmp_path))


def test_gaps_between_ranges_are_gaps_of_the_log() -> None:
    files = [RangeFile(10, 20, "a"), RangeFile(20, 30, "b"), RangeFile(45, 50, "c")]
    assert gaps(files) == [(30, 45)]
    assert gaps([]) == []
    assert [file.path for file in within(files, 0, 10)] == []
    assert [file.path for file in within(files, 19, 21)] == ["a", "b"]
    assert [file.path for file in within(files, 30, 45)] == []
    assert [file.path for file in within(files, 30, 46)] == ["c"]
    assert [boundary(files, wanted) for wanted in (0, 20, 21, 31, 50, 99)] == [20, 20, 30, 50, 50, 50]
    assert boundary([], 5) is None


def damage(path: str, line: int, text: bytes) -> None:
    lines = Path(path).read_bytes().splitlines(keepends=True)
    lines[line] = text
    Path(path).write_bytes(b"".join(lines))


def record(**members: object) -> bytes:
    return json.dumps({"topic": "events", "broker": 3, "partition": 10} | members).encode() + b"\n"


@pytest.fixture
def damaged(tmp_path: Path) -> list[RangeFile]:
    """Three plain messages in a file, at offsets 10, 20 and 30 of its range 10 to 40."""
    folder = tmp_path / HERE.topic / HERE.name
    folder.mkdir(parents=True)
    path = folder / f"{10:020}-{40:020}.ndjson"
    path.write_bytes(b"".join(record(offset=o, index=0, payload=f"m{o}") for o in (10, 20, 30)))
    return ranges(str(tmp_path))[HERE.topic, HERE.name]


WRONG = {
    b"no json\n": "is not JSON",
    b"[1]\n": "not a JSON object",
    b"\n": "is not JSON",
    b"\xef\xbb\xbf" + record(offset=20, index=0, payload="x"): "is not JSON",
    record(offset=20, index=0, payload="x").replace(b'"x"', b'"\xff"'): "is not JSON",
    record(offset=20, index=0, payload="x", extra=1): "the field 'extra'",
    record(offset=20, offsett=0, payload="x"): "the field 'offsett'",
    record(offset=20, index=0, payload="x").replace(b'"index"', b'"offset": 21, "index"'): "a field occurs twice",
    record(offset=20, index=0, payload="x", topic="other"): "topic 'other', and its directory 'events'",
    record(offset=20, index=0, payload="x", broker=4): "broker '4', and its directory 3",
    record(offset=20, index=0, payload="x", partition="10"): "partition '10', and its directory 10",
    record(offset=20.0, index=0, payload="x"): "offset is '20.0'",
    record(index=0, payload="x"): "offset is 'None'",
    record(offset=40, index=0, payload="x"): "offset 40 is not within the file's range, 10 to 40",
    record(offset=9, index=0, payload="x"): "offset 9 is not within",
    record(offset=10, index=0, payload="x"): "does not follow offset 10, index 0",
    record(offset=20, index=-1, payload="x"): "index is '-1'",
    record(offset=20, index=1 << 31, payload="x"): "index 2147483648",
    record(offset=20, index=0): "exactly one of payload",
    record(offset=20, index=0, payload="x", payload_base64="eA=="): "exactly one of payload",
    record(offset=20, index=0, payload=1): "not a string",
    record(offset=20, index=0, payload="\ud800"): "payload is not text",
    record(offset=20, index=0, payload_base64="eA"): "not base64",
    record(offset=20, index=0, payload_base64="e A=="): "not base64",
}


@pytest.mark.parametrize("line", WRONG)
def test_an_invalid_line_is_a_row_with_the_reason(damaged: list[RangeFile], line: bytes) -> None:
    damage(damaged[0].path, 1, line)
    rows = read(splits_of(damaged))
    assert [(row["offset"], row["index"], row["next_offset"], row["value"], row["crc_ok"]) for row in rows] == [
        (10, 0, 10, b"m10", True),
        (10, 1, 30, line[:-1], None),  # behind the line before it, and the positions still follow each other
        (30, 0, 40, b"m30", True),
    ]
    assert WRONG[line] in str(rows[1]["_corrupt"])
    assert rows[0]["_corrupt"] is rows[2]["_corrupt"] is None
    assert [row["value"] for row in read(splits_of(damaged), mode=ParseMode.DROPMALFORMED)] == [b"m10", b"m30"]
    with pytest.raises(MalformedMessageError, match="mode=PERMISSIVE"):
        read(splits_of(damaged), mode=ParseMode.FAILFAST)


def test_reports_a_truncated_file(damaged: list[RangeFile]) -> None:
    path = Path(damaged[0].path)
    path.write_bytes(path.read_bytes()[:-5])
    rows = read(splits_of(damaged))
    assert [(row["offset"], row["index"], row["next_offset"]) for row in rows] == [
        (10, 0, 20),
        (20, 0, 20),
        (20, 1, 40),
    ]
    assert rows[2]["_corrupt"] == "the file ends within a line"


def test_a_removed_file_follows_fail_on_data_loss(damaged: list[RangeFile]) -> None:
    splits = splits_of(damaged)
    Path(damaged[0].path).unlink()
    with pytest.raises(DataLossError, match=r"the offsets 10 to 40 of events/3-10 are lost.*failOnDataLoss=false"):
        read(splits)
    assert read(splits, fail_on_data_loss=False) == []


def test_batches_have_the_requested_columns_in_order(damaged: list[RangeFile]) -> None:
    (batch,) = read_files_split(splits_of(damaged)[0], ReadRequest(("next_offset", "topic", "headers")))
    assert batch.schema.names == ["next_offset", "topic", "headers"]
    assert batch.schema.types == [pa.int64(), pa.string(), HEADERS.arrow]
    assert CORRUPT.name not in batch.schema.names
