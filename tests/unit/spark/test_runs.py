"""Runs of rows cover exactly the places of their rows, whatever the order, and sum their hashes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from consumerd.spark.runs import KINDS, joined, runs_of


class Row(NamedTuple):
    name: str
    seen: bool
    offset: int
    index: int  # type: ignore[assignment]
    next_offset: int
    hash: int


def log(leaves: Sequence[int], name: str = "0-0") -> list[Row]:
    """A log of messages with so many leaves each, ten bytes apart."""
    rows = []
    for number, count in enumerate(leaves):
        for index in range(count):
            end = 10 * (number + 1) if index == count - 1 else 10 * number
            rows.append(Row(name, number % 5 < 3, 10 * number, index, end, (number << 58) - index))
    return rows


def found_runs(rows: Sequence[Row]) -> pa.Table:
    columns = [
        pa.array(["t"] * len(rows), pa.string()),
        pa.array([row.name for row in rows], pa.string()),
        pa.array([row.offset for row in rows], pa.int64()),
        pa.array([row.index for row in rows], pa.int32()),
        pa.array([row.next_offset for row in rows], pa.int64()),
        pa.array([row.seen for row in rows], pa.bool_()),
        *(pa.array([True] * len(rows), pa.bool_()) for _ in KINDS[1:]),
        pa.array([row.hash for row in rows], pa.int64()),
    ]
    found = pa.Table.from_batches([runs_of(columns)])
    hashes = pa.scalar(3, pa.int64())
    constant = [pa.scalar("t"), *columns[1:6], *(pa.scalar(True) for _ in KINDS[1:]), hashes]
    by_scalars = pa.Table.from_batches([runs_of(constant)])
    assert by_scalars.drop_columns("hash").equals(found.drop_columns("hash"))
    assert by_scalars["hash"].to_pylist() == [3 * each for each in found["rows"].to_pylist()]
    return found


def follow(name: str, place: tuple[int, int], by_place: dict[tuple[str, int, int], Row]) -> tuple[int, int]:
    row = by_place[name, *place]
    return (row.next_offset, 0) if row.next_offset > row.offset else (row.offset, row.index + 1)


@given(st.data())
def test_runs_represent_their_rows(data: st.DataObject) -> None:
    leaves = st.lists(st.integers(1, 4), max_size=12)
    rows = log(data.draw(leaves)) + log(data.draw(leaves), "0-1")
    rows = [row for row in rows if data.draw(st.integers(0, 5))]
    rows += [row for row in rows if not data.draw(st.integers(0, 4))]
    if data.draw(st.booleans()):
        rows = data.draw(st.permutations(rows))
    by_place = {(row.name, row.offset, row.index): row for row in rows}
    # Runs of parts are those of the whole, once they are joined.
    middle = data.draw(st.integers(0, len(rows)))
    parts = [found_runs(rows[:middle]), found_runs(rows[middle:])]
    result = joined(pa.concat_tables(parts)).to_pylist()
    assert result == found_runs(rows).to_pylist()
    covered: Counter[tuple[str, int, int]] = Counter()
    hashes: Counter[tuple[str, bool]] = Counter()
    for run in result:
        name = str(run["broker_partition"])
        place, count = (run["start_offset"], run["start_index"]), 0
        while place != (run["end_offset"], run["end_index"]):
            covered[name, *place] += 1
            assert by_place[name, *place].seen == run["seen"]
            place, count = follow(name, place, by_place), count + 1
        assert count == run["rows"]
        hashes[name, bool(run["seen"])] += int(str(run["hash"]))
    assert covered == Counter((row.name, row.offset, row.index) for row in rows)
    for key in hashes:
        expected = sum(row.hash for row in rows if (row.name, row.seen) == key)
        assert (hashes[key] - expected) % (1 << 64) == 0


def test_rows_in_log_order_are_one_run() -> None:
    rows = [row._replace(seen=True) for row in log([1, 3, 1, 2])]
    (last,) = found_runs(rows).to_pylist()
    assert (last["start_offset"], last["end_offset"], last["end_index"], last["rows"]) == (0, 40, 0, 7)


def test_a_missing_last_message_of_a_wrapper_breaks_the_run() -> None:
    rows = [row._replace(seen=True) for row in log([3, 1])]
    del rows[2]
    runs = found_runs(rows).to_pylist()
    ends = [(run["start_offset"], run["start_index"], run["end_offset"], run["end_index"]) for run in runs]
    assert ends == [(0, 0, 0, 2), (10, 0, 20, 0)]
    assert found_runs([]).num_rows == joined(found_runs([])).num_rows == 0
