"""Progress of each batch of `land`: how long it took, and its lag behind the end of the source.

Strategy: each batch adds a line to a file of JSON lines. The file is replaced as a whole, since not every file system
can append. It is bounded: beyond `MAX_BATCHES` the older half is thinned, and of two neighbours the
one with more lag is kept, so the past is kept ever more coarsely but never forgotten. A line names only the partitions
with the most lag, since there may be thousands.

The file serves reports only. Nothing is resumed from it, so a failed write costs a log line and no batch.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from consumerd.base.errors import reason_of
from consumerd.base.files import Files
from consumerd.spark.source.offsets import Key, LogOffset, parse_offsets, positions
from consumerd.spark.tables.files import errors_of, locate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from consumerd.spark.spec import PipelineSpec

#: Lines of a file: about 1 MB.
MAX_BATCHES: Final = 4096
#: Partitions named per batch.
NAMED: Final = 5


class SourceLag(NamedTuple):
    """The lag of one partition behind the source's end, in the source's offsets: bytes of the log in 0.7."""

    topic: str
    partition: str
    behind: int


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """One batch, as the process that planned it saw it."""

    query: str
    run: str
    batch: int
    #: When the batch began, and how long it took until it was complete.
    started: datetime
    seconds: float
    #: Bytes between where the batch ended and where the source ended when the batch was planned, over all partitions;
    #: None if the source does not report its end.
    behind: int | None
    furthest: tuple[SourceLag, ...] = ()
    #: Of the partitions the one that is behind least and most, and their mean; None as for `behind`.
    least: int | None = None
    most: int | None = None
    mean: float | None = None

    @classmethod
    def of(
        cls, query: str, run: str, batch: int, started: datetime, seconds: float, lags: Sequence[SourceLag] | None
    ) -> BatchProgress:
        """The record of a batch. `lags`: of all partitions; None where the source does not report its end."""
        furthest = sorted(lags or (), key=lambda one: (-one.behind, one.topic, one.partition))[:NAMED]
        behind = [one.behind for one in lags or ()]
        return cls(
            query,
            run,
            batch,
            started,
            seconds,
            behind=None if lags is None else sum(behind),
            furthest=tuple(one for one in furthest if one.behind),
            least=min(behind, default=None),
            most=max(behind, default=None),
            mean=sum(behind) / len(behind) if behind else None,
        )

    @property
    def ended(self) -> datetime:
        return self.started + timedelta(seconds=self.seconds)


@dataclass(frozen=True, slots=True)
class ProgressHistory:
    """The recorded batches in order, and the number of unreadable lines."""

    batches: tuple[BatchProgress, ...] = ()
    unreadable: int = 0


class ProgressLog:
    """The file of one query, which need not exist yet."""

    def __init__(self, files: Files, path: str, *, max_batches: int = MAX_BATCHES) -> None:
        self._files = files
        self._path = path
        self._max_batches = max_batches

    def read(self) -> ProgressHistory:
        """All records; none if there is no file. Raises OSError or Py4JJavaError, as `files` do."""
        decoded = [_decode(line) for line in (self._files.read(self._path) or b"").splitlines() if line.strip()]
        batches = tuple(batch for batch in decoded if batch is not None)
        return ProgressHistory(batches, len(decoded) - len(batches))

    def add(self, batches: Iterable[BatchProgress]) -> None:
        """Add records; a batch that was retried after a kill counts as it went last. Raises as `read`."""
        known = {(batch.query, batch.batch): batch for batch in (*self.read().batches, *batches)}
        kept = sorted(known.values(), key=lambda batch: batch.started)
        while len(kept) > self._max_batches:
            half = len(kept) // 2
            kept = [*thin(kept[:half]), *kept[half:]]
        self._files.make_directory(self._path.rpartition("/")[0])
        self._files.replace(self._path, b"".join(_encode(batch) for batch in kept))

    def note(self, batch: BatchProgress) -> None:
        """Add a record. A failed write costs the report a point of a plot, and the step nothing: it is logged."""
        try:
            self.add([batch])
        except errors_of(self._files) as error:
            import structlog  # noqa: PLC0415 - with rich, which a step that succeeds does not need

            structlog.get_logger(__name__).warning("progress_write_failed", query=batch.query, reason=reason_of(error))


def open_log(spark: SparkSession | None, pipeline: PipelineSpec) -> ProgressLog:
    """The file of a pipeline's `land`. Raises TablePathError."""
    path, files = locate(spark, f"{pipeline.base}/_progress/land.ndjson")
    return ProgressLog(files, path)


