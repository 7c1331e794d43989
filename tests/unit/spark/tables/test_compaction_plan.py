from __future__ import annotations

from consumerd.spark.tables.layout import BatchFolder, Slice, batch_name, merged_name
from consumerd.spark.tables.parquet import SizedSlice, plan

TARGET = 100


def batch(number: int, size: int, files: int = 1) -> SizedSlice:
    return SizedSlice(Slice(BatchFolder(batch_name(number), number, number), number, number), files, size)


def merged(first: int, last: int, size: int, files: int = 1) -> SizedSlice:
    return SizedSlice(Slice(BatchFolder(merged_name(first, last), first, last), first, last), files, size)


def names(*weighed: SizedSlice) -> list[tuple[str, int]]:
    return [(group.name, group.parts) for group in plan(weighed, TARGET)]


def test_merges_neighbours_up_to_the_target() -> None:
    assert names(*(batch(n, 30) for n in range(7))) == [(merged_name(0, 2), 1), (merged_name(3, 5), 1)]


def test_keeps_directories_that_are_large_enough() -> None:
    assert names(batch(0, 100), batch(1, 250), merged(2, 9, 90)) == []
    assert names(batch(0, 250, files=10)) == [(merged_name(0, 0), 2)]


def test_a_completed_plan_is_idempotent() -> None:
    assert names(merged(0, 2, 90), merged(3, 5, 90), batch(6, 30)) == []
    assert names(merged(0, 2, 10, files=2)) == []  # its name is taken by itself


def test_merges_the_small_last_group_again() -> None:
    assert names(merged(0, 2, 90), merged(3, 4, 50), batch(5, 10), batch(6, 0)) == [(merged_name(3, 6), 1)]


def test_groups_leave_no_batch_out() -> None:
    assert names(batch(0, 1), batch(1, 1), batch(3, 1), batch(4, 1)) == [(merged_name(0, 1), 1), (merged_name(3, 4), 1)]
    assert names() == []
