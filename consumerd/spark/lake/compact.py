"""`compact` without Spark: small files of a pipeline's tables are merged, and files that no version needs are removed.

A file that was written and not committed yet looks like one of a writer that was killed. So what is younger than the
oldest batch that is still under way is kept, however long that batch takes.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from consumerd.spark.checkpoints import Checkpoint
from consumerd.spark.lake import open_lake_table
from consumerd.spark.rebuild import Rebuild
from consumerd.spark.results import PipelineCompactResult
from consumerd.spark.spec_model import interval_seconds
from consumerd.spark.tables.errors import file_errors
from consumerd.spark.tables.files import locate

if TYPE_CHECKING:
    from consumerd.spark.spec import PipelineSpec

_STEPS = ("land", "refine", "aggregate")


def compact(pipeline: PipelineSpec) -> PipelineCompactResult:
    """Compact the existing ones of bronze, silver, quarantine and aggregate. Raises ConsumerdError.

    Steps of the pipeline may run meanwhile, with and without Spark.
    """
    spec = pipeline.compact_spec
    results = []
    rebuilding = Path(locate(None, replace(pipeline, rebuild=Rebuild(-1, -1)).refined)[0])
    with file_errors(pipeline.base):
        for path in (pipeline.bronze, pipeline.silver, pipeline.quarantine, pipeline.aggregate):
            table = open_lake_table(locate(None, path)[0], pipeline.format)
            if table.exists:
                merged = table.optimize(spec.target_bytes)
                keep = max(interval_seconds(spec.keep), *(_under_way(pipeline, step) for step in _STEPS))
                # Files of a rebuild are old when they come into the folder, and then a commit names them.
                removed = [] if rebuilding.exists() and path != pipeline.bronze else table.vacuum(keep)
                results.append(replace(merged, removed=len(removed)))
    return PipelineCompactResult(pipeline.name, tuple(results))


def _under_way(pipeline: PipelineSpec, step: str) -> float:
    """How long ago (seconds) the batch of a step was planned that is not complete; 0 where there is none."""
    checkpoint = Checkpoint(None, pipeline.checkpoint(step))
    planned = checkpoint.last_planned()
    if planned is None or planned == checkpoint.last_committed():
        return 0.0
    at = checkpoint.planned_at(planned)
    return 0.0 if at is None else max(0.0, time.time() - at / 1000)
