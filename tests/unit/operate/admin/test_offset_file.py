from __future__ import annotations

import json
import resource
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumerd.base.partition import TopicPartition
from consumerd.operate.admin.errors import OffsetFileError
from consumerd.operate.admin.offset_file import GroupOffsets, format_json, format_text, parse_offsets, write_durably
from consumerd.wire.registry.values import MAX_OFFSET

TEXT = "/consumers/g/offsets/t/0-0:12\n/consumers/g/offsets/t/0-10:0\n/consumers/g/offsets/t/0-2:7\n"
OFFSETS = {"g": {TopicPartition("t", 0, 0): 12, TopicPartition("t", 0, 2): 7, TopicPartition("t", 0, 10): 0}}

names = st.text(st.characters(min_codepoint=33, max_codepoint=0x4FF), min_size=1, max_size=8).filter(
    lambda name: name.strip() == name and "/" not in name and name.isprintable() and name not in (".", "..")
)
partitions = st.builds(TopicPartition, names, st.integers(0, 12), st.integers(0, 12))


def test_sorts_the_text_format_by_names() -> None:
    assert format_text(OFFSETS) == TEXT
    assert parse_offsets(TEXT, "here") == OFFSETS
    assert parse_offsets(TEXT.replace("\n", "\r\n\n"), "here") == OFFSETS


def test_json_keeps_partitions_without_an_offset() -> None:
    offsets = {"g": {**OFFSETS["g"], TopicPartition("u", 1, 1): None}}
    text = format_json(offsets, made="2012-01-01")
    assert json.loads(text) == {
        "groups": {"g": {"t": {"0-0": 12, "0-10": 0, "0-2": 7}, "u": {"1-1": None}}},
        "made": "2012-01-01",
    }
    assert parse_offsets(text, "here") == offsets
    assert format_text(offsets) == TEXT


@given(st.dictionaries(names, st.dictionaries(partitions, st.integers(0, MAX_OFFSET), min_size=1), min_size=1))
def test_reads_both_formats_back(offsets: dict[str, dict[TopicPartition, int]]) -> None:
    assert parse_offsets(format_text(offsets), "text") == offsets
    assert parse_offsets(format_json(offsets), "json") == offsets


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "holds no offsets"),
        ("{}", "not of the form"),
        ('{"groups": {}}', "holds no offsets"),
        ('{"groups": {"g": 1}}', "not of the form"),
        ('{"groups": {"g": {"t": []}}}', "not of the form"),
        ('{"groups": {"g": {"t": {"0-0": -1}}}}', "is -1"),
        ('{"groups": {"g": {"t": {"0-0": true}}}}', "is True"),
        ('{"groups": {"g": {"t": {"0-0": 1.5}}}}', "is 1.5"),
        ('{"groups": {"g": {"t": {"x": 1}}}}', "not the name of a partition"),
        ('{"groups": {"g/h": {"t": {"0-0": 1}}}}', "the group 'g/h'"),
        ('{"groups": {"g": {"t": {"0-0": 9223372036854775808}}}}', "greater than the greatest offset"),
        ("{" + "[" * 100_000, "is not JSON"),
        ("/consumers/g/offsets/t/0-0", "line 1"),
        ("\n/consumers/g/offsets/t/0-0:-1", "line 2"),
        ("/consumers/g/offsets/t/0-0:99999999999999999999", "greater than the greatest offset"),
        ("/consumers/g/offsets/t/0-0:1\n/consumers/g/offsets/t/0-0:2", "given twice"),
        ("/consumers/g/offsets/t/01:1", "is not the number of a partition"),
        ("/kafka/consumers/g/offsets/t/0-0:1", "line 1"),
    ],
)
def test_rejects_invalid_files(text: str, sentence: str) -> None:
    with pytest.raises(OffsetFileError, match="the file") as caught:
        parse_offsets(text, "the file")
    assert sentence in str(caught.value)


def test_writes_a_backup_once(tmp_path: Path) -> None:
    path = tmp_path / "offsets"
    write_durably(path, TEXT)
    with pytest.raises(OffsetFileError, match="already exists"):
        write_durably(path, "other")
    assert path.read_text() == TEXT
    with pytest.raises(OffsetFileError, match="cannot be written: No such file"):
        write_durably(tmp_path / "no" / "folder", TEXT)


def test_full_disk_leaves_no_part_of_a_backup(tmp_path: Path) -> None:
    """A part ends within a line: with a smaller offset, which an import would take for the committed one."""
    path, text = tmp_path / "offsets", "/consumers/g/offsets/t/0-0:123456\n"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(text) - 4, limits[1]))
    try:
        with pytest.raises(OffsetFileError, match="cannot be written: File too large"):
            write_durably(path, text)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []
    write_durably(path, text)
    assert path.read_text() == text


def test_reads_numbers_for_partitions_of_later_kafkas() -> None:
    offsets: GroupOffsets = {
        "g": {TopicPartition.numbered("t", 10): 1, TopicPartition.numbered("t", 2): None, TopicPartition("t", 0, 1): 3}
    }
    text = format_text(offsets)
    assert text == "/consumers/g/offsets/t/0-1:3\n/consumers/g/offsets/t/10:1\n"
    assert parse_offsets(text, "it") == {
        "g": {TopicPartition("t", 0, 1): 3, TopicPartition.numbered("t", 10): 1},
    }
    assert list(json.loads(format_json(offsets))["groups"]["g"]["t"]) == ["0-1", "2", "10"]
    assert parse_offsets(format_json(offsets), "it") == offsets
    of_a_broker: GroupOffsets = {"team/g": {TopicPartition.numbered("t", 1): 3}}
    assert parse_offsets(format_json(of_a_broker), "it") == of_a_broker
    with pytest.raises(OffsetFileError, match="use --format json"):
        format_text(of_a_broker)
