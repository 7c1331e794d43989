"""Large segments in parts, by their indexes: every message is in one split, whatever the index says."""

from __future__ import annotations

import itertools
import struct
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from consumerd.spark.source.columns import ParseMode
from consumerd.spark.source.split import FileRange
from consumerd.spark.source.v08.segment_parts import parts_of
from tests.support.archives import batch, write_segment
from tests.unit.spark.source.v08.test_stored import offsets, plan, rows

if TYPE_CHECKING:
    from consumerd.spark.source.split import Split

#: The first offset of the segment, and batches of two messages in it.
FIRST, BATCHES = 10, 40


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    """A segment with an entry of its index for each fourth batch."""
    batches = [batch(FIRST + 2 * number, b"%d" % number, b"x" * number) for number in range(BATCHES)]
    file = write_segment(tmp_path, "t-3", FIRST, *batches)
    index, position = b"", 0
    for number, data in enumerate(batches):
        if number % 4 == 3:
            index += struct.pack(">ii", 2 * number + 1, position)
        position += len(data)
    file.with_suffix(".index").write_bytes(index + b"\0" * 80)  # reserved space, as of the active segment
    return file


def read(splits: list[Split]) -> list[int]:
    assert all(before.end == after.start for before, after in itertools.pairwise(splits))
    return offsets(splits)


EVERYTHING = list(range(FIRST, FIRST + 2 * BATCHES))


def test_a_segment_with_an_index_is_read_in_parts(tmp_path: Path, segment: Path) -> None:
    splits = plan(tmp_path, maxSplitBytes="1000")
    assert len(splits) == 4
    assert read(splits) == EVERYTHING
    assert len(plan(tmp_path)) == len(plan(tmp_path, maxSplitBytes="0")) == 1
    parts = parts_of(FileRange(str(segment), FIRST), 1000)
    gaps = [after.position - before.position for before, after in itertools.pairwise(parts)]
    assert min(gaps) >= 1000


def test_a_range_begins_and_ends_inside_of_parts(tmp_path: Path, segment: Path) -> None:
    bounds = {"startingOffsets": '{"t": {"3": 33}}', "endingOffsets": '{"t": {"3": 71}}'}
    splits = plan(tmp_path, maxSplitBytes="1000", **bounds)
    assert len(splits) > 1
    assert read(splits) == list(range(33, 71))


@pytest.mark.parametrize(
    "index",
    [
        b"",
        b"\0" * 80,
        b"\xff" * 80,
        struct.pack(">ii", 5, 1001),  # not the beginning of a batch
        struct.pack(">ii", 1 << 30, 1 << 30),  # behind the end
        struct.pack(">iiii", 30, 1200, 20, 2400),  # back
    ],
)
def test_an_index_that_is_wrong_costs_parts_and_no_messages(tmp_path: Path, segment: Path, index: bytes) -> None:
    segment.with_suffix(".index").write_bytes(index)
    splits = plan(tmp_path, maxSplitBytes="1000")
    assert len(splits) == 1
    assert read(splits) == EVERYTHING


def test_damage_is_reported_by_the_part_that_has_it_with_its_place(tmp_path: Path, segment: Path) -> None:
    data = bytearray(segment.read_bytes())
    parts = parts_of(FileRange(str(segment), FIRST), 1000)
    data[parts[2].position - 1] ^= 1  # the last byte of the second part
    segment.write_bytes(data)
    splits = plan(tmp_path, maxSplitBytes="1000")
    found = rows(splits, ("offset", "value", "_corrupt"), ParseMode.PERMISSIVE)
    lost = parts[2].offset - 2
    assert [row["offset"] for row in found] == [each for each in EVERYTHING if each != lost + 1]
    (row,) = [row for row in found if row["_corrupt"] is not None]
    assert row["offset"] == lost
