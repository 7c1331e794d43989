from __future__ import annotations

import pytest

from consumerd.storage.segments.names import (
    PartitionFolderName,
    SegmentFileName,
    parse_partition_folder,
    parse_segment_file,
)

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
