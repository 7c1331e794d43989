"""Planning over the files handler's output: where partitions begin and end, and where they may be cut."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from consumerd.spark.source.files.origin import FilesLog, FilesOrigin
from consumerd.spark.source.option_values import FilesLocation
from consumerd.spark.source.options import read_options


def write(directory: Path, topic: str, name: str, *ranges: tuple[int, int, list[tuple[int, int]]]) -> None:
    """Files of ranges with messages at these (offset, index)."""
    folder = directory / topic / name
    folder.mkdir(parents=True, exist_ok=True)
    broker, partition = map(int, name.split("-"))
    for start, end, positions in ranges:
        lines = [
            json.dumps(
                {"topic": topic, "broker": broker, "partition": partition, "offset": o, "index": i, "payload": ""}
            )
            for o, i in positions
        ]
        (folder / f"{start:020}-{end:020}.ndjson").write_text("".join(f"{line}\n" for line in lines))


def origin(directory: Path, **choice: str) -> FilesOrigin:
    options = read_options({"files": str(directory), **choice})
    assert isinstance(options.location, FilesLocation)
    return FilesOrigin(options.location, options)


@pytest.fixture
def log(tmp_path: Path) -> FilesLog:
    plain = [
        (100, 200, [(100, 0), (150, 0), (150, 1)]),
        (200, 300, [(210, 0)]),
        (400, 900, []),
        (900, 1000, [(900, 0)]),
    ]
    write(tmp_path, "t", "1-2", *plain)
    return origin(tmp_path, subscribe="t").snapshot()["t", "1-2"]


def test_finds_selected_partitions_and_names_missing_ones(tmp_path: Path) -> None:
    write(tmp_path, "orders", "0-0", (0, 10, [(0, 0)]))
    write(tmp_path, "orders", "0-1", (5, 10, [(5, 0)]))
    write(tmp_path, "events", "0-0", (0, 10, [(0, 0)]))
    write(tmp_path, "empty", "0-0")
    assert sorted(origin(tmp_path, subscribePattern=".*").snapshot()) == [
        ("events", "0-0"), ("orders", "0-0"), ("orders", "0-1")
    ]  # fmt: skip
    assert list(origin(tmp_path, assign='{"orders": ["0-1"]}').snapshot()) == [("orders", "0-1")]
    wrong = origin(tmp_path, subscribe="order")
    assert wrong.missing(wrong.snapshot()) == "topic order does not exist, did you mean 'orders'?"


def test_partition_spans_its_ranges(log: FilesLog) -> None:
    assert (log.key, log.broker, log.partition, log.start, log.end) == (("t", "1-2"), 1, 2, 100, 1000)
    assert log.gaps() == [(300, 400)]


def test_accepts_only_offsets_where_a_message_begins(log: FilesLog) -> None:
    assert [log.message_at(offset) for offset in (100, 150, 200, 300, 400, 1000)] == [100, 150, 200, 300, 400, 1000]
    assert [log.message_at(offset) for offset in (120, 170, 350, 99, 1001)] == [100, None, None, None, None]


def test_trigger_takes_whole_ranges_and_at_least_one(log: FilesLog) -> None:
    assert log.limited(100, 100) == 200
    assert log.limited(100, 199) == 200
    assert log.limited(100, 250) == 300
    assert log.limited(300, 1) == 900
    assert log.limited(150, 1) == 200
    assert log.limited(100, 5000) == 1000
    assert log.limited(1000, 5) == 1000


def test_timestamps_are_those_of_the_files(log: FilesLog) -> None:
    for number, file in enumerate(log.files):
        os.utime(file.path, (1000 + number, 1000 + number))
    assert [log.before(seconds * 1000) for seconds in (999, 1000, 1001, 1003, 1004)] == [100, 100, 200, 900, 1000]


def test_splits_cover_the_requested_range(log: FilesLog) -> None:
    found = [(split.start, split.end) for split in log.splits(150, 950, 200)]
    assert found == [(150, 300), (400, 900), (900, 950)]
    assert len(log.splits(100, 1000, 0)) == 1
