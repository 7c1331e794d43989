"""The contents of a report as plain values: `measure` fills them, `page` shows them. Nothing here imports Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from consumerd.spark.reconcile_result import ReconcileResult

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from consumerd.spark.progress import ProgressHistory

#: Reasons that are shown by themselves; all others are one line.
TOP_REASONS = 20
#: Size classes per doubling: a percentile is at most 9 % off where messages have many sizes, and exact where few.
CLASSES_PER_DOUBLING = 8


class StepResult(Protocol):
    """The result of every step."""

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        ...


@dataclass(frozen=True, slots=True)
class LandedInterval:
    """The rows that landed with one batch, or within a stretch of time."""

    start: datetime
    rows: int
    #: Bytes of values.
    size: int
    batch: int | None = None


@dataclass(frozen=True, slots=True)
class SizeClass:
    """Messages of similar size: class `number` holds those whose size + 1 is around 2 ** (number / 8)."""

    number: int
    rows: int
    smallest: int
    largest: int


@dataclass(frozen=True, slots=True)
class MessageSizes:
    """The sizes of values, in bytes; classes in order, none empty."""

    classes: tuple[SizeClass, ...] = ()

    @property
    def rows(self) -> int:
        return sum(one.rows for one in self.classes)

    def percentile(self, share: float) -> int:
        """The size that this share (0 to 1) of the messages does not exceed. There must be messages."""
        rank = max(1.0, share * self.rows)
        seen = 0
        for one in self.classes:
            if seen + one.rows >= rank:
                within = (rank - seen) / one.rows
                return round(one.smallest + within * (one.largest - one.smallest))
            seen += one.rows
        return self.classes[-1].largest


@dataclass(frozen=True, slots=True)
class LandedFacts:
    """The content of bronze."""

    rows: int = 0
    size: int = 0
    #: Rows whose bytes could not be decoded; they have no value, or one with a wrong CRC.
    corrupt: int = 0
    batches: int = 0
    first: datetime | None = None
    last: datetime | None = None
    #: Width of the intervals; None where each is one batch.
    width: timedelta | None = None
    intervals: tuple[LandedInterval, ...] = ()
    sizes: MessageSizes = field(default_factory=MessageSizes)


@dataclass(frozen=True, slots=True)
class QuarantineSample:
    """One quarantined message: where it is, and how its value begins (bytes as they are)."""

    where: str
    value: bytes | None
    truncated: bool


@dataclass(frozen=True, slots=True)
class QuarantineReason:
    """A reason of quarantine, and the number of rows with it."""

    text: str
    rows: int
    samples: tuple[QuarantineSample, ...] = ()


@dataclass(frozen=True, slots=True)
class QuarantineFacts:
    """The most frequent reasons, and what else there is."""

    rows: int = 0
    reasons: tuple[QuarantineReason, ...] = ()
    other_reasons: int = 0

    @property
    def other_rows(self) -> int:
        return self.rows - sum(reason.rows for reason in self.reasons)


@dataclass(frozen=True, slots=True)
class TablePreview:
    """The newest rows of a table, as text."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    total: int


@dataclass(frozen=True, slots=True)
class ReportFacts:
    """All of a report. A None is a step that the pipeline does not have, or that has not run yet."""

    pipeline: str
    made: datetime
    #: The source of the pipeline, for people: option and value.
    source: Sequence[tuple[str, str]]
    landed: LandedFacts
    progress: ProgressHistory
    #: Whether the source's offsets, and so its lag, count messages; else bytes.
    counts_messages: bool = False
    refined: int | None = None
    quarantine: QuarantineFacts | None = None
    aggregate: TablePreview | None = None
    reconciled: ReconcileResult | None = None
    #: By step, what its result says of itself.
    steps: Mapping[str, Mapping[str, object]] = field(default_factory=dict)

    @property
    def unaccounted(self) -> int | None:
        """Rows of bronze that are neither in silver nor in quarantine: duplicates, and rows not refined yet."""
        if self.refined is None or self.quarantine is None:
            return None
        return self.landed.rows - self.refined - self.quarantine.rows
