"""Coverage of each position of a log by the plan, the source, bronze, silver and quarantine.

Strategy: a sweep line. Every run adds 1 where it begins and subtracts 1 where it ends; runs that follow each other
cancel out, whichever task read them and in any order, so of an intact partition only its two ends remain. Only sums
by position are shuffled, and the sweep runs over the rest. So the cost is that of reading, and errors show as
stretches with an unexpected depth.

Each kind of stretch is a condition on how often the layers cover it. Adjacent stretches of one kind are merged, so that
a gap counts once even if others begin or end within it; all are counted, and the first ones are returned.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import TYPE_CHECKING, Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.pandas.functions import arrow_udf

from consumerd.spark.former_logs import PLAIN_PARTITION
from consumerd.spark.reconcile_result import LISTED, LogStretch, LogStretches
from consumerd.spark.runs import KINDS, PLACE, RUN_DDL, mark_runs

if TYPE_CHECKING:
    from consumerd.spark.source.offsets import Key

#: The columns that name a partition. Its broker, where there is one, is part of the second, and so is the id of a log
#: that was replaced (`consumerd.spark.former_logs`).
PARTITION: Final = ("topic", "broker_partition")
_POINT: Final = (*PARTITION, "offset", "index")


def runs(
    frame: DataFrame,
    *,
    hashed: bool = False,
    seen: Column | None = None,
    due: Column | None = None,
    proven: Column | None = None,
) -> DataFrame:
    """The runs of rows with the source's columns; see `consumerd.spark.runs`.

    `hashed`: with the sum of a hash of identity, value and key. `seen`, `due` and `proven`: conditions on rows, never
    null, by which runs are kept apart; true where they are left out.
    """
    name = PLAIN_PARTITION if PLAIN_PARTITION in frame.columns else "broker_partition"  # of the partition, not its log
    value = content_hash("topic", name, "offset", "index") if hashed else F.lit(0).cast("bigint")
    conditions = zip(KINDS, (seen, due, proven), strict=True)
    kinds = [(F.lit(True) if kind is None else kind).alias(name) for name, kind in conditions]
    # `mapInArrow` would say it in fewer words, but asks for pandas. Nondeterministic, so that it is evaluated once.
    mark = arrow_udf(mark_runs, RUN_DDL).asNondeterministic()  # type: ignore[call-overload]  # asks for a number that warns
    marked = frame.select(*PLACE, *kinds, value.alias("hash")).select(mark(*PLACE, *KINDS, "hash").alias("run"))
    return marked.where("run IS NOT NULL").select("run.*")


def content_hash(*columns: str) -> Column:
    """A hash of these columns, the value and the key; of 0.7's messages, which have none, as if there were no key."""
    keyed = F.when(F.col("key").isNotNull(), F.lit(True))  # else a key would count as a value that is null
    return F.xxhash64(*columns, "value", keyed, "key")


def stretches(layers: Mapping[str, DataFrame]) -> DataFrame:
    """Each partition's log cut where any depth changes: columns of PARTITION, `start_offset`, `start_index`,
    `end_offset`, `end_index`, and for each layer how often it covers the stretch.

    `layers`: runs by the name of the layer. Beyond the outermost points nothing is covered.
    """
    points = reduce(_union, (_points(name, frame, layers) for name, frame in layers.items()))
    changes = points.groupBy(*_POINT).agg(*(F.sum(name).alias(name) for name in layers))
    changes = changes.where(reduce(lambda one, other: one | other, (F.col(name) != 0 for name in layers)))
    ahead = Window.partitionBy(*PARTITION).orderBy("offset", "index")
    so_far = ahead.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    swept = changes.select(
        *PARTITION,
        F.col("offset").alias("start_offset"),
        F.col("index").alias("start_index"),
        F.lead("offset").over(ahead).alias("end_offset"),
        F.lead("index").over(ahead).alias("end_index"),
        *(F.sum(name).over(so_far).alias(name) for name in layers),
    )
    return swept.where(F.col("end_offset").isNotNull())


