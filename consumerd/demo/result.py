"""The options and the result of a demo."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from consumerd.demo.audit import AuditResult
    from consumerd.demo.pipeline import PipelineResult


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """`input`: a file or folder, None for the standard library's sources. `seconds`: how long to produce.

    `files`: a folder for all files of the run, which stay there; None for a temporary one. `report`: the path of the
    pipeline's page; None for a file of the working directory. `spark`: whether to run the pipeline at all.
    `keep`: continue after the count, with daemons that serve their status pages, until cancelled.
    """

    input: Path | None = None
    seconds: float = 8.0
    files: Path | None = None
    report: Path | None = None
    spark: bool = True
    keep: bool = False


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The count of all messages, the number of rebalances, the duration, and the result of the pipeline.

    `pipeline` is None where it did not run.
    """

    audit: AuditResult
    rebalances: int
    seconds: float
    pipeline: PipelineResult | None = None

    @property
    def findings(self) -> list[str]:
        """The faults that were found, in words."""
        found = list(self.audit.findings)
        if (pipeline := self.pipeline) is not None:
            if pipeline.rows_landed != self.audit.distinct:
                found.append(f"{pipeline.rows_landed} rows landed of {self.audit.distinct} messages")
            if pipeline.gaps or pipeline.duplicates:
                found.append(f"the tables have {pipeline.gaps} gaps and {pipeline.duplicates} duplicates")
        return found

    @property
    def sound(self) -> bool:
        """Whether all is as it must be."""
        return self.audit.sound and not self.findings

    def as_json(self) -> dict[str, Any]:
        """The demo's last line; null for values that the pipeline did not count."""
        counts = {name: value for name, value in asdict(self.audit).items() if name != "findings"}
        landed = {
            name: getattr(self.pipeline, name, None)
            for name in ("rows_landed", "rows_quarantined", "gaps", "duplicates")
        }
        report = None if self.pipeline is None else str(self.pipeline.report)
        return {**counts, "rebalances": self.rebalances, **landed, "report": report, "seconds": round(self.seconds, 1)}
