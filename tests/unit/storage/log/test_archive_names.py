from __future__ import annotations

import pytest

from consumerd.base.errors import ConfigError
from consumerd.storage.log.archive_names import (
    ArchiveLayout,
    MisnamedSegmentError,
    PartitionFolderName,
    SegmentFileName,
    SegmentName,
    parse_partition_folder,
    parse_segment_file,
    segment_start,
)

FILE = "00000000000000000042.kafka"


@pytest.mark.parametrize(
    ("layout", "path", "expected"),
    [
        ("{topic}-{partition}", f"/a/events-0/{FILE}", SegmentName("events", None, 0, 42)),
        ("{topic}-{partition}", f"events-12/{FILE}.gz", SegmentName("events", None, 12, 42)),
        ("{topic}-{partition}", f"/x.tar!/a-b-3/{FILE}.zst", SegmentName("a-b", None, 3, 42)),
        ("{topic}-{partition}", "/a/t-1/7.kafka", SegmentName("t", None, 1, 7)),
        ("b{broker}/*/{topic}-{partition}", f"/b7/logs/t-1/{FILE}", SegmentName("t", 7, 1, 42)),
        ("{broker}.tar.gz/{topic}-{partition}", f"/x/3.tar.gz!/t-1/{FILE}", SegmentName("t", 3, 1, 42)),
        ("{topic}/{partition}", f"/été x/2/{FILE}", SegmentName("été x", None, 2, 42)),
        ("host-*-{broker}/{topic}_{partition}", f"host-a-b-9/t_0/{FILE}", SegmentName("t", 9, 0, 42)),
        ("{topic}.{partition}+(x)", f"t.1+(x)/{FILE}", SegmentName("t", None, 1, 42)),
    ],
)
def test_maps_names(layout: str, path: str, expected: SegmentName) -> None:
    assert ArchiveLayout(layout).name(path) == expected


def test_takes_the_broker_from_the_option() -> None:
    name = ArchiveLayout(broker=5).name(f"/a/events-0/{FILE}")
    assert name == SegmentName("events", 5, 0, 42)
    assert name.folder == "events/5-0"
    assert name._replace(broker=None).folder == "events/0"


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("/a/events-0/copy.kafka", "is not named by its first message's offset"),
        ("/a/events-0/-1.kafka", "is not named by its first message's offset"),
        (f"/a/events-0/{(1 << 63) - 5}.kafka", "is not named by its first message's offset"),
        ("/a/events-0/x.txt", "is not named by its first message's offset"),
        (f"/a/events/{FILE}", "does not match the layout"),
        (FILE, "does not match the layout"),
        (f"/a/events-x/{FILE}", "does not match the layout"),
        (f"/a/..-0/{FILE}", "has an invalid topic name"),
        (f"/a/a\x07b-0/{FILE}", "has an invalid topic name"),
        (f"/a/{'x' * 256}-0/{FILE}", "has an invalid topic name"),
        (f"/a/t-2147483648/{FILE}", "invalid partition or broker number"),
        (f"/a/t-99999999999/{FILE}", "does not match the layout"),
    ],
)
def test_rejects_misnamed_segments(path: str, sentence: str) -> None:
    with pytest.raises(MisnamedSegmentError, match=sentence):
        ArchiveLayout().name(path)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{topic}", "must name {topic} and {partition}"),
        ("", "must name"),
        ("{topic}-{partition}-{host}", "names {host}, which does not exist"),
        ("{topic}-{topic}-{partition}", "names {topic}, twice"),
        ("{topic-{partition}", "has an unmatched brace"),
        ("{topic}-{partition}}", "has an unmatched brace"),
    ],
)
def test_rejects_invalid_layouts(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        ArchiveLayout(text)


def test_rejects_a_broker_in_both_layout_and_option() -> None:
    with pytest.raises(ConfigError, match="already names the broker"):
        ArchiveLayout("{broker}/{topic}-{partition}", broker=1)


def test_parses_start_offsets() -> None:
    assert segment_start(FILE) == segment_start(FILE + ".gz") == 42
    assert segment_start("events.tar") is None


def test_segments_begin_where_the_largest_one_ends_at_an_int64() -> None:
    most = (1 << 63) - 1 - (1 << 32)
    assert segment_start(f"{most}.kafka") == most
    assert segment_start(f"{most + 1}.kafka") is None


ID = "0123456789abcdef" * 2


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("00000000000000000042.log", SegmentFileName(42, "")),
        ("00000000000000000042.log.deleted", SegmentFileName(42, "deleted")),
        ("00000000000000000000.log.swap", SegmentFileName(0, "swap")),
        ("00000000000000000000.log.cleaned", SegmentFileName(0, "cleaned")),
        ("99999999999999999999.log", None),
        ("00000000000000000042.kafka", None),
        ("00000000000000000042.index", None),
        ("server.log", None),
        ("00000000000000000042.log.bak", None),
    ],
)
def test_file_names(name: str, found: SegmentFileName | None) -> None:
    assert parse_segment_file(name) == found


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("events-0", PartitionFolderName("events", 0, "")),
        ("a-b-12", PartitionFolderName("a-b", 12, "")),
        ("a.b-12", PartitionFolderName("a.b", 12, "")),
        (f"events-0.{ID}-delete", PartitionFolderName("events", 0, "delete")),
        (f"events-0.{ID}-future", PartitionFolderName("events", 0, "future")),
        (f"events-0.{ID}-stray", PartitionFolderName("events", 0, "stray")),
        ("events-99999999999", None),
        ("events", None),
        (f"events-0.{ID}-other", None),
    ],
)
def test_folder_names(name: str, found: PartitionFolderName | None) -> None:
    assert parse_partition_folder(name) == found
