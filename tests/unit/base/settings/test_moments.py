"""Times and durations as people write them."""

from __future__ import annotations

import pytest

from consumerd.base.settings.moments import is_start, milliseconds_of, seconds_of, start_of
from consumerd.base.settings.processing import FetchSection
from consumerd.base.settings.setting import BrokenRulesError

NOW = 1_700_000_000.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7d", 1_700_000_000_000 - 7 * 86_400_000),
        ("1d12h", 1_700_000_000_000 - 129_600_000),
        ("PT90M", 1_700_000_000_000 - 5_400_000),
        ("99999d", 0),
        ("2023-11-14", 1_699_920_000_000),
        ("2023-11-14T01:00+01:00", 1_699_920_000_000),
    ],
)
def test_start_is_a_time_or_so_long_before_now(text: str, expected: int) -> None:
    assert start_of(text, NOW) == expected
    assert is_start(text)


@pytest.mark.parametrize("text", ["", "yesterday", "70", "1700000000000", "-3", "+3", "7", "d", "7 days", "1950-01-01"])
def test_rejects_anything_else(text: str) -> None:
    assert not is_start(text)
    kind = FetchSection.kinds()["initial"]
    assert kind.problem("initial", text) == (
        f"initial must be earliest, latest, a time such as 2012-11-21T12:00, or a duration such as 7d, not {text!r}"
    )
    with pytest.raises(BrokenRulesError, match="initial_by_topic of 't' must be earliest, latest, a time"):
        FetchSection(initial_by_topic={"t": text})


def test_numbers_are_times_only_where_no_offset_is_meant() -> None:
    assert milliseconds_of("1700000000000") == 1_700_000_000_000
    with pytest.raises(ValueError, match="must not be before 1970"):
        milliseconds_of("1950-01-01")
    with pytest.raises(ValueError, match="must be a duration"):
        seconds_of("70")
