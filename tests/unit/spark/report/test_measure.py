"""The measurements of the tables in a report, from parts of their rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from consumerd.spark.report.facts import (
    EventFacts,
    LandedFacts,
    LandedInterval,
    QuarantineFacts,
    QuarantineSample,
)
from consumerd.spark.report.measure import (
    MAX_VALUE,
    measure_events,
    measure_landed,
    measure_quarantine,
    measure_trend,
)
from consumerd.spark.source.columns import COLUMNS

START = datetime(2026, 11, 21, 17, tzinfo=UTC)
LANDED = ("landed_at", pa.timestamp("us", "UTC"))
BRONZE = pa.schema([*((each.name, each.arrow) for each in COLUMNS), LANDED, ("batch", pa.int64())])


class Rows:
    """A table in three parts, of batches with two sizes."""

    def __init__(self, table: pa.Table) -> None:
        size = -(-table.num_rows // 3) or 1
        self._parts = [table.slice(at, size) for at in range(0, table.num_rows, size)]

    def map(self, function: Callable[..., Any], columns: Sequence[str], *arguments: Any) -> list[Any]:
        """See RowScan."""
        found = []
        for part in self._parts:
            rows = part.select([name for name in columns if name in part.column_names])
            found.append(function(iter(rows.to_batches(max_chunksize=1000)), *arguments))
        return found


def bronze(rows: list[dict[str, Any]], *more: tuple[str, pa.DataType]) -> Rows:
    defaults = {"topic": "clicks", "broker": 0, "partition": 1, "broker_partition": "0-1", "index": 0, "codec": "none"}
    return Rows(pa.Table.from_pylist([defaults | row for row in rows], schema=pa.schema([*BRONZE, *more])))


REASON = ("reason", pa.string())


def row(batch: int, value: bytes | None, *, offset: int = 0, minutes: float = 0, **more: Any) -> dict[str, Any]:
    return {"batch": batch, "value": value, "offset": offset, "landed_at": START + timedelta(minutes=minutes), **more}


def test_nothing() -> None:
    assert measure_landed(bronze([])) == LandedFacts()
    assert measure_quarantine(bronze([], REASON)) == QuarantineFacts()


def test_shows_few_batches_one_by_one() -> None:
    rows = [row(0, b"x" * 7), row(0, b""), row(3, b"x" * 1000, minutes=1), row(3, None, minutes=1, _corrupt="torn")]
    landed = measure_landed(bronze(rows))
    assert (landed.rows, landed.size, landed.corrupt, landed.batches, landed.width) == (4, 1007, 1, 2, None)
    assert (landed.first, landed.last) == (START, START + timedelta(minutes=1))
    assert [(one.batch, one.start, one.rows, one.size) for one in landed.intervals] == [
        (0, START, 2, 7),
        (3, START + timedelta(minutes=1), 2, 1000),
    ]
    assert landed.sizes.rows == 3
    assert [landed.sizes.percentile(share) for share in (0, 0.5, 1)] == [0, 7, 1000]


def test_shows_many_batches_by_time_with_sizes_within_nine_percent() -> None:
    times = [START + timedelta(seconds=number % 100 * 60 + 30) for number in range(20_000)]
    table = pa.table(
        {
            "value": pa.array([b"x" * (number % 1000) for number in range(20_000)]),
            "batch": pa.array([number % 100 for number in range(20_000)]),
            "landed_at": pa.array(times, pa.timestamp("us", "UTC")),
        }
    )
    landed = measure_landed(Rows(table))
    assert (landed.rows, landed.batches, landed.corrupt) == (20_000, 100, 0)
    assert landed.width == timedelta(minutes=1)
    assert [one.start for one in landed.intervals] == [START + timedelta(minutes=n) for n in range(100)]
    assert sum(one.rows for one in landed.intervals) == 20_000
    assert landed.size == sum(one.size for one in landed.intervals) == 20 * 999 * 500
    for share in (0.1, 0.5, 0.9, 0.99):
        assert landed.sizes.percentile(share) == pytest.approx(1000 * share, rel=0.09)


def test_lists_reasons_by_frequency_with_samples() -> None:
    hostile = "<script>alert(1)</script>"
    rows = [row(0, b"\xff\x00" + b"y" * 500, offset=n, reason="often") for n in range(5, 10)]
    rows += [row(0, None, offset=1, reason=hostile), row(0, b"", offset=2, reason=hostile)]
    rows += [row(0, b"z", offset=n, reason="x" * 1000 + str(n)) for n in range(4)]
    found = measure_quarantine(bronze(rows, REASON))
    assert (found.rows, found.other_reasons, found.other_rows) == (11, 0, 0)
    assert [(one.text, one.rows) for one in found.reasons] == [("often", 5), ("x" * 300 + "…", 4), (hostile, 2)]
    begin = b"\xff\x00" + b"y" * (MAX_VALUE - 2)
    assert found.reasons[0].samples == (
        QuarantineSample("clicks/0-1 at 5, index 0", begin, truncated=True),
        QuarantineSample("clicks/0-1 at 9, index 0", begin, truncated=True),
    )
    assert [sample.value for sample in found.reasons[2].samples] == [None, b""]


def test_limits_the_number_of_reasons() -> None:
    texts = ["common" if number < 10 else f"reason {number}" for number in range(50_000)]
    table = pa.table(
        {
            "topic": pa.array(["t"] * 50_000),
            "broker_partition": pa.array(["0-1"] * 50_000),
            "offset": pa.array(range(50_000), pa.int64()),
            "index": pa.array([0] * 50_000, pa.int32()),
            "value": pa.array([b"v"] * 50_000),
            "reason": pa.array(texts),
        }
    )
    found = measure_quarantine(Rows(table))
    assert (found.rows, len(found.reasons), found.other_reasons) == (50_000, 20, 49_971)
    assert (found.reasons[0].text, found.reasons[0].rows, found.other_rows) == ("common", 10, 49_971)


def test_counts_events_by_their_time_and_leaves_out_wrong_clocks() -> None:
    minutes = [*[n / 10 for n in range(600)], None, -30 * 525_600.0, 9_000_000_000.0]
    start = round(START.timestamp() * 1_000_000)
    micros = [None if minute is None else start + round(minute * 60_000_000) for minute in minutes]
    table = pa.table({"at `it`": pa.array(micros, pa.int64()).cast(pa.timestamp("us", "UTC"))})
    found = measure_events(Rows(table), "at `it`")
    assert (found.rows, found.without_time, found.outside) == (602, 1, 2)
    assert found.width == timedelta(minutes=2), "an hour is shown before and after most events"
    assert found.oldest == START - timedelta(days=30 * 365)
    assert found.newest is not None
    assert found.newest.year == 9999
    assert [rows for _, rows in found.intervals] == [20] * 30
    assert found.intervals[0][0] == START
    assert measure_events(Rows(table.slice(600, 1)), "at `it`") == EventFacts(without_time=1)


def test_counts_quarantined_rows_by_when_they_landed() -> None:
    landed = measure_landed(bronze([row(n, b"x", minutes=n) for n in (0, 1, 1, 5)]))
    refused = bronze([row(5, b"x", minutes=5), row(1, b"x", minutes=1), row(1, b"x", minutes=1)])
    assert [one.quarantined for one in measure_trend(refused, landed).intervals] == [0, 2, 1]
    quick = measure_landed(bronze([row(n, b"x", minutes=n / 150) for n in (0, 1, 2)]))  # several batches in a second
    refused = bronze([row(n, b"x", minutes=n / 150) for n in (0, 1)])
    assert [one.quarantined for one in measure_trend(refused, quick).intervals] == [1, 1, 0]
    refused = bronze([row(5, b"x", minutes=5), row(1, b"x", minutes=1), row(1, b"x", minutes=1)])
    many = LandedFacts(width=timedelta(minutes=5), intervals=(LandedInterval(START, 9, 9), LandedInterval(START, 1, 1)))
    assert [one.quarantined for one in measure_trend(refused, many).intervals] == [0, 3]
    assert measure_trend(refused, LandedFacts()) == LandedFacts()
