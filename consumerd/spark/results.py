"""The results of steps, as they are shown: the same with and without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from consumerd.spark.tables.table import CompactResult, FlatResult


@dataclass(frozen=True, slots=True)
class LandResult(FlatResult):
    """The result of one run."""

    pipeline: str
    table: str
    rows: int
    batches: int
    #: The last batch of the table; None while it has none.
    last_batch: int | None
    seconds: float
    #: Whether a signal ended the run before all was landed.
    stopped: bool
    #: Offsets that were written for lag tools (options `groupId` and `commitOffsets`).
    committed: int = 0


@dataclass(frozen=True, slots=True)
class RefineResult(FlatResult):
    """The result of one run. `duplicates`: rows left out because their identity was in silver already."""

    pipeline: str
    rows_silver: int
    rows_quarantined: int
    duplicates: int
    batches: int
    last_batch: int | None
    seconds: float
    stopped: bool
    #: Rows that were quarantined, by reason.
    reasons: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RefinePreview(FlatResult):
    """What `refine --again --dry-run` found: rows by their verdict, duplicates included. Nothing was written."""

    pipeline: str
    rows_valid: int
    rows_refused: int
    #: Rows that were refused, by reason.
    reasons: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, pipeline: str, rows: int, reasons: Mapping[str, int]) -> RefinePreview:
        """Of so many rows in all."""
        refused = sum(reasons.values())
        return cls(pipeline, rows - refused, refused, dict(reasons))


@dataclass(frozen=True, slots=True)
class PipelineCompactResult:
    """The compaction of each existing table of a pipeline."""

    pipeline: str
    tables: tuple[CompactResult, ...]

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {"pipeline": self.pipeline, "tables": [each.as_json() for each in self.tables]}
