"""Figures about a pipeline's tables, of which tasks make small tables and the driver the sums.

Strategy: bronze is read once: its values are counted and summed by batch, time and size class together; intervals are
chosen afterwards, and percentiles follow from the classes. The quarantine is read for its reasons, for the first and
last value of those that are shown, and for when its rows landed. Of silver only the time of the event is read, twice:
first for its bounds and for where most rows are. However many rows there are, the driver gets a few numbers for each
batch, reason and interval of a part.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from consumerd.spark.lake.arrays import repeated
from consumerd.spark.lake.parts import RowScan
from consumerd.spark.report.facts import (
    CLASSES_PER_DOUBLING,
    TOP_REASONS,
    EventFacts,
    LandedFacts,
    LandedInterval,
    MessageSizes,
    QuarantineFacts,
    QuarantineReason,
    QuarantineSample,
    SizeClass,
)
from consumerd.spark.source.columns import CORRUPT, arrow_schema

#: Up to this many batches are shown one by one, more of them by time.
MAX_BATCHES: Final = 48
#: More intervals than this are not shown.
MAX_INTERVALS: Final = 120
_WIDTHS: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400)
#: Bytes of a value, and characters of a reason or a cell, that a report shows.
MAX_VALUE: Final = 200
MAX_TEXT: Final = 300
_DAY: Final = 86400


def measure_landed(bronze: RowScan) -> LandedFacts:
    """Throughput and sizes of what landed. `bronze`: the source's columns, `landed_at` and `batch`."""
    found = pa.concat_tables([_NO_CELLS, *bronze.map(_landed, ("batch", "landed_at", "value", CORRUPT.name))])
    if not found.num_rows:
        return LandedFacts()
    first, last = pc.min(found["first"]).as_py(), pc.max(found["last"]).as_py()
    batches = pc.count_distinct(found["batch"]).as_py()
    width = choose_width(batches, (last - first) / 1e6)
    interval = found["batch"] if width is None else pc.divide(found["start"], width)
    cells = _cells(found.append_column("interval", interval), ("interval", "class")).to_pylist()
    return LandedFacts(
        rows=sum(cell["rows"] for cell in cells),
        size=sum(cell["size"] for cell in cells),
        corrupt=sum(cell["corrupt"] for cell in cells),
        batches=batches,
        first=_moment(first / 1e6),
        last=_moment(last / 1e6),
        width=None if width is None else timedelta(seconds=width),
        intervals=_intervals(cells, width),
        sizes=_sizes(cells),
    )


#: How the columns of cells are combined. Times in seconds and microseconds since 1970, sizes in bytes.
_CELL: Final = {
    "rows": "sum", "size": "sum", "corrupt": "sum", "smallest": "min", "largest": "max", "start": "min", "first": "min",
    "last": "max",
}  # fmt: skip
_NO_CELLS: Final = pa.Table.from_batches(
    [], schema=pa.schema([("batch", pa.int64()), ("class", pa.int32()), *((name, pa.int64()) for name in _CELL)])
)


