"""Small files of a pipeline's tables made into large ones. May be run, killed and run again at any time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from consumerd.spark.failures import declared_errors
from consumerd.spark.spec_model import interval_seconds
from consumerd.spark.tables import CompactResult, open_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from consumerd.spark.spec import PipelineSpec


@dataclass(frozen=True, slots=True)
class PipelineCompactResult:
    """What was done to each table of a pipeline that there is."""

    pipeline: str
    tables: tuple[CompactResult, ...]

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {"pipeline": self.pipeline, "tables": [each.as_json() for each in self.tables]}


def compact(spark: SparkSession, pipeline: PipelineSpec) -> PipelineCompactResult:
    """Compact bronze, silver, quarantine and aggregate, those that there are. Raises ConsumerdError.

    Steps of the pipeline may run meanwhile: they go by the numbers of batches, which stay.
    """
    spec = pipeline.compact_spec
    results = []
    with declared_errors():
        for path in (pipeline.bronze, pipeline.silver, pipeline.quarantine, pipeline.aggregate):
            table = open_table(spark, path, pipeline.format)
            if table.exists:
                results.append(table.compact(spec.target_bytes, keep_seconds=interval_seconds(spec.keep)))
    return PipelineCompactResult(pipeline.name, tuple(results))
