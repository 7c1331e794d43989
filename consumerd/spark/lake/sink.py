"""The handlers `delta` and `iceberg`: a member of a group appends to the table that `land` writes, exactly once.

Strategy: the table is messages and position in one: a commit has rows and the offsets that they reach. So `position`
wins over ZooKeeper and Kafka, and nothing depends on when an offset was committed. A batch counts as handled when the
commit that has its rows was made; nothing waits in a file that is not committed, so a revocation or a stop leaves
nothing to be flushed. Batches of all partitions that wait at a time share one file and one commit. A former owner that
wakes up late finds the offsets moved, and appends nothing that is there (`append_rules`, `appending`).

Files are written and commits made in a thread, one at a time. A commit that a store or a disk does not answer counts as
failed after `timeout`; its thread goes on, which is harmless, since what it may still commit is not appended again.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import threading
import uuid
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar
from urllib.parse import unquote, urlsplit

import structlog

from consumerd.base.errors import (
    ConfigError,
    ConsumerdError,
    CorruptDataError,
    HandlerFailedError,
    HandlerLoadError,
    reason_of,
)
from consumerd.base.partition import TopicPartition
from consumerd.base.rounds import Rounds
from consumerd.base.settings.kind import checked
from consumerd.base.settings.setting import Seconds, SecondsOrZero
from consumerd.base.threads import until_done
from consumerd.handlers.api import Handler, PartitionTakenError, SinkPosition
from consumerd.handlers.builtin.disk import look_at_directory
from consumerd.handlers.builtin.ranges import IfEmpty
from consumerd.handlers.context import HandlerContext
from consumerd.handlers.messages import Batch
from consumerd.handlers.secrets import Secret
from consumerd.handlers.threads import in_thread

if TYPE_CHECKING:
    from consumerd.spark.lake.appending import Part, TableAppender
    from consumerd.spark.lake.offsets import TableOffsets
    from consumerd.spark.source.offsets import LogOffset

log = structlog.get_logger(__name__)

#: Owners of tables that belong to a group alone are made of its name, so that all members have the same one.
_GROUPS: Final = uuid.UUID("5c0b6a0e-8f0e-4d0c-9d3f-6f6b6c616b65")
_PACKAGES: Final = {"delta": "deltalake", "iceberg": "pyiceberg"}
_OS_ERROR: Final = re.compile(r"\(os error (\d+)\)")
#: What SQLite's primary codes (SQLITE_IOERR, SQLITE_FULL) say of the disk.
_SQLITE: Final = {10: errno.EIO, 13: errno.ENOSPC}
_T = TypeVar("_T")


@dataclass(slots=True)
class _Reached:
    """Where the table was for this owner of a partition, and the last batch that moved it, with where it was before."""

    offset: LogOffset | None
    last: tuple[int, int] | None = None
    before: LogOffset | None = None

    def of(self, batch: Batch) -> LogOffset | None:
        """`reached` for a batch: the last one may come again, when its confirmation was lost."""
        return self.before if self.last == (batch.start_offset, batch.next_offset) else self.offset


class TableHandler(Handler):
    """Appends to a table. Options:

    `directory`: of the table, a path or the URL of an object store. `checkpoint`: the folder `_checkpoints/land` of the
    pipeline whose table it is; without it the table belongs to the group. `commit_interval`: seconds between the
    beginnings of two commits, at least. `timeout`: seconds that a commit may take. `headers`: whether there is a column
    of headers. `storage_options`: a table of options for the store. `if_empty`: see `RangeHandler.position`.

    Raises PartitionTakenError, other HandlerFailedErrors where the table cannot be appended to, and what the disk or
    the store says, which the retry policy handles.
    """

    #: The name of the format, and of the handler.
    format: Literal["delta", "iceberg"]

    @checked
    def __init__(
        self,
        directory: str | Path,
        checkpoint: str | Path | None = None,
        commit_interval: SecondsOrZero = 1.0,
        timeout: Seconds = 120.0,
        headers: bool = False,
        storage_options: Secret[Mapping[str, Any] | None] = None,
        if_empty: IfEmpty = "stop",
    ) -> None:
        if not str(directory):
            raise ValueError("directory must be a path or the URL of an object store")
        self._directory = _local(str(directory))
        self._checkpoint = None if checkpoint is None else str(checkpoint)
        self._interval = float(commit_interval)
        self._timeout = float(timeout)
        self._headers = headers
        self._store = {str(name): str(value) for name, value in (storage_options or {}).items()}
        self._if_empty = if_empty
        try:
            import_module(_PACKAGES[self.format])
            from consumerd.spark.lake import appending, open_lake_table  # noqa: PLC0415 - of the extra
        except ImportError as error:
            extra = "lake" if self.format == "delta" else "iceberg"
            raise HandlerLoadError(
                f"the handler {self.format!r} needs the extra `{extra}`: pip install 'consumerd[{extra}]'."
            ) from error
        try:
            self._table = open_lake_table(self._directory, self.format, storage_options=self._store)
        except ConfigError as error:
            raise HandlerLoadError(f"handler {self.format!r}: {error}") from error
        self._part = appending.Part
        self._context: HandlerContext | None = None
        self._appender: TableAppender | None = None
        self._reached: dict[TopicPartition, _Reached] = {}
        self._commits: Rounds[Part, None] = Rounds(self._commit)
        self._looks: Rounds[TopicPartition, TableOffsets] = Rounds(lambda _: self._look())
        #: The commit whose thread has not ended.
        self._running: asyncio.Future[Any] | None = None
        self._stop = threading.Event()
        #: When the next commit may begin, by the clock of the context.
        self._next = 0.0

    async def start(self, context: HandlerContext) -> None:
        """Find out whether the table can be appended to. Raises HandlerFailedError, and what the store says."""
        self._context = context
        self._stop = threading.Event()
        self._next = context.clock.monotonic()
        metrics = context.metrics
        self._rows = metrics.counter("rows", "Rows that were committed to the table.")
        self._bytes = metrics.counter("bytes", "Bytes of the files that were committed to the table.")
        self._made = metrics.counter("commits", "Commits to the table.")
        self._conflicts = metrics.counter(
            "conflicts", "Commits that were prepared again, because another writer was faster."
        )
        self._durations = metrics.histogram("commit_seconds", "Durations of writing a file and committing it.")
        if context.config and not context.config.get("linger"):
            log.warning(
                "linger_not_configured",
                handler=context.name,
                reason="each batch is committed as it was fetched, so commits are small and many",
                remedy="set handler.linger, and handler.max_bytes or handler.max_batch",
            )
        self._appender = await self._declared(in_thread(lambda: self._prepared(context.group)))

    def _prepared(self, group: str) -> TableAppender:
        from consumerd.spark.lake.appending import TableAppender  # noqa: PLC0415 - of the extra
        from consumerd.spark.lake.handover import joined, offsets_of  # noqa: PLC0415 - likewise
        from consumerd.spark.lake.tasks import bronze_schema  # noqa: PLC0415 - likewise

        checkpoint = None if self._checkpoint is None else joined(self._checkpoint)
        appender = TableAppender(
            self._table,
            writer=str(uuid.uuid5(_GROUPS, group)) if checkpoint is None else checkpoint.query_id(),
            schema=bronze_schema(headers=self._headers),
            now=lambda: datetime.now(UTC),
            earlier=lambda batch: None if checkpoint is None else offsets_of(checkpoint, batch),
        )
        appender.prepare()
        return appender

    async def check_online(self) -> str:
        """Look at the directory. Raises HandlerFailedError."""
        if "://" in self._directory:
            return "writes to a store of objects, which is not looked at"
        return await in_thread(lambda: look_at_directory(Path(self._directory)))

    async def stop(self) -> None:
        """Wait for a commit that is under way, at most for `timeout`."""
        self._stop.set()
        self._reached.clear()
        self._appender = None
        running, self._running = self._running, None
        if running is not None:
            await asyncio.wait([running], timeout=self._timeout)
            if running.done() and not running.cancelled() and (error := running.exception()) is not None:
                log.info("commit_interrupted", table=self._table.path, reason=reason_of(error))

    async def position(self, partition: TopicPartition) -> SinkPosition | None:
        """Tell where the table has the partition; None if it has nothing of it.

        Raises HandlerFailedError where offsets of the partition are committed and nothing of its topic is in the table,
        unless `if_empty` is "continue": the table may be another one.
        """
        self._reached.pop(partition, None)
        reached = await self._looks.take_part([partition])
        stored = reached.ends.get((partition.topic, partition.name))
        known = self._if_empty == "continue" or any(topic == partition.topic for topic, _ in reached.ends)
        if not known and self._context is not None and (committed := await self._context.committed(partition)):
            raise HandlerFailedError(
                f"offset {committed} of {partition} is committed, but the table {self._table.path} has nothing of "
                f'topic {partition.topic}: check options.directory. If the table is new, set if_empty = "continue".'
            )
        self._reached[partition] = _Reached(stored)
        log.info("table_position_found", partition=str(partition), position=None if stored is None else stored.offset)
        return None if stored is None else SinkPosition(stored.offset, stored.topic_id, stored.leader_epoch)

    async def _look(self) -> TableOffsets:
        appender = self._require_appender()
        return await self._declared(in_thread(appender.offsets))

    async def handle(self, batch: Batch) -> None:
        """Append the batch; when it returns, its rows and their offsets are committed."""
        if batch.next_offset <= batch.start_offset:
            return
        if batch.partition not in self._reached:
            await self.position(batch.partition)
        reached = self._reached[batch.partition]
        part = self._part(batch, reached.of(batch))
        try:
            await self._wait_for_turn()
            await self._commits.take_part([part])
        except asyncio.CancelledError as error:
            part.cancelled = True
            await until_done(asyncio.ensure_future(self._commits.wait_for([part])))
            raise error
        if part.error is not None:
            if isinstance(part.error, PartitionTakenError):
                self._reached.pop(batch.partition, None)
            raise part.error
        reached.before, reached.last = part.reached, (batch.start_offset, batch.next_offset)
        reached.offset = part.ended
        batch.mark(len(batch))

    async def _wait_for_turn(self) -> None:
        assert self._context is not None
        clock = self._context.clock
        while (pause := self._next - clock.monotonic()) > 0:
            await clock.sleep(pause)

    async def _commit(self, parts: list[Part]) -> None:
        """Append what of the parts is still waited for. Raises TimeoutError, and as `TableAppender.append`."""
        assert self._context is not None
        clock, appender = self._context.clock, self._require_appender()
        began = clock.monotonic()
        self._next = began + self._interval
        if self._running is not None:  # of a commit that took too long
            await self._ended(self._running)
        stop = self._stop
        self._running = running = asyncio.ensure_future(in_thread(lambda: appender.append(parts, stop)))
        counts = await self._declared(self._ended(running))
        self._rows.add(counts.rows)
        self._bytes.add(counts.bytes)
        self._made.add(counts.commits)
        self._conflicts.add(counts.conflicts)
        self._durations.observe(clock.monotonic() - began)

    async def _ended(self, running: asyncio.Future[_T]) -> _T:
        """The result of a thread. A cancellation waits for its end. Raises TimeoutError after `timeout`."""
        waiting = asyncio.ensure_future(asyncio.wait([running], timeout=self._timeout))
        cancelled = await until_done(waiting)
        if not running.done():
            if cancelled is not None:
                raise cancelled
            raise TimeoutError(f"the commit to {self._table.path} has not ended within {self._timeout:g} s")
        self._running = None
        if cancelled is not None:
            running.exception()
            raise cancelled
        return running.result()

    def _require_appender(self) -> TableAppender:
        if self._appender is None:
            raise HandlerFailedError(f"handler {self.format!r} is not started.")
        return self._appender

    async def _declared(self, work: Awaitable[_T]) -> _T:
        """Raise what no retry can mend as HandlerFailedError, and a full disk as the system does."""
        from consumerd.spark.tables.errors import TableOwnedError  # noqa: PLC0415 - what `open_lake_table` imports

        try:
            return await work
        except HandlerFailedError:
            raise
        except TableOwnedError as error:
            raise HandlerFailedError(
                f"the table {self._table.path} belongs to {self._owner()}: set the option `checkpoint` to the folder "
                "_checkpoints/land of the pipeline that wrote it, or another `directory`. Nothing was written."
            ) from error
        except ConsumerdError as error:
            if "loading credentials" in str(error):
                raise HandlerFailedError(
                    f"there are no credentials for {self._table.path}: set them in storage_options "
                    "(AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION) or in the environment."
                ) from error
            found = _system_error(error)
            if found is not None:
                raise found from error
            if isinstance(error, ConfigError | CorruptDataError) or error.exit_code == TableOwnedError.exit_code:
                raise HandlerFailedError(str(error)) from error
            raise

    def _owner(self) -> str:
        if self._checkpoint is None:
            return "a pipeline or another group"
        return f"another checkpoint than {self._checkpoint}"


class DeltaHandler(TableHandler):
    """A Delta table. See TableHandler."""

    format = "delta"


class IcebergHandler(TableHandler):
    """An Iceberg table. See TableHandler."""

    format = "iceberg"


def _system_error(error: BaseException) -> OSError | None:
    """The error of a system call that caused an error, with its number: deltalake has that in its text alone.

    A catalog in SQLite has a code of its own for it.
    """
    cause = error.__cause__
    code = getattr(getattr(cause, "orig", None), "sqlite_errorcode", None)
    if code is not None:
        number = _SQLITE.get(code & 0xFF)
    elif isinstance(cause, OSError):
        match = _OS_ERROR.search(str(cause))
        number = cause.errno if match is None else int(match[1])
    else:
        number = None
    return None if number is None else OSError(number, os.strerror(number))


def _local(directory: str) -> str:
    """The path of a local directory, or the URL."""
    if "://" not in directory:
        return os.path.abspath(directory)  # noqa: PTH100 - names of tables are texts
    parts = urlsplit(directory)
    if parts.scheme != "file":
        return directory
    if parts.netloc not in ("", "localhost") or not parts.path:
        raise ValueError(f"directory must be of the form file:///path, not {directory!r}")
    return unquote(parts.path)
