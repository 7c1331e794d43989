from __future__ import annotations

import gc
import json

import pytest

from benchmarks.race import OURS, Measurement, alternating, compared, laps, rates, show, spread


def test_subjects_take_turns() -> None:
    order: list[str] = []
    now = iter(range(100))
    found = laps({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 3, lambda: next(now))
    assert order == ["a", "b"] * 3
    assert found == {"a": [1, 1, 1], "b": [1, 1, 1]}
    assert gc.isenabled()


def test_rates_are_work_by_seconds() -> None:
    assert rates({"a": [1.0, 2.0]}, 10) == {"a": [10.0, 5.0]}


def test_ratios_are_those_of_each_round() -> None:
    # The machine was half as fast in the second round, for all.
    ours, theirs = compared("x", "case", "/s", {OURS: [4.0, 2.0, 6.0], "peer": [2.0, 1.0, 2.0]})
    assert ours == Measurement("x", "case", OURS, 4.0, "/s", rounds=3)
    assert theirs == Measurement("x", "case", "peer", 2.0, "/s", 2.0, 4.0, 0.25, 3)


def test_only_the_named_others_stand_beside_ours() -> None:
    figures = {"way 1": [1.0], "way 2": [2.0], "peer": [4.0]}
    found = compared("x", "case", "/s", figures, ours="way 2", others=["peer"])
    assert [(row.subject, row.ratio) for row in found] == [(OURS, None), ("peer", 0.5)]


def test_rounds_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        compared("x", "case", "/s", {OURS: [1.0, 2.0], "peer": [1.0]})


def test_one_round_has_no_spread() -> None:
    assert spread([3.0]) is None
    assert spread([1.0, 2.0, 3.0]) == 0.5


def test_one_round_that_was_disturbed_does_not_widen_the_spread() -> None:
    assert spread([2.0, 2.0, 2.0, 2.0, 20.0]) == 0


def test_json_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    rows = compared("x", "case", "/s", {OURS: [1.0, 3.0], "peer": [3.0, 9.0]})
    assert show(rows, {"kept": True, "not kept": False}, as_json=True) == 1
    found = json.loads(capsys.readouterr().out)
    assert [Measurement(**row) for row in found["rows"]][1].ratio == 0.3333
    assert found["promises"] == {"kept": True, "not kept": False}


def test_less_is_better_where_a_benchmark_says_so() -> None:
    _, row = compared("latency", "p50", "ms", {OURS: [2.0, 4.0, 3.0], "peer": [4.0, 4.0, 9.0]}, less=True)
    assert (row.value, row.ours, row.ratio) == (4.0, 3.0, 2.0)


def test_a_row_has_a_distribution_only_where_it_stands_for_one() -> None:
    assert "quantiles" not in Measurement("b", "c", OURS, 1.0, "ms").as_json()
    assert Measurement("b", "c", OURS, 1.0, "ms", quantiles=[0.123456, 1.0]).as_json()["quantiles"] == [0.1235, 1.0]


def test_each_second_round_begins_with_the_last_subject() -> None:
    assert list(alternating("abc", 3)) == list("abccbaabc")
