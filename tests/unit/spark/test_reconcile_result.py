"""The findings of a reconciliation, and their texts."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from consumerd.spark.reconcile_result import LogStretch, LogStretches, PartitionCheck, ReconcileResult

CLEAN = PartitionCheck(
    "t", "0-1", start=0, end=500, expected=5, landed=5, compared=5, refined=4, quarantined=1, same_hash=True, digest=-1
)
ONE = LogStretches(1, (LogStretch(10, 20),), 20)


@pytest.mark.parametrize(
    "change",
    [
        {"gaps": ONE},
        {"trimmed": ONE},
        {"unexpected": ONE},
        {"unrefined": ONE},
        {"surplus": ONE},
        {"duplicates": 1},
        {"same_hash": False},
    ],
)
def test_one_defect_is_enough_to_be_unclean(change: dict[str, object]) -> None:
    wrong = replace(CLEAN, **change)  # type: ignore[arg-type]
    assert not wrong.is_clean
    assert not ReconcileResult("p", False, (CLEAN, wrong)).is_clean
    assert ReconcileResult("p", False, (CLEAN,)).is_clean


def test_gaps_of_the_log_and_pending_rows_are_clean() -> None:
    assert replace(CLEAN, empty=ONE, dropped=ONE, declared=ONE, compacted=ONE, pending=3).is_clean
    assert replace(CLEAN, same_hash=None, expected=None, compared=None).is_clean


def test_counts_missing_messages_only_if_the_source_was_counted() -> None:
    assert CLEAN.missing == 0
    assert replace(CLEAN, expected=7, compared=6, duplicates=1).missing == 2
    uncounted = replace(CLEAN, expected=None, compared=None)
    assert uncounted.missing == 0
    assert replace(uncounted, gaps=ONE).missing is None


def test_stores_stretches_in_the_fields_of_their_kind() -> None:
    check = CLEAN.with_stretches({"gaps": ONE, "duplicated": ONE})
    assert check == replace(CLEAN, gaps=ONE)


def test_json_has_sums_and_positions_within_compressed_messages() -> None:
    inside = LogStretches(30, (LogStretch(10, 10, 1, 3), LogStretch(40, 50, 2)), 90)
    result = ReconcileResult("p", False, (CLEAN, replace(CLEAN, gaps=inside, duplicates=2, same_hash=False)))
    found = json.loads(json.dumps(result.as_json()))
    sums = {"rows_landed": 10, "rows_refined": 8, "rows_quarantined": 2, "gaps": 30, "duplicates": 2, "altered": 1}
    assert {name: found[name] for name in sums} == sums
    assert found["clean"] is False
    assert found["partitions"][0]["digest"] == "f" * 16
    assert found["partitions"][1]["gaps"] == ["[10.1, 10.3)", "[40.2, 50)"]