def thin(batches: Sequence[BatchProgress]) -> list[BatchProgress]:
    """Half as many: of each two neighbours the one with more lag."""
    return [max(batches[at : at + 2], key=lambda batch: batch.behind or 0) for at in range(0, len(batches), 2)]


def source_metrics(progress: Mapping[str, Any], *, counts_messages: bool = False) -> dict[str, float | str] | None:
    """The lag metrics of an entry of `query.recentProgress`, by the names of Spark's Kafka connector.

    The names are those of Spark's Kafka connector: `minOffsetsBehindLatest`, `maxOffsetsBehindLatest`,
    `avgOffsetsBehindLatest`, over the partitions, in `unit`: `bytes` of the log, or `messages` of a topic of 0.8 and
    later (`counts_messages`). Spark asks a source that is written in Python for no metrics, so they are not in
    `progress["sources"]`. Where they are bytes, the same in messages is estimated by those that the batch had:
    `minMessagesBehindLatest` and so on; left out where it had none. None where the source does not tell its end.
    """
    (source, *more) = progress["sources"]
    found = None if more else lag(source["endOffset"], source["latestOffset"])
    if not found:
        return None
    behind = [one.behind for one in found]
    numbers = {"min": float(min(behind)), "max": float(max(behind)), "avg": sum(behind) / len(behind)}
    report: dict[str, float | str] = {f"{name}OffsetsBehindLatest": number for name, number in numbers.items()}
    report["unit"] = "messages" if counts_messages else "bytes"
    before, after = _offsets(source["startOffset"]) or {}, _offsets(source["endOffset"]) or {}
    size = sum(
        max(0, end.offset - before[key].offset)
        for key, end in after.items()
        if key in before and before[key].may_be_of(end.topic_id)
    )
    rows = source.get("numInputRows") or 0
    if not counts_messages and size and rows:
        report |= {f"{name}MessagesBehindLatest": round(number * rows / size) for name, number in numbers.items()}
    return report


def lag(end: str | None, latest: str | None) -> list[SourceLag] | None:
    """Return the lag of each partition, from two stream offsets `{"topic": {"0-1": offset}}` as JSON.

    None where the source reported no latest offset, or offsets of another form. A partition that the batch does not
    know yet is behind by its whole length, which is unknown: it counts from the first batch that has it. The same holds
    for a log that has replaced another one.
    """
    reached, available = _offsets(end), _offsets(latest)
    if reached is None or available is None:
        return None
    return [
        SourceLag(*key, max(0, end.offset - reached[key].offset))
        for key, end in available.items()
        if key in reached and reached[key].may_be_of(end.topic_id)
    ]


def _offsets(text: str | None) -> dict[Key, LogOffset] | None:
    try:
        return dict(positions(parse_offsets(text))) if text else None
    except ValueError:
        return None


def _encode(batch: BatchProgress) -> bytes:
    return json.dumps(asdict(batch) | {"started": batch.started.isoformat()}).encode() + b"\n"


def _decode(line: bytes) -> BatchProgress | None:
    """None for a torn line, or one of another version."""
    try:
        value = json.loads(line)
        started = datetime.fromisoformat(value.pop("started")).astimezone(UTC)
        furthest = tuple(itertools.starmap(SourceLag, value.pop("furthest")))
        return BatchProgress(**value, started=started, furthest=furthest)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return None
