"""Which logs a pipeline has left, from the offsets of its batches alone."""

from __future__ import annotations

import pytest

from consumerd.spark.beginning import after_batch
from consumerd.spark.former_logs import FormerLog, name_of
from consumerd.spark.source.offsets import LogOffset

PLACE = ("t", "0")
FORMER = FormerLog("t", "0", "f", 3, 200)


def one(offset: int, topic_id: str | None, epoch: int | None = None) -> dict[tuple[str, str], LogOffset]:
    return {PLACE: LogOffset(offset, topic_id, epoch)}


def test_a_batch_that_begins_another_log_ends_the_former_one() -> None:
    starts = one(3, "f")
    assert after_batch(starts, one(100, "f"), one(200, "f")) == ([], starts)
    former, now = after_batch(starts, one(200, "f"), one(5, "n"))
    assert (former, now) == ([FORMER], one(5, "n"))
    assert after_batch(now, one(200, "f"), one(5, "n")) == ([], now), "again, after a kill"
    assert after_batch(now, one(5, "n"), one(105, "n")) == ([], now)


def test_nothing_of_a_former_log_was_landed_before_the_first_batch() -> None:
    assert after_batch(one(3, "f"), {}, one(0, "n")) == ([FORMER._replace(end=3)], one(0, "n"))


def test_takes_up_the_log_of_a_start_without_one() -> None:
    assert after_batch(one(3, None), one(200, None), one(300, "f")) == ([], one(3, "f"))
    assert after_batch(one(3, "f"), one(200, "f"), one(300, None)) == ([], one(3, "f"))


def test_notes_partitions_that_are_new() -> None:
    ends = one(9, "f") | {("t", "1"): LogOffset(4, "f")}
    assert after_batch(one(3, "f"), one(3, "f"), ends) == ([], one(3, "f") | {("t", "1"): LogOffset(4, "f")})


def test_a_former_log_is_a_partition_of_its_own() -> None:
    former = [FORMER, FORMER._replace(topic_id="g", start=0, end=9)]
    assert name_of(former, PLACE, "n") == PLACE
    assert name_of(former, PLACE, "g") == ("t", "0@g")
    assert name_of(former, PLACE, None) == ("t", "0@f"), "rows of an earlier release are of the first log"
    assert name_of(former, ("t", "1"), None) == ("t", "1")
    assert name_of(former, ("t", "0@f"), "f") == ("t", "0@f")
    assert name_of((), PLACE, "f") == PLACE


@pytest.mark.parametrize("topic_id", ["f", None])
def test_a_batch_that_goes_back_leaves_what_was_cut_off(topic_id: str | None) -> None:
    starts, before, end = one(3, topic_id), one(200, topic_id, 5), one(150, topic_id, 4)
    cut = FormerLog("t", "0", topic_id, 150, 200, 5)
    assert after_batch(starts, before, end) == ([cut], starts)
    assert cut.key == ("t", f"0@{topic_id or ''}:5:200")
    assert after_batch(starts, end, one(300, topic_id, 6)) == ([], starts)
    again = after_batch(starts, end, one(120, topic_id, 4))
    assert again == ([FormerLog("t", "0", topic_id, 120, 150, 4)], starts)
    assert name_of([cut], PLACE, topic_id) == PLACE, "it is no log of its own"


def test_a_batch_that_goes_back_behind_the_start_moves_it() -> None:
    starts, before, end = one(170, "f", 5), one(200, "f", 5), one(150, "f", 4)
    (cut,), now = after_batch(starts, before, end)
    assert (cut, now) == (FormerLog("t", "0", "f", 170, 200, 5), end)
    (same,), _ = after_batch(now, before, end)
    assert same.key == cut.key, "listed once, also after a kill"
