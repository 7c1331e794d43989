"""The verdict: green only where everything landed and most of it was of use."""

from __future__ import annotations

import pytest

from consumerd.spark.reconcile_result import PartitionCheck, ReconcileResult
from consumerd.spark.report.page import report_verdict


@pytest.mark.parametrize(("quarantined", "bad", "words"), [(0, False, None), (9, False, None), (50, None, "50%")])
def test_headline_is_not_green_with_many_rows_in_quarantine(
    quarantined: int, bad: bool | None, words: str | None
) -> None:
    check = PartitionCheck("t", "0", 0, 100, 100, 100, 100, refined=100 - quarantined, quarantined=quarantined)
    found = report_verdict(ReconcileResult("p", False, (check,)))
    assert found.bad is bad
    assert found.text.startswith(
        "Everything that was to land has landed, once: 1 partition, compared message by message."
    )
    assert ("in quarantine" in found.text) == (words is not None)
    assert words is None or f"But {words} of what was refined is in quarantine" in found.text


def test_headline_names_what_was_found_and_nothing_else() -> None:
    check = PartitionCheck("t", "0", 0, 100, 100, 103, 100, duplicates=3)
    assert report_verdict(ReconcileResult("p", False, (check,))).text == (
        "3 duplicates, in 1 of 1 partition; they are named below."
    )
