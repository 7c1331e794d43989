from __future__ import annotations

import math
import random
from datetime import timedelta

import pytest

from consumerd.spark.report.facts import CLASSES_PER_DOUBLING, LAST_MOMENT, MessageSizes, SizeClass, window_facts
from consumerd.spark.report.measure import MAX_BATCHES, MAX_INTERVALS, choose_width, event_range
from consumerd.spark.report.wording import (
    age,
    axis_number,
    axis_size,
    count,
    digits,
    duration,
    percent,
    printable,
    rate,
    seconds,
    size,
)


def classes(values: list[int]) -> MessageSizes:
    found: dict[int, list[int]] = {}
    for value in values:
        found.setdefault(math.floor(math.log2(value + 1) * CLASSES_PER_DOUBLING), []).append(value)
    return MessageSizes(tuple(SizeClass(n, len(some), min(some), max(some)) for n, some in sorted(found.items())))


@pytest.mark.parametrize("seed", range(5))
def test_percentiles_of_many_sizes_are_approximate(seed: int) -> None:
    rng = random.Random(seed)
    values = sorted(int(rng.lognormvariate(6, 2)) for _ in range(10_000))
    sizes = classes(values)
    for share in (0.01, 0.25, 0.5, 0.9, 0.99, 0.999):
        exact = values[math.ceil(share * len(values)) - 1]
        assert sizes.percentile(share) == pytest.approx(exact, rel=0.1, abs=1)
    assert (sizes.percentile(0), sizes.percentile(1)) == (values[0], values[-1])


def test_percentiles_of_one_size_are_exact() -> None:
    sizes = classes([137] * 1000)
    assert {sizes.percentile(share) for share in (0, 0.5, 0.99, 1)} == {137}


@pytest.mark.parametrize(
    ("batches", "seconds", "width"),
    [
        (1, 0, None),
        (MAX_BATCHES, 1e6, None),
        (MAX_BATCHES + 1, 60, 1),
        (10_000, 7200, 60),
        (10**6, 400 * 86400, 345600),
    ],
)
def test_limits_the_number_of_intervals(batches: int, seconds: float, width: int | None) -> None:
    assert choose_width(batches, seconds) == width
    assert width is None or seconds / width <= MAX_INTERVALS


def test_formats_numbers_for_people() -> None:
    assert [count(0), count(1234567)] == ["0", "1,234,567"]
    assert [size(0), size(1023), size(1024), size(5 << 40), size(1 << 60)] == [
        "0 B", "1,023 B", "1.0 KiB", "5.0 TiB", "1,024.0 PiB",
    ]  # fmt: skip
    assert [axis_number(0), axis_number(1500), axis_number(2e6)] == ["0", "1.5 k", "2 M"]
    assert [axis_size(512), axis_size(1 << 20), axis_size(1536)] == ["512 B", "1 MiB", "1.5 KiB"]
    assert [digits("1234567"), digits("-1234.50"), digits("007"), digits("1e9"), digits("")] == [
        "1,234,567", "-1,234.50", "007", "1e9", "",
    ]  # fmt: skip
    assert [percent(0), percent(0.0001), percent(0.123), percent(0.99999), percent(1)] == [
        "0.0 %", "< 0.1 %", "12.3 %", "> 99.9 %", "100.0 %",
    ]  # fmt: skip
    assert [rate(0), rate(0.25), rate(12.4), rate(12345)] == ["0", "0.25", "12", "12,345"]
    passed = [0.4, 12, 200, 240, 7500, 12 * 86400, 15 * 365.25 * 86400]
    assert [seconds(one) for one in passed] == [
        "0.4 s", "12 s", "3 min 20 s", "4 min", "2 h 5 min", "12 days", "15 years",
    ]  # fmt: skip
    assert [age(timedelta(seconds=30)), age(timedelta(seconds=-30))] == ["30 s ago", "30 s ahead"]
    spans = [1, 30, 60, 300, 3600, 86400, 2 * 86400]
    assert [duration(timedelta(seconds=one)) for one in spans] == [
        "second", "30 seconds", "minute", "5 minutes", "hour", "day", "2 days",
    ]  # fmt: skip


def test_makes_foreign_bytes_visible() -> None:
    assert printable("grün 🎉 <b>") == "grün 🎉 <b>"
    assert printable(b"a\x00\n\t\x7f\xff\xc3") == r"a\x00\n\t\x7f\xff\xc3"
    assert printable("\u202egnp.exe\u200b\ud800") == r"\u202egnp.exe\u200b\ud800"


def test_shows_the_time_in_which_most_events_are() -> None:
    hour = 3_600_000_000
    assert event_range(0, 10, 1, 9) == (0, 10)
    assert event_range(0, 1000 * hour, 500 * hour, 502 * hour) == (498 * hour, 504 * hour), "two clocks are wrong"
    low, high = event_range(-(1 << 62), 1 << 62, -(1 << 61), 1 << 61)
    assert (low, high) == (-62_135_510_400_000_000, 253_402_214_399_000_000), "what Python can show"


def test_takes_windows_from_the_last_run_that_knows_them() -> None:
    runs: list[dict[str, object]] = [
        {"watermark": "1970-01-01T00:00:00.000Z", "open_windows": 4, "late": 0},
        {"watermark": "2026-11-21T17:00:00.000Z", "open_windows": 7, "late": 2},
        {"watermark": None, "open_windows": None, "late": 1},
    ]
    found = window_facts(runs)
    assert found.watermark is not None
    assert (found.watermark.isoformat(), found.open_windows, found.late) == ("2026-11-21T17:00:00+00:00", 7, 3)
    assert window_facts(runs[:1]).watermark is None
    # An event far in the future has closed all windows: that must not look like none yet.
    assert window_facts([*runs, {"watermark": "+12019-12-31T23:59:00.000Z"}]).watermark == LAST_MOMENT
    assert window_facts([]).late is None
