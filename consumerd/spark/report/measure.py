"""Figures about a pipeline's tables: aggregated by Spark, so that only small results reach the driver.

Strategy: bronze is read twice: first its two small columns `batch` and `landed_at`, to choose intervals, and then its
values, counted and summed by interval and size class together; percentiles follow from the classes. The quarantine is
read for its reasons, for the first and last value of those that are shown, and for when its rows landed. Of silver only
the time of the event is read, twice: first for its bounds and for where most rows are. However many rows, batches or
reasons there are, the driver gets some thousand numbers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from consumerd.spark.report.facts import (
    CLASSES_PER_DOUBLING,
    TOP_REASONS,
    EventFacts,
    GroupFacts,
    GroupRow,
    LandedFacts,
    LandedInterval,
    MessageSizes,
    QuarantineFacts,
    QuarantineReason,
    QuarantineSample,
    SizeClass,
)

#: Up to this many batches are shown one by one, more of them by time.
MAX_BATCHES: Final = 48
#: More intervals than this are not shown.
MAX_INTERVALS: Final = 120
_WIDTHS: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400)
#: Bytes of a value, and characters of a reason or a cell, that a report shows.
MAX_VALUE: Final = 200
MAX_TEXT: Final = 300
TOP_GROUPS: Final = 15
_DAY: Final = 86400


def measure_landed(bronze: DataFrame) -> LandedFacts:
    """Throughput and sizes of what landed. `bronze`: the source's columns, `landed_at` and `batch`."""
    span = _one(
        bronze.agg(
            F.count("*").alias("rows"),
            F.count_distinct("batch").alias("batches"),
            F.min(F.unix_micros("landed_at")).alias("first"),
            F.max(F.unix_micros("landed_at")).alias("last"),
        )
    )
    if not span["rows"]:
        return LandedFacts()
    width = choose_width(span["batches"], (span["last"] - span["first"]) / 1e6)
    length = F.octet_length("value").cast("bigint")
    size_class = F.floor(F.log2(length + 1) * CLASSES_PER_DOUBLING).cast("int")
    key: Column = F.col("batch") if width is None else F.floor(F.unix_seconds("landed_at") / width)
    corrupt = F.count("_corrupt") if "_corrupt" in bronze.columns else F.lit(0)
    cells = (
        bronze.groupBy(key.alias("interval"), size_class.alias("class"))
        .agg(
            F.count("*").alias("rows"),
            F.sum(F.coalesce(length, F.lit(0))).alias("size"),
            F.min(length).alias("smallest"),
            F.max(length).alias("largest"),
            F.min(F.unix_seconds("landed_at")).alias("start"),
            corrupt.alias("corrupt"),
        )
        .collect()
    )
    return LandedFacts(
        rows=span["rows"],
        size=sum(cell["size"] for cell in cells),
        corrupt=sum(cell["corrupt"] for cell in cells),
        batches=span["batches"],
        first=_moment(span["first"] / 1e6),
        last=_moment(span["last"] / 1e6),
        width=None if width is None else timedelta(seconds=width),
        intervals=_intervals(cells, width),
        sizes=_sizes(cells),
    )


