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
def test_other_names_are_none(name: str) -> None:
    assert parse_segment_name(name) is None


def test_a_closed_segment_keeps_its_file_for_its_readers(tmp_path: Path) -> None:
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
