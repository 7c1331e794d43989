"""The groups of an aggregate with the most events, by Spark: there may be as many groups as events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from consumerd.spark.report.facts import GroupFacts, GroupRow
from consumerd.spark.report.measure import MAX_TEXT, clipped

TOP_GROUPS: Final = 15


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
        clipped(totals["first"] * 1_000_000),
        clipped(totals["last"] * 1_000_000),
    )


def _text(table: DataFrame, name: str) -> Column:
    """A column as text; of bytes their hexadecimal digits."""
    column = F.col(_quoted(name))
    return F.hex(column) if dict(table.dtypes)[name] == "binary" else column.cast("string")


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _one(frame: DataFrame) -> Any:
    (row,) = frame.collect()
    return row
