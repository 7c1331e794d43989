from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from consumerd.storage import CorruptLogError, OsFiles, segment_name
from consumerd.storage.log.loading import load_segments
from tests.unit.storage.log.test_files import Counted

Message = Callable[..., bytes]


@pytest.mark.parametrize("tail", [b"", b"torn"])
def test_syncs_what_a_killed_process_may_not_have_synced(tmp_path: Path, message: Message, tail: bytes) -> None:
    path = tmp_path / segment_name(0)
    path.write_bytes(message(b"a") + tail)
    system = Counted()
    (segment,), cut = load_segments(tmp_path, OsFiles(system), None)
    cuts = [path] if tail else []  # the cut is made durable, too
    assert system.synced == [tmp_path, *cuts, path]
    assert (cut.dropped if cut else 0) == len(tail)
    assert segment.flushed == segment.size == len(message(b"a"))
    segment.close()
    assert system.paths == {}


def test_syncs_no_bytes_of_an_empty_segment(tmp_path: Path) -> None:
    """A start with thousands of empty logs syncs their names alone."""
    (tmp_path / segment_name(7)).touch()
    system = Counted()
    (segment,), _ = load_segments(tmp_path, OsFiles(system), None)
    segment.close()
    assert system.synced == [tmp_path]


def test_syncs_nothing_after_a_clean_stop(tmp_path: Path, message: Message) -> None:
    (tmp_path / segment_name(0)).write_bytes(message(b"a"))
    system = Counted()
    (segment,), _ = load_segments(tmp_path, OsFiles(system), len(message(b"a")))
    segment.close()
    assert system.synced == []


def test_failed_loading_leaves_no_file_open(tmp_path: Path, message: Message) -> None:
    for start in (0, 12):
        (tmp_path / segment_name(start)).write_bytes(message(b"a"))
    system = Counted()
    with pytest.raises(CorruptLogError, match="should end at offset 12"):
        load_segments(tmp_path, OsFiles(system), None)
    assert system.paths == {}
