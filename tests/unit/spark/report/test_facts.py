from __future__ import annotations

import math
import random
from datetime import timedelta

import pytest

from consumerd.spark.report.facts import CLASSES_PER_DOUBLING, MessageSizes, SizeClass
from consumerd.spark.report.measure import MAX_BATCHES, MAX_INTERVALS, choose_width
from consumerd.spark.report.wording import axis_number, axis_size, count, duration, printable, size


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
    spans = [1, 30, 60, 300, 3600, 86400, 2 * 86400]
    assert [duration(timedelta(seconds=one)) for one in spans] == [
        "second", "30 seconds", "minute", "5 minutes", "hour", "day", "2 days",
    ]  # fmt: skip


def test_makes_foreign_bytes_visible() -> None:
    assert printable("grün 🎉 <b>") == "grün 🎉 <b>"
    assert printable(b"a\x00\n\t\x7f\xff\xc3") == r"a\x00\n\t\x7f\xff\xc3"
    assert printable("\u202egnp.exe\u200b\ud800") == r"\u202egnp.exe\u200b\ud800"
