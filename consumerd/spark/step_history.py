"""The runs of a pipeline's steps: when, how long, how many rows, how many bytes of files they wrote.

Strategy: each run of a step adds a line to a file of JSON lines, which is replaced as a whole and keeps the newest
`MAX_RUNS` lines. As with `progress`, the file serves people only: a failed write costs a log line and no step.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import structlog
from py4j.protocol import Py4JJavaError

from consumerd.base.errors import ConsumerdError, reason_of
from consumerd.spark.tables.files import locate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from consumerd.spark.spec import PipelineSpec

#: Lines of a file: about 200 kB.
MAX_RUNS: Final = 600
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class StepRun:
    """One run of a step. `rows`: those that it processed; None for a step that has none."""

    step: str
    started: datetime
    seconds: float
    rows: int | None = None
    #: Bytes of the files that it wrote; None if it writes no table.
    written: int | None = None
    #: The numbers and texts of its result, without lists.
    figures: Mapping[str, Any] = field(default_factory=dict)

    @property
    def rows_per_second(self) -> float | None:
        return self.rows / self.seconds if self.rows and self.seconds > 0 else None

    @property
    def megabytes_per_second(self) -> float | None:
        """A million bytes each."""
        return self.written / 1e6 / self.seconds if self.written and self.seconds > 0 else None

    def as_json(self) -> dict[str, Any]:
        """For `--json`: without the figures, which the step's result has."""
        pace, speed = self.rows_per_second, self.megabytes_per_second
        return {
            "step": self.step,
            "seconds": round(self.seconds, 3),
            "rows": self.rows,
            "rows_per_second": None if pace is None else round(pace, 1),
            "written_bytes": self.written,
            "megabytes_per_second": None if speed is None else float(f"{speed:.2g}"),
        }


#: Names under which results have the number of rows that a step processed.
_ROWS: Final = (("rows",), ("rows_silver", "rows_quarantined", "duplicates"), ("rows_landed",))


def step_run(step: str, started: datetime, seconds: float, result: Mapping[str, Any], written: int | None) -> StepRun:
    """The record of a step by its result, as that is for `--json`."""
    figures = {name: value for name, value in result.items() if isinstance(value, (int, float, str))}
    names = next((names for names in _ROWS if all(name in figures for name in names)), None)
    rows = None if names is None else sum(int(figures[name]) for name in names)
    return StepRun(step, started, seconds, rows, written, figures)


def read_runs(spark: SparkSession, pipeline: PipelineSpec) -> tuple[StepRun, ...]:
    """All runs that are on record, in their order. Raises TablePathError, OSError or Py4JJavaError."""
    path, files = locate(spark, _path(pipeline))
    found = (_decode(line) for line in (files.read(path) or b"").splitlines())
    return tuple(run for run in found if run is not None)


def note_run(spark: SparkSession, pipeline: PipelineSpec, run: StepRun) -> None:
    """Record a run. A failed write is logged, not raised."""
    try:
        kept = [*read_runs(spark, pipeline), run][-MAX_RUNS:]
        path, files = locate(spark, _path(pipeline))
        files.make_directory(path.rpartition("/")[0])
        files.replace(path, b"".join(_encode(each) for each in kept))
    except (ConsumerdError, OSError, Py4JJavaError) as error:
        _log.warning("step_history_write_failed", step=run.step, reason=reason_of(error))


def _path(pipeline: PipelineSpec) -> str:
    return f"{pipeline.base}/_progress/runs.ndjson"


def _encode(run: StepRun) -> bytes:
    return json.dumps(asdict(run) | {"started": run.started.isoformat()}).encode() + b"\n"


def _decode(line: bytes) -> StepRun | None:
    """None for a torn line, or one of another version."""
    try:
        value = json.loads(line)
        started = datetime.fromisoformat(value.pop("started")).astimezone(UTC)
        run = StepRun(**value, started=started)
        numbers = (run.seconds, run.rows or 0, run.written or 0)
        return run if all(isinstance(each, (int, float)) for each in numbers) and isinstance(run.step, str) else None
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return None
