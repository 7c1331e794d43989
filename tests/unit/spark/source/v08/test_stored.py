from __future__ import annotations

import gzip
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import zstandard

from consumerd.base.errors import NotFoundError
from consumerd.spark.source.columns import ParseMode
from consumerd.spark.source.errors import FileReadError, MalformedMessageError
from consumerd.spark.source.filters import Pruning
from consumerd.spark.source.options import read_options
from consumerd.spark.source.planning import StreamPlanner, plan_batch
from consumerd.spark.source.reading import read_rows
from consumerd.spark.source.request import ReadRequest
from consumerd.storage.archives.sources import SegmentSource, find_sources
from consumerd.wire.v08.records import RecordCodec, encode_message_set, encode_record_batch

if TYPE_CHECKING:
    from consumerd.spark.source.split import Split

OLD = encode_message_set([b"a", b"b"], magic=1, codec=RecordCodec.GZIP, timestamps=1000, base_offset=0)
BATCH = encode_record_batch(
    [b"c", None, b"e"],
    keys=[b"k", None, b""],
    headers={0: (("h", b"1"),)},
    timestamps=[2000, 3000, 4000],
    base_offset=2,
)
LATER = encode_record_batch([b"f"], timestamps=9000, base_offset=7, leader_epoch=4)
COLUMNS = ("offset", "value")


def write(folder: Path, start: int, data: bytes, name: str = "t-3") -> Path:
    path = folder / name / f"{start:020d}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def plan(folder: Path, **options: str) -> list[Split]:
    return plan_batch(read_options({"path": str(folder), "subscribe": "t", **options}), Pruning())


def rows(
    splits: list[Split], columns: tuple[str, ...] = COLUMNS, mode: ParseMode = ParseMode.FAILFAST
) -> list[dict[str, Any]]:
    request = ReadRequest(columns, mode)
    return [row for split in splits for batch in read_rows(split, request) for row in batch.to_pylist()]


def offsets(splits: list[Split]) -> list[int]:
    return [row["offset"] for row in rows(splits)]


def test_one_of_two_copies_of_a_partition_is_read_and_the_other_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name, data in (("one", OLD), ("two", OLD + BATCH)):
        (tmp_path / name).mkdir()
        write(tmp_path / name, 0, data)
    paths = f"{tmp_path / 'one'},{tmp_path / 'two'}"
    planner = StreamPlanner(read_options({"path": paths, "subscribe": "t"}))
    with caplog.at_level(logging.WARNING):
        start = planner.initial()
        planner._looked = -1000.0  # the last look is older than its age
        planner.latest(start, None)
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path}/one/t-3: it ends at offset 2, and {tmp_path}/two/t-3 at 5"
    ]
    assert offsets(plan_batch(read_options({"path": paths, "subscribe": "t"}), Pruning())) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("times", [4, 5])
def test_planning_lists_again_what_a_running_broker_deletes_meanwhile(
    tmp_path: Path, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, 0, OLD)
    listings: list[Sequence[str]] = []

    def deleting(paths: Sequence[str]) -> list[SegmentSource]:
        found = find_sources(paths)
        listings.append(paths)
        return (
            [replace(each, path=each.path.replace("/t-3/", "/gone/t-3/")) for each in found]
            if len(listings) <= times
            else found
        )

    monkeypatch.setattr("consumerd.spark.source.v07.archive_origin.find_sources", deleting)
    if times == 5:
        with pytest.raises(NotFoundError, match="was deleted while the query was planned; start the query again"):
            plan(tmp_path)
    else:
        assert len(plan(tmp_path)) == 1
    assert len(listings) == 5


def test_segments_become_splits_with_keys_headers_and_timestamps(tmp_path: Path) -> None:
    write(tmp_path, 0, OLD)
    write(tmp_path, 2, BATCH + LATER + LATER[:20])
    write(tmp_path, 0, BATCH, f"t-3.{'0' * 32}-future")
    (tmp_path / "t-3" / f"{0:020d}.log.deleted").write_bytes(OLD)
    splits = plan(tmp_path)
    assert [(split.broker_partition, split.start, split.end) for split in splits] == [("3", 0, 2), ("3", 2, 8)]
    found = rows(splits, ("topic", "partition", "offset", "next_offset", "key", "value", "leader_epoch"))
    assert [tuple(row.values()) for row in found] == [
        ("t", 3, 0, 1, None, b"a", None),
        ("t", 3, 1, 2, None, b"b", None),
        ("t", 3, 2, 3, b"k", b"c", None),
        ("t", 3, 3, 4, None, None, None),
        ("t", 3, 4, 5, b"", b"e", None),
        ("t", 3, 7, 8, None, b"f", 4),
    ]
    stamps = [row["timestamp"].timestamp() for row in rows(splits, ("timestamp",))]
    assert stamps == [1, 1, 2, 3, 4, 9]
    assert rows(splits[1:], ("headers",))[0] == {"headers": [{"key": "h", "value": b"1"}]}


