from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from consumerd.storage import OsFiles, Segment, StorageError, parse_segment_name, segment_name


def test_names_have_twenty_digits() -> None:
    assert segment_name(0) == "00000000000000000000.kafka"
    assert segment_name(2160) == "00000000000000002160.kafka"
    assert parse_segment_name("00000000000000002160.kafka") == 2160
    assert parse_segment_name("7.kafka") == 7


@pytest.mark.parametrize(
    "name", ["", ".kafka", "x.kafka", "-1.kafka", "1", "1.kafka.tmp", "9223372036854775808.kafka", "\u0661.kafka"]
)
def test_rejects_other_names(name: str) -> None:
    assert parse_segment_name(name) is None


def test_closed_segment_keeps_its_file_open_for_readers(tmp_path: Path) -> None:
    file = OsFiles().open(tmp_path / "0.kafka", create=True)
    segment = Segment(tmp_path / "0.kafka", file, 0, 0)
    segment.append(b"abc", 0.0)
    assert segment.retain()
    assert segment.retain()
    segment.close()
    assert not segment.retain()
    segment.release()
    assert file.read_at(0, 3) == b"abc"
    segment.release()
    with pytest.raises(StorageError, match="cannot read"):
        file.read_at(0, 3)
    segment.close()


def test_reopens_a_resting_file_on_use(tmp_path: Path) -> None:
    path = tmp_path / segment_name(0)
    segment = Segment(path, OsFiles().open(path, create=True), 0, 0)
    file = segment.file

    def descriptor() -> int | None:
        return file._descriptor

    segment.append(b"abc", 0.0)
    segment.rest(at_once=True)
    assert descriptor() is not None  # not while something is not flushed
    file.sync()
    segment.flushed = segment.size
    assert segment.retain()
    segment.rest(at_once=True)
    assert descriptor() is not None  # nor during a read
    segment.release()
    segment.rest()
    assert descriptor() is not None  # it was used since the last look
    segment.rest()
    assert descriptor() is None
    uses: list[Callable[[], object]] = [
        file.size,
        file.fileno,
        file.sync,
        lambda: file.read_at(0, 3),
        lambda: file.cached(0, 3),
        lambda: file.write_at(3, b"d"),
    ]
    for use in uses:
        use()
        assert descriptor() is not None
        file.rest(at_once=True)
        assert descriptor() is None
    assert file.read_at(0, 10) == b"abcd"
    file.rest(at_once=True)
    assert file.modified_ms() == path.stat().st_mtime_ns // 1_000_000
    assert descriptor() is None  # retention asks it of all segments at once
    segment.close()
    assert not segment.retain()
    for use in (file.size, file.modified_ms):
        with pytest.raises(StorageError, match="Bad file descriptor"):
            use()


def test_reader_keeps_reading_a_file_put_to_rest(tmp_path: Path) -> None:
    path = tmp_path / segment_name(0)
    path.write_bytes(b"abc")
    segment = Segment(path, OsFiles().open(path, create=False), 0, 3)
    segment.rest(at_once=True)
    assert segment.retain()
    path.unlink()
    segment.close()
    assert segment.file.read_at(0, 3) == b"abc"
    segment.release()