def choose_width(batches: int, seconds: float) -> int | None:
    """Seconds of an interval for this many batches over such a time; None where each batch is an interval."""
    if batches <= MAX_BATCHES:
        return None
    fitting = (width for width in _WIDTHS if seconds / width <= MAX_INTERVALS)
    return next(fitting, -(-int(seconds) // (MAX_INTERVALS * _DAY)) * _DAY)


def measure_quarantine(quarantine: DataFrame) -> QuarantineFacts:
    """Rows by reason, the most frequent ones by name. `quarantine`: bronze's columns and `reason`."""
    place = F.struct(*(F.col(name) for name in ("topic", "broker_partition", "offset", "index")))
    sample = F.struct(
        place.alias("place"),
        F.substring("value", 1, MAX_VALUE).alias("value"),
        (F.octet_length("value") > MAX_VALUE).alias("truncated"),
    )
    text = F.when(
        F.char_length("reason") > MAX_TEXT, F.concat(F.substring("reason", 1, MAX_TEXT), F.lit("…"))
    ).otherwise(F.coalesce("reason", F.lit("no reason was given")))
    reasons = quarantine.groupBy(text.alias("text")).agg(F.count("*").alias("rows"))
    top = reasons.orderBy(F.desc("rows"), "text").limit(TOP_REASONS).collect()
    if not top:
        return QuarantineFacts()
    all_of_them = _one(reasons.agg(F.count("*").alias("reasons"), F.sum("rows").alias("rows")))
    shown = quarantine.where(text.isin([row["text"] for row in top])).groupBy(text.alias("text"))
    ends = shown.agg(F.min_by(sample, place).alias("first"), F.max_by(sample, place).alias("last"))
    samples = {row["text"]: _samples(row) for row in ends.collect()}
    found = tuple(QuarantineReason(row["text"], row["rows"], samples.get(row["text"], ())) for row in top)
    return QuarantineFacts(all_of_them["rows"], found, all_of_them["reasons"] - len(found))


def measure_trend(quarantine: DataFrame, landed: LandedFacts) -> LandedFacts:
    """`landed` with the quarantined rows of each interval. `quarantine` has bronze's `landed_at`."""
    starts = [round(one.start.timestamp()) for one in landed.intervals]
    if not starts:
        return landed
    width = 1 if landed.width is None else round(landed.width.total_seconds())
    second = F.floor(F.unix_seconds("landed_at") / width) * width
    counts = [0] * len(starts)
    for row in quarantine.groupBy(second.alias("second")).agg(F.count("*").alias("rows")).collect():
        if row["second"] is not None:
            counts[max(0, bisect_right(starts, row["second"]) - 1)] += row["rows"]
    pairs = zip(landed.intervals, counts, strict=True)
    return replace(landed, intervals=tuple(replace(one, quarantined=rows) for one, rows in pairs))


def measure_events(silver: DataFrame, event_time: str) -> EventFacts:
    """Rows by the time of the event, over the stretch of time in which most of them are."""
    time = F.col(_quoted(event_time)).cast("timestamp")
    micros = F.unix_micros(time)
    span = _one(
        silver.agg(
            F.count("*").alias("all"),
            F.count(time).alias("rows"),
            F.min(micros).alias("oldest"),
            F.max(micros).alias("newest"),
            F.percentile_approx(micros, [0.01, 0.99], 1000).alias("most"),
        )
    )
    if not span["rows"]:
        return EventFacts(without_time=span["all"])
    low, high = event_range(span["oldest"], span["newest"], *span["most"])
    width = choose_width(MAX_BATCHES + 1, (high - low) / 1e6) or 1
    start = F.floor(micros / (width * 1_000_000)) * width
    counted = silver.where(micros.between(low, high)).groupBy(start.alias("start")).agg(F.count("*").alias("rows"))
    return EventFacts(
        rows=span["rows"],
        without_time=span["all"] - span["rows"],
        oldest=_clipped(span["oldest"]),
        newest=_clipped(span["newest"]),
        intervals=tuple(
            (_clipped(row["start"] * 1_000_000), row["rows"]) for row in counted.orderBy("start").collect()
        ),
        width=timedelta(seconds=width),
    )


def event_range(oldest: int, newest: int, early: int, late: int) -> tuple[int, int]:
    """What to show of events between `oldest` and `newest`, of which 98 of 100 are between `early` and `late`.

    All times in microseconds. Events with a wrong clock may be years away from the others, and are left out.
    """
    room = max(late - early, 3_600_000_000)
    return max(oldest, early - room, _MICROS_OF_MIN), min(newest, late + room, _MICROS_OF_MAX)


def measure_groups(aggregate: DataFrame, group_by: Sequence[str], sums: Sequence[str]) -> GroupFacts:
    """The groups with the most events. `aggregate`: windows with `count`, their group and `sum_<field>`s."""
    totals = _one(
        aggregate.agg(
            F.coalesce(F.sum("count"), F.lit(0)).alias("events"),
            F.count("*").alias("rows"),
            F.count_distinct("window_start").alias("windows"),
            F.min(F.unix_seconds("window_start")).alias("first"),
            F.max(F.unix_seconds("window_end")).alias("last"),
        )
    )
    if not totals["rows"]:
        return GroupFacts(tuple(group_by), tuple(sums), (), 0, 0, 0)
    added = [F.sum(_quoted(f"sum_{name}")).cast("string").alias(f"sum{number}") for number, name in enumerate(sums)]
    groups = aggregate.groupBy(*(F.col(_quoted(name)) for name in group_by))
    counted = groups.agg(F.sum("count").alias("__events"), *added)
    texts = [F.substring(_text(counted, name), 1, MAX_TEXT).alias(f"g{at}") for at, name in enumerate(group_by)]
    shown = counted.select(F.col("__events").alias("events"), *texts, *(F.col(f"sum{at}") for at in range(len(sums))))
    top = shown.orderBy(F.desc("events"), *(f"g{at}" for at in range(len(group_by)))).limit(TOP_GROUPS).collect()
    rows = tuple(
        GroupRow(
            tuple(row[f"g{at}"] if row[f"g{at}"] is not None else "null" for at in range(len(group_by))),
            row["events"],
            tuple(row[f"sum{at}"] or "" for at in range(len(sums))),
        )
        for row in top
    )
    return GroupFacts(
        tuple(group_by),
        tuple(sums),
        rows,
        counted.count(),
        totals["events"],
        totals["windows"],
        _clipped(totals["first"] * 1_000_000),
        _clipped(totals["last"] * 1_000_000),
    )


def _intervals(cells: Iterable[Row], width: int | None) -> tuple[LandedInterval, ...]:
    merged: dict[int, list[int]] = {}
    for cell in cells:
        rows, size, start = merged.get(cell["interval"], (0, 0, cell["start"]))
        merged[cell["interval"]] = [rows + cell["rows"], size + cell["size"], min(start, cell["start"])]
    return tuple(
        LandedInterval(_moment(start if width is None else key * width), rows, size, key if width is None else None)
        for key, (rows, size, start) in sorted(merged.items())
    )


def _sizes(cells: Iterable[Row]) -> MessageSizes:
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


def _samples(row: Row) -> tuple[QuarantineSample, ...]:
    found = []
    for name in ("first", "last"):
        place, value, truncated = row[name]
        sample = QuarantineSample(
            f"{place['topic']}/{place['broker_partition']} at {place['offset']}, index {place['index']}",
            None if value is None else bytes(value),
            bool(truncated),
        )
        if sample not in found:
            found.append(sample)
    return tuple(found)


def _text(table: DataFrame, name: str) -> Column:
    """A column as text; of bytes their hexadecimal digits."""
    column = F.col(_quoted(name))
    return F.hex(column) if dict(table.dtypes)[name] == "binary" else column.cast("string")


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _one(frame: DataFrame) -> Any:
    (row,) = frame.collect()
    return row


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


#: The times that Python has; messages may have others.
_MICROS_OF_MIN: Final = -62_135_596_800_000_000 + 86_400_000_000
_MICROS_OF_MAX: Final = 253_402_300_799_000_000 - 86_400_000_000


def _clipped(micros: int) -> datetime:
    return _moment(min(max(micros, _MICROS_OF_MIN), _MICROS_OF_MAX) / 1e6)
