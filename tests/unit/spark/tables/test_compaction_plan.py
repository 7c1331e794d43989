from __future__ import annotations

from consumerd.spark.tables.compaction import Weighed, plan
from consumerd.spark.tables.layout import BatchFolder, Slice, batch_name, merged_name

TARGET = 100


def batch(number: int, size: int, files: int = 1) -> Weighed:
    return Weighed(Slice(BatchFolder(batch_name(number), number, number), number, number), files, size)


def merged(first: int, last: int, size: int, files: int = 1) -> Weighed:
    return Weighed(Slice(BatchFolder(merged_name(first, last), first, last), first, last), files, size)


def names(*weighed: Weighed) -> list[tuple[str, int]]:
    return [(group.name, group.parts) for group in plan(weighed, TARGET)]


def test_neighbours_are_merged_up_to_the_target() -> None:
    assert names(*(batch(n, 30) for n in range(7))) == [(merged_name(0, 2), 1), (merged_name(3, 5), 1)]


def test_what_is_large_enough_stays() -> None:
    assert names(batch(0, 100), batch(1, 250), merged(2, 9, 90)) == []
    assert names(batch(0, 250, files=10)) == [(merged_name(0, 0), 2)]


def test_a_plan_that_was_carried_out_has_nothing_left_to_do() -> None:
    assert names(merged(0, 2, 90), merged(3, 5, 90), batch(6, 30)) == []
    assert names(merged(0, 2, 10, files=2)) == []  # its name is taken by itself


def test_the_small_last_one_grows() -> None:
    assert names(merged(0, 2, 90), merged(3, 4, 50), batch(5, 10), batch(6, 0)) == [(merged_name(3, 6), 1)]


def test_no_group_leaves_a_batch_out() -> None:
    assert names(batch(0, 1), batch(1, 1), batch(3, 1), batch(4, 1)) == [(merged_name(0, 1), 1), (merged_name(3, 4), 1)]
    assert names() == []
