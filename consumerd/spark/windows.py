"""A declared aggregate as operations on DataFrames, the same for a stream and for a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from consumerd.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from consumerd.spark.spec import AggregateSpec, PipelineSpec

_WINDOW: Final = "__window"


@dataclass(frozen=True, slots=True)
class DeclaredWindows:
    """The windows of one pipeline, over rows of silver."""

    event_time: str
    spec: AggregateSpec

    @classmethod
    def of(cls, pipeline: PipelineSpec) -> DeclaredWindows:
        """What the pipeline declares. Raises ConfigError where that is nothing, or does not fit together."""
        spec, refine = pipeline.aggregate_spec, pipeline.refine
        if spec is None or refine is None or refine.event_time is None:
            raise ConfigError(f"the pipeline {pipeline.name} has no [aggregate] table with an event_time: add one.")
        found = cls(refine.event_time, spec)
        names = [*found.keys, *found._sums, "count", "batch"]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigError(
                f"the aggregate of the pipeline {pipeline.name} would have two columns {twice[0]!r}: remove it from "
                "group_by or sums, or give the field another name."
            )
        return found

    @property
    def keys(self) -> tuple[str, ...]:
        """Columns that tell the rows of the result apart."""
        return ("window_start", "window_end", *self.spec.group_by)

    @property
    def _sums(self) -> dict[str, str]:
        return {f"sum_{name}": name for name in self.spec.sums}

    def declared(self) -> dict[str, Any]:
        """What cannot change once there is state; the watermark can."""
        return {
            "event_time": self.event_time,
            "window": self.spec.window,
            "slide": self.spec.slide,
            "group_by": list(self.spec.group_by),
            "sums": list(self.spec.sums),
        }

    def watermarked(self, stream: DataFrame) -> DataFrame:
        """The stream, with what is later than declared to be left out."""
        return stream.withWatermark(self.event_time, self.spec.watermark)

    def window(self) -> Column:
        """The window of a row; where windows overlap a row has several."""
        return F.window(self.event_time, self.spec.window, self.spec.slide)

    def grouped(self, frame: DataFrame) -> DataFrame:
        """One row for each window and group with events: `keys`, `count`, and a `sum_<field>` for each of the sums."""
        types = dict(frame.dtypes)
        sums = [_sum(field, types[field]).alias(name) for name, field in self._sums.items()]
        rows = frame.groupBy(self.window().alias(_WINDOW), *self.spec.group_by).agg(
            F.count(F.lit(1)).alias("count"), *sums
        )
        return rows.select(
            F.col(f"{_WINDOW}.start").alias("window_start"),
            F.col(f"{_WINDOW}.end").alias("window_end"),
            *self.spec.group_by,
            "count",
            *self._sums,
        )


def _sum(name: str, kind: str) -> Column:
    """A sum that no values can make fail: a message must not be able to stop a pipeline."""
    if kind == "bigint":
        return F.sum(F.col(name).cast("decimal(19,0)"))  # 29 digits
    if kind.startswith("decimal"):
        return F.try_sum(name)  # null beyond 38 digits
    return F.sum(name)