def _cells(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """One row for each combination of `keys`."""
    found = rows.group_by(list(keys), use_threads=False).aggregate(list(_CELL.items()))
    return found.select([*keys, *(f"{name}_{how}" for name, how in _CELL.items())]).rename_columns([*keys, *_CELL])


def _landed(batches: Iterator[pa.RecordBatch]) -> pa.Table:
    """In a task: cells by batch, second and class of size."""
    found = [_NO_CELLS]
    for rows in batches:
        length = pc.binary_length(rows.column("value")).cast(pa.int64())
        classes = pc.floor(pc.multiply(pc.log2(pc.add(length, 1).cast(pa.float64())), float(CLASSES_PER_DOUBLING)))
        micros = _micros(rows.column("landed_at"))
        corrupt = rows.schema.get_field_index(CORRUPT.name)
        columns = {
            "batch": rows.column("batch"),
            "class": classes.cast(pa.int32()),
            "rows": repeated(1, pa.int64(), rows.num_rows),
            "size": pc.fill_null(length, 0),
            "corrupt": repeated(0, pa.int64(), rows.num_rows)
            if corrupt < 0
            else pc.is_valid(rows.column(corrupt)).cast(pa.int64()),
            "smallest": length,
            "largest": length,
            "start": pc.divide(micros, 1_000_000),
            "first": micros,
            "last": micros,
        }
        table = pa.table(columns)
        cells = _cells(table.append_column("second", table["start"]), ("batch", "second", "class"))
        found.append(cells.select(_NO_CELLS.schema.names).cast(_NO_CELLS.schema))
    return pa.concat_tables(found)


def _micros(times: pa.Array) -> pa.Array:
    """Microseconds since 1970 (int64) of times or dates."""
    kind = pa.timestamp("us", getattr(times.type, "tz", None))
    return times.cast(kind, safe=False).cast(pa.int64())


def choose_width(batches: int, seconds: float) -> int | None:
    """Seconds of an interval for this many batches over such a time; None where each batch is an interval."""
    if batches <= MAX_BATCHES:
        return None
    fitting = (width for width in _WIDTHS if seconds / width <= MAX_INTERVALS)
    return next(fitting, -(-int(seconds) // (MAX_INTERVALS * _DAY)) * _DAY)


def measure_quarantine(quarantine: RowScan) -> QuarantineFacts:
    """Rows by reason, the most frequent ones by name. `quarantine`: bronze's columns and `reason`."""
    found = pa.concat_tables([_NO_REASONS, *quarantine.map(_reasons, ("reason",))])
    reasons = _summed(found, "text").sort_by([("rows", "descending"), ("text", "ascending")])
    if not reasons.num_rows:
        return QuarantineFacts()
    top = reasons.slice(0, TOP_REASONS).to_pylist()
    texts = pa.array([row["text"] for row in top], pa.string())
    ends = _ends(pa.concat_tables(quarantine.map(_samples, (*_SAMPLED, "value", "reason"), texts)))
    samples: dict[str, list[QuarantineSample]] = {}
    for row in ends.to_pylist():
        sample = QuarantineSample(
            f"{row['topic']}/{row['broker_partition']} at {row['offset']}, index {row['index']}",
            row["value"],
            bool(row["truncated"]),
        )
        of_reason = samples.setdefault(row["text"], [])
        if sample not in of_reason:
            of_reason.append(sample)
    named = tuple(QuarantineReason(row["text"], row["rows"], tuple(samples.get(row["text"], ()))) for row in top)
    return QuarantineFacts(pc.sum(reasons["rows"]).as_py(), named, reasons.num_rows - len(named))


_SAMPLED: Final = ("topic", "broker_partition", "offset", "index")
_NO_REASONS: Final = pa.Table.from_batches([], schema=pa.schema([("text", pa.string()), ("rows", pa.int64())]))


def _summed(rows: pa.Table, key: str) -> pa.Table:
    """The sum of `rows` for each value of `key`."""
    found = rows.group_by(key, use_threads=False).aggregate([("rows", "sum")])
    return found.select([key, "rows_sum"]).rename_columns([key, "rows"])


def _counted(values: Iterable[pa.Array], nothing: pa.Table) -> pa.Table:
    """How often each value occurs. `nothing`: the empty table, whose first column has the values."""
    key = nothing.schema.names[0]
    found = (_summed(pa.table({key: each, "rows": repeated(1, pa.int64(), len(each))}), key) for each in values)
    return _summed(pa.concat_tables([nothing, *found]), key)


def _reason_texts(rows: pa.RecordBatch) -> pa.Array:
    """Reasons as they are shown."""
    reason = rows.column("reason")
    cut = pc.binary_join_element_wise(pc.utf8_slice_codeunits(reason, 0, MAX_TEXT), "…", "")
    return pc.fill_null(pc.if_else(pc.greater(pc.utf8_length(reason), MAX_TEXT), cut, reason), "no reason was given")


def _reasons(batches: Iterator[pa.RecordBatch]) -> pa.Table:
    """In a task: rows by reason."""
    return _counted(map(_reason_texts, batches), _NO_REASONS)


def _samples(batches: Iterator[pa.RecordBatch], texts: pa.Array) -> pa.Table:
    """In a task: the first and the last row of each of these reasons."""
    found = []
    for rows in batches:
        value = rows.column("value")
        columns = {name: rows.column(name) for name in _SAMPLED} | {
            "text": _reason_texts(rows),
            "value": pc.binary_slice(value, 0, MAX_VALUE),
            "truncated": pc.greater(pc.binary_length(value), MAX_VALUE),
        }
        found.append(_ends(pa.table(columns).filter(pc.is_in(pc.field("text"), texts))))
    return _ends(pa.concat_tables(found)) if found else _NO_SAMPLES


_NO_SAMPLES: Final = pa.Table.from_batches(
    [],
    schema=pa.schema(
        [
            *arrow_schema(_SAMPLED),
            ("text", pa.string()),
            ("value", pa.binary()),
            ("truncated", pa.bool_()),
        ]
    ),
)


def _ends(rows: pa.Table) -> pa.Table:
    """The first and the last row of each reason, by their places."""
    rows = rows.sort_by([(name, "ascending") for name in _SAMPLED])
    numbered = pa.table({"text": rows["text"], "number": pa.array(range(rows.num_rows), pa.int64())})
    ends = numbered.group_by("text", use_threads=False).aggregate([("number", "min"), ("number", "max")])
    places = pa.chunked_array([*ends["number_min"].chunks, *ends["number_max"].chunks], pa.int64())
    return rows.take(pc.unique(places).sort())


def measure_trend(quarantine: RowScan, landed: LandedFacts) -> LandedFacts:
    """`landed` with the quarantined rows of each interval. `quarantine` has bronze's `landed_at`."""
    starts = [_millis(one.start) for one in landed.intervals]
    if not starts:
        return landed
    # Without a width an interval is a batch, and several may land within a second.
    width = 1 if landed.width is None else round(landed.width.total_seconds()) * 1000
    counts = [0] * len(starts)
    for part in quarantine.map(_landing_times, ("landed_at",), width):
        for row in part.to_pylist():
            counts[max(0, bisect_right(starts, row["millis"]) - 1)] += row["rows"]
    pairs = zip(landed.intervals, counts, strict=True)
    return replace(landed, intervals=tuple(replace(one, quarantined=rows) for one, rows in pairs))


def _millis(time: datetime) -> int:
    """Whole milliseconds since 1970."""
    return (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


_NO_TIMES: Final = pa.Table.from_batches([], schema=pa.schema([("millis", pa.int64()), ("rows", pa.int64())]))


def _landing_times(batches: Iterator[pa.RecordBatch], width: int) -> pa.Table:
    """In a task: rows by the time at which they landed, in steps of `width` milliseconds."""
    step = width * 1000
    times = (pc.drop_null(_micros(rows.column("landed_at"))) for rows in batches)
    return _counted((pc.multiply(pc.divide(each, step), width) for each in times), _NO_TIMES)


def _floored(micros: pa.Array, width: int) -> pa.Array:
    """Times (microseconds) as the starts of their intervals, `width` seconds each, in seconds."""
    step = width * 1_000_000
    past = pc.and_(pc.less(micros, 0), pc.not_equal(pc.multiply(pc.divide(micros, step), step), micros))
    return pc.multiply(pc.subtract(pc.divide(micros, step), past.cast(pa.int64())), width)


class _Bounds(NamedTuple):
    """Of the events of a part: how many, those with a time, and of their times (microseconds) some quantiles."""

    rows: int
    timed: int
    quantiles: tuple[int, ...]


def measure_events(silver: RowScan, event_time: str) -> EventFacts:
    """Rows by the time of the event, over the stretch of time in which most of them are."""
    parts: list[_Bounds] = silver.map(_event_bounds, (event_time,))
    rows, timed = sum(part.rows for part in parts), sum(part.timed for part in parts)
    if not timed:
        return EventFacts(without_time=rows)
    weighted = sorted((time, part.timed / len(part.quantiles)) for part in parts for time in part.quantiles)
    oldest, newest = weighted[0][0], weighted[-1][0]
    low, high = event_range(oldest, newest, *(_quantile(weighted, timed * share) for share in (0.01, 0.99)))
    width = choose_width(MAX_BATCHES + 1, (high - low) / 1e6) or 1
    counted = _summed(pa.concat_tables(silver.map(_event_counts, (event_time,), low, high, width)), "second")
    return EventFacts(
        rows=timed,
        without_time=rows - timed,
        oldest=clipped(oldest),
        newest=clipped(newest),
        intervals=tuple(
            (clipped(row["second"] * 1_000_000), row["rows"]) for row in counted.sort_by("second").to_pylist()
        ),
        width=timedelta(seconds=width),
    )


def _quantile(weighted: Sequence[tuple[int, float]], rank: float) -> int:
    """The value at which the weights of it and of all before reach `rank`."""
    reached = 0.0
    for value, weight in weighted:
        reached += weight
        if reached >= rank:
            return value
    return weighted[-1][0]


#: Quantiles of a part's times, besides its least.
_QUANTILES: Final = 200


def _event_bounds(batches: Iterator[pa.RecordBatch]) -> _Bounds:
    """In a task: counts and bounds of the only column."""
    times = [_micros(rows.column(0)) for rows in batches]
    rows = sum(map(len, times))
    known = pc.drop_null(pa.chunked_array(times, pa.int64()))
    if not len(known):
        return _Bounds(rows, 0, ())
    shares = [number / _QUANTILES for number in range(_QUANTILES + 1)]
    return _Bounds(rows, len(known), tuple(pc.quantile(known, shares, interpolation="lower").to_pylist()))


_NO_SECONDS: Final = pa.Table.from_batches([], schema=pa.schema([("second", pa.int64()), ("rows", pa.int64())]))


def _event_counts(batches: Iterator[pa.RecordBatch], low: int, high: int, width: int) -> pa.Table:
    """In a task: events from `low` to `high` (microseconds), by intervals of `width` seconds."""
    times = (_micros(rows.column(0)) for rows in batches)
    within = (each.filter(pc.and_(pc.greater_equal(each, low), pc.less_equal(each, high))) for each in times)
    return _counted((_floored(each, width) for each in within), _NO_SECONDS)


def event_range(oldest: int, newest: int, early: int, late: int) -> tuple[int, int]:
    """What to show of events between `oldest` and `newest`, of which 98 of 100 are between `early` and `late`.

    All times in microseconds. Events with a wrong clock may be years away from the others, and are left out.
    """
    room = max(late - early, 3_600_000_000)
    return max(oldest, early - room, _MICROS_OF_MIN), min(newest, late + room, _MICROS_OF_MAX)


def _intervals(cells: Iterable[Mapping[str, Any]], width: int | None) -> tuple[LandedInterval, ...]:
    merged: dict[int, list[int]] = {}
    for cell in cells:
        rows, size, start = merged.get(cell["interval"], (0, 0, cell["first"]))
        merged[cell["interval"]] = [rows + cell["rows"], size + cell["size"], min(start, cell["first"])]
    if width is None:
        return tuple(
            LandedInterval(_moment(start / 1e6), rows, size, batch)
            for batch, (rows, size, start) in sorted(merged.items())
        )
    return tuple(
        LandedInterval(_moment(key * width), rows, size, None) for key, (rows, size, _) in sorted(merged.items())
    )


def _sizes(cells: Iterable[Mapping[str, Any]]) -> MessageSizes:
    merged: dict[int, SizeClass] = {}
    for cell in cells:
        number = cell["class"]
        if number is None:
            continue
        before = merged.get(number, SizeClass(number, 0, cell["smallest"], cell["largest"]))
        merged[number] = SizeClass(
            number,
            before.rows + cell["rows"],
            min(before.smallest, cell["smallest"]),
            max(before.largest, cell["largest"]),
        )
    return MessageSizes(tuple(one for _, one in sorted(merged.items())))


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


#: The times that Python has; messages may have others.
_MICROS_OF_MIN: Final = -62_135_596_800_000_000 + 86_400_000_000
_MICROS_OF_MAX: Final = 253_402_300_799_000_000 - 86_400_000_000


def clipped(micros: int) -> datetime:
    """A time (microseconds since 1970), within those that Python has."""
    return _moment(min(max(micros, _MICROS_OF_MIN), _MICROS_OF_MAX) / 1e6)