def _points(name: str, frame: DataFrame, layers: Mapping[str, DataFrame]) -> DataFrame:
    """Return the points at which runs begin and end, as changes of the layer's depth and of no other's."""

    def ends(side: str, change: int) -> DataFrame:
        return frame.select(
            *PARTITION,
            F.col(f"{side}_offset").alias("offset"),
            F.col(f"{side}_index").alias("index"),
            *(F.lit(change if layer == name else 0).cast("bigint").alias(layer) for layer in layers),
        )

    return ends("start", 1).unionByName(ends("end", -1))


def _union(one: DataFrame, other: DataFrame) -> DataFrame:
    return one.unionByName(other)


#: The ranges to be landed; those of the source that were read again; its messages; bytes there that are not a message,
#: where they are left out; bronze; the part of it that `refine` should have handled; silver and quarantine; ranges that
#: an earlier comparison has proven, and that still hold; ranges declared gone.
LAYERS: Final = ("planned", "available", "source", "malformed", "bronze", "due", "refined", "proven", "declared")
_STARTS: Final = ("start_offset", "start_index")
_ENDS: Final = ("end_offset", "end_index")


def sweep(layers: Mapping[str, DataFrame]) -> DataFrame:
    """`stretches` of LAYERS, of which some may be left out: their depth is 0 then."""
    swept = stretches(layers)
    return swept.withColumns({name: F.lit(0) for name in LAYERS if name not in layers})


def kinds(*, lossless: bool, dedup: bool, refined: bool, compacts: bool = False) -> dict[str, Column]:
    """Conditions on the result of `sweep`, by the name of the kind in `PartitionCheck`.

    `lossless`: messages that the source no longer had were not to be left out, so such a range is a gap; else it is
    reported as trimmed, which is an error, too, unless it was declared. `dedup`: silver has each identity once;
    `refined`: there is a silver or a quarantine; `compacts`: the log may lose messages in its middle, and has offsets
    that no message ever had, so that it is unknown whether an offset that it lacks ever had a message to be landed.
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


def found_stretches(swept: DataFrame, conditions: Mapping[str, Column]) -> dict[Key, dict[str, LogStretches]]:
    """Return the stretches by partition and kind; kinds without one are left out."""
    applies = F.array_compact(F.array(*(F.when(condition, name) for name, condition in conditions.items())))
    labelled = swept.select(*PARTITION, *_STARTS, *_ENDS, F.explode(applies).alias("kind"))
    in_order = Window.partitionBy(*PARTITION, "kind").orderBy(*_STARTS)
    begins = F.coalesce(
        (F.lag("end_offset").over(in_order) != F.col("start_offset"))
        | (F.lag("end_index").over(in_order) != F.col("start_index")),
        F.lit(True),
    )
    numbered = labelled.withColumn("begins", begins.cast("int"))
    numbered = numbered.withColumn("number", F.sum("begins").over(in_order))
    joined = numbered.groupBy(*PARTITION, "kind", "number").agg(
        F.min(F.struct(*_STARTS)).alias("start"), F.max(F.struct(*_ENDS)).alias("end")
    )
    of_kind = Window.partitionBy(*PARTITION, "kind")
    counted = joined.withColumns({"count": F.count(F.lit(1)).over(of_kind), "last": F.max("end").over(of_kind)})
    found: dict[Key, dict[str, LogStretches]] = {}
    for row in counted.where(F.col("number") <= LISTED).orderBy(*PARTITION, "kind", "number").collect():
        by_kind = found.setdefault((row["topic"], row["broker_partition"]), {})
        start, end = row["start"], row["end"]
        stretch = LogStretch(start["start_offset"], end["end_offset"], start["start_index"], end["end_index"])
        before = by_kind.get(row["kind"], LogStretches())
        by_kind[row["kind"]] = LogStretches(row["count"], (*before.first, stretch), *row["last"])
    return found
