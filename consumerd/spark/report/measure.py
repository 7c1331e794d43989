"""Figures about a pipeline's tables: aggregated by Spark, so that only small results reach the driver.

Strategy: bronze is read twice: first its two small columns `batch` and `landed_at`, to choose intervals, and then its
values, counted and summed by interval and size class together; percentiles follow from the classes. The quarantine is
read for its reasons, and for the first and last value of those that are shown. However many rows, batches or reasons
there are, the driver gets some thousand numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from consumerd.spark.report.facts import (
    CLASSES_PER_DOUBLING,
    TOP_REASONS,
    LandedFacts,
    LandedInterval,
    MessageSizes,
    QuarantineFacts,
    QuarantineReason,
    QuarantineSample,
    SizeClass,
    TablePreview,
)

#: Up to this many batches are shown one by one, more of them by time.
MAX_BATCHES: Final = 48
#: More intervals than this are not shown.
MAX_INTERVALS: Final = 120
_WIDTHS: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400)
#: Bytes of a value, and characters of a reason or a cell, that a report shows.
MAX_VALUE: Final = 200
MAX_TEXT: Final = 300
PREVIEW_ROWS: Final = 20
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


def preview(table: DataFrame, order: Iterable[str]) -> TablePreview:
    """The greatest rows by the columns `order`, the greatest first."""
    texts = [F.substring(F.coalesce(_text(table, name), F.lit("")), 1, MAX_TEXT).alias(name) for name in table.columns]
    rows = table.orderBy(*(F.desc(_quoted(name)) for name in order)).limit(PREVIEW_ROWS).select(*texts).collect()
    return TablePreview(tuple(table.columns), tuple(tuple(map(str, row)) for row in rows), table.count())


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
