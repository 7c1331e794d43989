"""The contents of a report as plain values: `measure` fills them, `page` shows them. Nothing here imports Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from consumerd.spark.reconcile_result import ReconcileResult

if TYPE_CHECKING:
    from datetime import timedelta

    from consumerd.spark.progress import ProgressHistory
    from consumerd.spark.step_history import StepRun

#: Reasons that are shown by themselves; all others are one line.
TOP_REASONS = 20
#: Size classes per doubling: a percentile is at most 9 % off where messages have many sizes, and exact where few.
CLASSES_PER_DOUBLING = 8
#: What stands for all later times: a day before the last that Python has, so that every zone has it.
LAST_MOMENT = datetime(9999, 12, 30, 23, 59, 59, tzinfo=UTC)


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
    #: Those of the rows that are in quarantine; None before the first refinement.
    quarantined: int | None = None


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
class EventFacts:
    """The rows of silver by the time of the event. Without rows that have one, there is no oldest and no newest."""

    rows: int = 0
    without_time: int = 0
    oldest: datetime | None = None
    newest: datetime | None = None
    #: The beginning of each interval and its rows, in order and without those that have none; intervals are this wide.
    intervals: tuple[tuple[datetime, int], ...] = ()
    width: timedelta | None = None

    @property
    def outside(self) -> int:
        """Rows so far from most others that no interval shows them."""
        return self.rows - sum(rows for _, rows in self.intervals)


@dataclass(frozen=True, slots=True)
class WindowFacts:
    """What the aggregate waits for, and what it has missed; None for what is not known."""

    #: All windows that end before are written.
    watermark: datetime | None = None
    #: Windows of a group each that are not written yet.
    open_windows: int | None = None
    #: How often an event was missing from a window that had been written, in all runs on record.
    late: int | None = None


def window_facts(runs: Sequence[Mapping[str, Any]]) -> WindowFacts:
    """From results of the aggregate as they are for `--json`, oldest first; one without events has only `late`."""
    watermarks = [moment for run in runs if (moment := _moment_of(run.get("watermark"))) is not None]
    waiting = [run["open_windows"] for run in runs if run.get("open_windows") is not None]
    late = [run["late"] for run in runs if run.get("late") is not None]
    return WindowFacts(
        watermark=watermarks[-1] if watermarks else None,
        open_windows=waiting[-1] if waiting else None,
        late=sum(late) if late else None,
    )


def _moment_of(text: object) -> datetime | None:
    """The time of a watermark, as Spark writes it; None before the first one, which is 1970."""
    if str(text).startswith("+"):  # after the year 9999, as Java writes it
        return LAST_MOMENT
    try:
        found = datetime.fromisoformat(str(text)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    return found if found.timestamp() > 0 else None


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group with its events, and the declared sums as text."""

    values: tuple[str, ...]
    events: int
    sums: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """The groups of the aggregate with the most events, over all windows that are written."""

    columns: tuple[str, ...]
    sums: tuple[str, ...]
    rows: tuple[GroupRow, ...]
    groups: int
    events: int
    windows: int
    first: datetime | None = None
    last: datetime | None = None


@dataclass(frozen=True, slots=True)
class TableFacts:
    """One table of the pipeline. `size`: bytes of its files."""

    name: str
    rows: int
    batches: int
    files: int
    size: int


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
    #: None without a time of the event, and before the first refinement.
    events: EventFacts | None = None
    #: Both None without an aggregate.
    windows: WindowFacts | None = None
    groups: GroupFacts | None = None
    tables: Sequence[TableFacts] = ()
    #: The runs of steps on record, oldest first.
    history: Sequence[StepRun] = ()
    reconciled: ReconcileResult | None = None
    #: By step, what its result says of itself.
    steps: Mapping[str, Mapping[str, object]] = field(default_factory=dict)

    @property
    def unaccounted(self) -> int | None:
        """Rows of bronze that are neither in silver nor in quarantine: duplicates, and rows not refined yet."""
        if self.refined is None or self.quarantine is None:
            return None
        return self.landed.rows - self.refined - self.quarantine.rows
