"""What the layers over a partition's log say when they are laid over each other: kinds of stretches.

Strategy: each kind is a condition on how often the layers cover a stretch. Neighbours of one kind are put together, so
that a gap counts as one whatever else begins or ends within it; all are counted, the first ones are handed out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from consumerd.spark.coverage import PARTITION, stretches
from consumerd.spark.reconcile_result import LISTED, Stretch, Stretches

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, DataFrame

    from consumerd.spark.source.offsets import Key

#: What was to be landed; where the source was read again; its messages; what it has there that is no message, where
#: such is left out; bronze; that part of it which `refine` should have come to; silver and quarantine; what an earlier
#: comparison has proven, and still holds; what was declared gone.
LAYERS: Final = ("planned", "available", "source", "malformed", "bronze", "due", "refined", "proven", "declared")
_STARTS: Final = ("start_offset", "start_index")
_ENDS: Final = ("end_offset", "end_index")


def sweep(layers: Mapping[str, DataFrame]) -> DataFrame:
    """`stretches` of LAYERS, of which some may be left out: their depth is 0 then."""
    swept = stretches(layers)
    return swept.withColumns({name: F.lit(0) for name in LAYERS if name not in layers})


def kinds(*, lossless: bool, dedup: bool, refined: bool, compacts: bool = False) -> dict[str, Column]:
    """Conditions on what `sweep` gives, by the name that `PartitionCheck` has for the kind.

    `lossless`: nothing was to be left out that the source had no more, so such a place is a gap; else it is told as
    trimmed, which is as wrong unless it was declared. `dedup`: silver has each identity once;
    `refined`: there is a silver or a quarantine; `compacts`: the log may lose messages in its midst, and has offsets
    that no message ever had, so that of what it has no more nobody can tell whether it was there to be landed.
    """
    depth = {name: F.col(name) for name in LAYERS}
    absent = (depth["planned"] > 0) & (depth["bronze"] == 0)
    there, readable = depth["source"] > 0, depth["available"] > 0
    dropped = absent & ~there & (depth["malformed"] > 0)
    declared = absent & ~readable & ~there & (depth["declared"] > 0)
    gone = absent & ~readable & ~there & (depth["proven"] == 0) & ~declared
    beyond = (depth["bronze"] > 0) & (depth["planned"] == 0)
    alone = (depth["bronze"] > 0) & readable & ~there & (depth["malformed"] == 0)
    most = F.least(depth["bronze"], F.lit(1)) if dedup else depth["bronze"]
    found = {
        "gaps": (absent & there) | gone if lossless and not compacts else absent & there,
        "empty": absent & ~there & ~gone & ~dropped & ~declared,
        "dropped": dropped,
        "declared": declared,
        "trimmed": F.lit(False) if lossless and not compacts else gone,
        "unexpected": beyond if compacts else beyond | alone,
        "compacted": alone & ~beyond if compacts else F.lit(False),
        "duplicated": depth["bronze"] > F.greatest(depth["source"], F.lit(1)),
    }
    if refined:
        found |= {"unrefined": (depth["due"] > 0) & (depth["refined"] == 0), "surplus": depth["refined"] > most}
    return found


def found_stretches(swept: DataFrame, conditions: Mapping[str, Column]) -> dict[Key, dict[str, Stretches]]:
    """By partition, the stretches of each kind of which there are any."""
    applies = F.array_compact(F.array(*(F.when(condition, name) for name, condition in conditions.items())))
    told = swept.select(*PARTITION, *_STARTS, *_ENDS, F.explode(applies).alias("kind"))
    in_order = Window.partitionBy(*PARTITION, "kind").orderBy(*_STARTS)
    begins = F.coalesce(
        (F.lag("end_offset").over(in_order) != F.col("start_offset"))
        | (F.lag("end_index").over(in_order) != F.col("start_index")),
        F.lit(True),
    )
    numbered = told.withColumn("begins", begins.cast("int"))
    numbered = numbered.withColumn("number", F.sum("begins").over(in_order))
    joined = numbered.groupBy(*PARTITION, "kind", "number").agg(
        F.min(F.struct(*_STARTS)).alias("start"), F.max(F.struct(*_ENDS)).alias("end")
    )
    of_kind = Window.partitionBy(*PARTITION, "kind")
    counted = joined.withColumns({"count": F.count(F.lit(1)).over(of_kind), "last": F.max("end").over(of_kind)})
    found: dict[Key, dict[str, Stretches]] = {}
    for row in counted.where(F.col("number") <= LISTED).orderBy(*PARTITION, "kind", "number").collect():
        by_kind = found.setdefault((row["topic"], row["broker_partition"]), {})
        start, end = row["start"], row["end"]
        stretch = Stretch(start["start_offset"], end["end_offset"], start["start_index"], end["end_index"])
        before = by_kind.get(row["kind"], Stretches())
        by_kind[row["kind"]] = Stretches(row["count"], (*before.first, stretch), *row["last"])
    return found
