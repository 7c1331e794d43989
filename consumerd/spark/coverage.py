"""How often each place of a log is covered: by what was planned, by the source, by bronze, by silver and quarantine.

Strategy: a sweep line. Every run adds 1 where it begins and takes 1 away where it ends; runs that follow each other
cancel out, whatever task read them and in whatever order, so of an intact partition two points are left: its ends. Sums
by point are all that is shuffled; the sweep itself goes over what is left after that. So the cost is that of reading,
and what is wrong shows as stretches with a depth that it should not have.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.pandas.functions import arrow_udf

from consumerd.spark.runs import KINDS, PLACE, RUN_DDL, mark_runs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, DataFrame

#: What a partition is named by; its broker, where there is one, is part of the second.
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
    value = content_hash("topic", "broker_partition", "offset", "index") if hashed else F.lit(0).cast("bigint")
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
    """Where runs begin and end, as changes of the layer's depth and of no other's."""

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