def test_offsets_inside_of_a_batch_begin_and_end_a_range(tmp_path: Path) -> None:
    write(tmp_path, 0, OLD + BATCH + LATER)
    splits = plan(tmp_path, startingOffsets='{"t": {"3": 1}}', endingOffsets='{"t": {"3": 4}}')
    assert rows(splits) == [{"offset": 1, "value": b"b"}, {"offset": 2, "value": b"c"}, {"offset": 3, "value": None}]


def test_timestamp_begins_at_the_first_batch_that_may_have_it(tmp_path: Path) -> None:
    write(tmp_path, 0, OLD + BATCH + LATER)
    assert offsets(plan(tmp_path, startingTimestamp="3500")) == [2, 3, 4, 7]


def test_stream_continues_where_the_last_segment_has_grown(tmp_path: Path) -> None:
    file = write(tmp_path, 0, OLD + BATCH[:30])
    planner = StreamPlanner(read_options({"path": str(tmp_path), "subscribe": "t", "startingOffsets": "earliest"}))
    start = planner.initial()
    first = planner.latest(start, None)
    assert offsets(planner.splits(start, first)) == [0, 1]
    file.write_bytes(OLD + BATCH)
    planner._looked = -1000.0  # the last look is older than its age
    second = planner.latest(first, None)
    assert offsets(planner.splits(first, second)) == [2, 3, 4]


def test_damaged_batch_is_one_row_and_reading_continues(tmp_path: Path) -> None:
    damaged = BATCH[:-1] + b"?"
    write(tmp_path, 0, OLD + damaged + LATER)
    splits = plan(tmp_path)
    with pytest.raises(MalformedMessageError, match=r"000\.log cannot be read at offset 2: the batch"):
        rows(splits)
    assert [row["offset"] for row in rows(splits, mode=ParseMode.DROPMALFORMED)] == [0, 1, 7]
    found = rows(splits, ("offset", "next_offset", "crc_ok", "_corrupt"), ParseMode.PERMISSIVE)
    assert [(row["offset"], row["next_offset"], row["crc_ok"]) for row in found] == [
        (0, 1, True),
        (1, 2, True),
        (2, 7, False),
        (7, 8, True),
    ]


def test_record_with_an_offset_that_was_read_before_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, 0, OLD + BATCH + BATCH + LATER)
    with caplog.at_level(logging.WARNING):
        assert offsets(plan(tmp_path)) == [0, 1, 2, 3, 4, 7]
    assert "records with offsets that were read before are left out" in caplog.text


def test_of_copies_in_compressed_files_one_is_read_and_with_a_broker_in_the_layout_each(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for broker, more in ((1, b""), (2, BATCH)):
        (tmp_path / f"b{broker}").mkdir()
        file = write(tmp_path / f"b{broker}", 0, gzip.compress(OLD + more))
        file.rename(file.with_name(file.name + ".gz"))
    with caplog.at_level(logging.WARNING):
        assert offsets(plan(tmp_path)) == [0, 1, 2, 3, 4]
    assert "b1/t-3: it ends at offset 2" in caplog.text
    splits = plan(tmp_path, layout="b{broker}/{topic}-{partition}")
    assert [split.broker_partition for split in splits] == ["1-3", "2-3"]


def test_reads_compressed_and_tiered_segments_and_refuses_encrypted_ones(tmp_path: Path) -> None:
    topic_id = "MkTsQ5zXQ2uVGZ0p3Zy4ag"
    path = write(tmp_path, 0, zstandard.compress(OLD), f"t-{topic_id}/3")
    tiered = path.rename(path.with_name(f"{0:020}-{topic_id}.log"))
    middle = write(tmp_path, 2, zstandard.compress(BATCH))
    middle.rename(middle.with_name(middle.name + ".zst"))
    write(tmp_path, 7, LATER)
    assert offsets(plan(tmp_path, maxSplitBytes="1")) == [0, 1, 2, 3, 4, 7]
    tiered.with_suffix(".rsm-manifest").write_text('{"version":"1","compression":true,"encryption":{}}')
    with pytest.raises(FileReadError, match="is encrypted, by its manifest"):
        plan(tmp_path)
