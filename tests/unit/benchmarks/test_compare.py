from __future__ import annotations

import pytest

from benchmarks.compare import CEILING, FLOOR, compare, lines
from benchmarks.race import Measurement


def row(
    ratio: float | None, spread: float | None = 0.02, *, case: str = "plain 100 B", unit: str = "/s"
) -> Measurement:
    return Measurement("decode", case, "aiokafka", 2.0, unit, ratio, None if ratio is None else 2 * ratio, spread, 5)


def test_equal_runs_are_the_same() -> None:
    found = compare([row(2.0)], [row(2.0)])
    assert [change.key for change in found.same] == [("decode", "plain 100 B", "aiokafka", "/s")]
    assert [found.slower, found.faster, found.too_noisy, found.missing] == [[], [], [], []]


@pytest.mark.parametrize(
    ("ratio", "where"),
    [
        (2 * (1 - FLOOR) - 0.01, "slower"),
        (2 * (1 - FLOOR) + 0.01, "same"),
        (2 * (1 + FLOOR) - 0.01, "same"),
        (2 * (1 + FLOOR) + 0.01, "faster"),
    ],
)
def test_less_than_the_floor_is_noise(ratio: float, where: str) -> None:
    found = compare([row(2.0)], [row(ratio)])
    assert len(getattr(found, where)) == 1
    assert sum(len(changes) for changes in (found.slower, found.same, found.faster, found.too_noisy)) == 1


@pytest.mark.parametrize(("before", "now"), [(0.2, 0.1), (0.1, 0.2), (0.3, None), (None, 0.3)])
def test_noise_is_the_spread_of_both_runs(before: float | None, now: float | None) -> None:
    assert len(compare([row(2.0, before)], [row(1.45, now)]).same) == 1
    assert len(compare([row(2.0, before)], [row(1.35, now)]).slower) == 1


def test_rows_whose_noise_hides_everything_say_so() -> None:
    found = compare([row(2.0, CEILING / 2)], [row(0.1, CEILING / 2)])
    assert len(found.too_noisy) == 1
    assert not found.slower


def test_rows_without_a_ratio_are_left_out() -> None:
    found = compare([row(None), row(2.0, case="gzip")], [row(None), row(2.0, case="gzip")])
    assert [change.key[1] for change in found.same] == ["gzip"]
    assert not found.missing


def test_a_recorded_row_that_was_not_measured_is_named() -> None:
    found = compare([row(2.0), row(2.0, case="gzip")], [row(2.0), row(2.0, case="new")])
    assert [each[1] for each in found.missing] == ["gzip"]
    assert "  decode: gzip, beside aiokafka" in lines(found)


def test_the_same_case_in_another_unit_is_another_row() -> None:
    found = compare([row(2.0), row(4.0, unit="/cpu-s")], [row(2.0), row(1.0, unit="/cpu-s")])
    assert [change.key[3] for change in found.slower] == ["/cpu-s"]


def test_what_got_slower_is_said_last() -> None:
    said = lines(compare([row(2.0), row(1.0, case="gzip")], [row(1.0), row(3.0, case="gzip")]))
    assert said[-1] == "  decode: plain 100 B: 1 beside aiokafka, recorded 2 (-50 %, noise 10 %)"
    assert any("gzip" in line for line in said[:-2])


def test_nothing_slower_is_said() -> None:
    assert lines(compare([row(2.0)], [row(2.0)]))[-1] == "no row is slower than recorded by more than its noise"
