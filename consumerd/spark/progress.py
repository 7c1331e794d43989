"""What became of each batch of a streaming query: how long it took, and how far the source's end was away.

Strategy: Spark remembers the last hundred batches of a running query and forgets them when it ends. While a query is
waited for, its new batches are appended to a file of JSON lines, one `write` each, so a kill leaves at most a torn last
line, which readers leave out and the next writer ends. The file serves reports only: nothing is ever resumed from it,
so what could not be written costs a log line and no batch. It is bounded: at `MAX_BYTES` it becomes `<name>.1`, and
what had that name goes. A line names the partitions that are furthest behind and none of the others, since there may
be thousands.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import structlog

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from pyspark.sql.streaming.query import StreamingQuery

MAX_BYTES: Final = 16 << 20
#: Partitions named per batch.
NAMED: Final = 5
_log = structlog.get_logger(__name__)


class PartitionLag(NamedTuple):
    """How far one partition is behind the source's end, in the source's offsets: bytes of the log in 0.7."""

    topic: str
    partition: str
    behind: int


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """One batch of a streaming query, as its driver saw it."""

    query: str
    run: str
    batch: int
    #: When the batch was triggered, and how long it took until its offsets were committed.
    started: datetime
    seconds: float
    #: Bytes between where the batch ended and where the source ended when the batch was planned, over all partitions;
    #: None where the source does not tell its end.
    behind: int | None
    furthest: tuple[PartitionLag, ...] = ()

    @property
    def ended(self) -> datetime:
        return self.started + timedelta(seconds=self.seconds)


@dataclass(frozen=True, slots=True)
class ProgressHistory:
    """The batches that were noted, in order; and how many lines could not be read."""

    batches: tuple[BatchProgress, ...] = ()
    unreadable: int = 0


class ProgressLog:
    """The file of one query. `path` is on a file system of this machine; its folder is made when needed."""

    def __init__(self, path: Path, *, max_bytes: int = MAX_BYTES) -> None:
        self._path = path
        self._older = path.with_name(f"{path.name}.1")
        self._max_bytes = max_bytes

    def append(self, batches: Iterable[BatchProgress]) -> None:
        """Add lines. Raises OSError."""
        lines = b"".join(_encode(batch) for batch in batches)
        if not lines:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if self._path.exists() and self._path.stat().st_size + len(lines) > self._max_bytes:
            self._path.replace(self._older)
        with self._path.open("ab", buffering=0) as file:
            file.write(lines if self._ends_whole() else b"\n" + lines)

    def read(self) -> ProgressHistory:
        """All that was noted; nothing where there is no file. Raises OSError.

        A batch that was tried again after a kill counts as it went last.
        """
        found: dict[tuple[str, int], BatchProgress] = {}
        unreadable = 0
        for line in self._lines():
            batch = _decode(line)
            if batch is None:
                unreadable += 1
            else:
                found[batch.query, batch.batch] = batch
        return ProgressHistory(tuple(sorted(found.values(), key=lambda batch: batch.started)), unreadable)

    def _lines(self) -> Iterator[bytes]:
        for path in (self._older, self._path):
            with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
                yield from (line for line in file if line.strip())

    def _ends_whole(self) -> bool:
        if not self._path.stat().st_size:
            return True
        with self._path.open("rb") as file:
            file.seek(-1, 2)
            return file.read(1) == b"\n"


class ProgressRecorder:
    """Notes each batch of a running query once."""

    def __init__(self, query: StreamingQuery, log: ProgressLog) -> None:
        self._query = query
        self._progress_log = log
        self._last = -1

    def poll(self) -> None:
        """Note the batches that ended since the last call. A file that cannot be written is logged, not raised."""
        fresh = [batch for batch in map(measure, self._query.recentProgress) if batch is not None]
        fresh = [batch for batch in fresh if batch.batch > self._last]
        if not fresh:
            return
        self._last = max(batch.batch for batch in fresh)
        try:
            self._progress_log.append(fresh)
        except OSError as error:
            _log.warning("the progress of a query could not be noted", query=str(self._query.id), error=str(error))


def await_recording(query: StreamingQuery, log: ProgressLog, *, interval: float = 2.0) -> None:
    """Wait until the query ends, noting its batches all the while. Raises what `awaitTermination` raises."""
    recorder = ProgressRecorder(query, log)
    try:
        while not query.awaitTermination(interval):  # type: ignore[arg-type]  # takes floats, says int
            recorder.poll()
    finally:
        recorder.poll()


def measure(progress: Mapping[str, Any]) -> BatchProgress | None:
    """What to note of an entry of `recentProgress`; None of one without a batch (a trigger that found nothing)."""
    durations = progress["durationMs"]
    if "addBatch" not in durations:
        return None
    lags: list[PartitionLag] | None = []
    for source in progress["sources"]:
        found = lag(source["endOffset"], source["latestOffset"])
        lags = None if found is None or lags is None else lags + found
    furthest = sorted(lags or (), key=lambda one: (-one.behind, one.topic, one.partition))[:NAMED]
    return BatchProgress(
        query=str(progress["id"]),
        run=str(progress["runId"]),
        batch=progress["batchId"],
        started=datetime.fromisoformat(progress["timestamp"]),
        seconds=durations["triggerExecution"] / 1000,
        behind=None if lags is None else sum(one.behind for one in lags),
        furthest=tuple(one for one in furthest if one.behind),
    )


def lag(end: str | None, latest: str | None) -> list[PartitionLag] | None:
    """How far each partition is behind, from two stream offsets `{"topic": {"0-1": offset}}` as JSON.

    None where the source told no latest offset, or tells offsets of another shape. A partition that the batch does not
    know yet has its whole length before it, which nobody has measured: it counts from its first sight on.
    """
    reached, available = _offsets(end), _offsets(latest)
    if reached is None or available is None:
        return None
    return [
        PartitionLag(topic, partition, max(0, offset - reached[topic, partition]))
        for (topic, partition), offset in available.items()
        if (topic, partition) in reached
    ]


def _offsets(text: str | None) -> dict[tuple[str, str], int] | None:
    value = json.loads(text) if text else None
    if not isinstance(value, dict):
        return None
    found = {}
    for topic, partitions in value.items():
        if not isinstance(partitions, dict):
            return None
        for partition, offset in partitions.items():
            if not isinstance(offset, int):
                return None
            found[topic, partition] = offset
    return found


def _encode(batch: BatchProgress) -> bytes:
    return json.dumps(asdict(batch) | {"started": batch.started.isoformat()}).encode() + b"\n"


def _decode(line: bytes) -> BatchProgress | None:
    """None for a torn line, or one of another version."""
    try:
        value = json.loads(line)
        started = datetime.fromisoformat(value.pop("started")).astimezone(UTC)
        furthest = tuple(itertools.starmap(PartitionLag, value.pop("furthest")))
        return BatchProgress(**value, started=started, furthest=furthest)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
