"""Exactly-once files, one for each range of a partition's log that was handled: what `files` and `parquet` share.

    <directory>/<topic>/<broker>-<partition>/<start>-<end><suffix>        20 digits each; [start, end) in log offsets

Strategy. The files are messages and position in one: the end of the last range is the offset to resume at (`position`),
which wins over ZooKeeper, so nothing depends on when an offset was committed. A range holds whole outermost messages,
so the next one begins where fetching can begin. The store gives a range its name as a whole or not at all, and fences a
former owner that wakes up late: `consumerd.handlers.builtin.range_folders` in a file system,
`consumerd.handlers.builtin.range_objects` in a store of objects. The handler defines the content of a file: it makes
the bytes in pieces, since a batch may be one message of a hundred kilobytes that makes half a gigabyte of lines.

Compressed messages, retention and skipped corruption can leave gaps between ranges; they are gaps of the log. A topic
that is created again has another log under the same name: its ranges are files of their own, and its position begins
again, where brokers tell the logs apart (`consumerd.handlers.builtin.range_logs`, with the rule for where they do not).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Generic, Literal, Protocol, TypeVar

import structlog

from consumerd.base.errors import HandlerFailedError
from consumerd.base.partition import TopicPartition
from consumerd.base.settings.kind import checked
from consumerd.handlers.api import Handler
from consumerd.handlers.builtin.disk import look_at_directory
from consumerd.handlers.builtin.range_logs import StoredLog
from consumerd.handlers.context import HandlerContext
from consumerd.handlers.messages import Batch
from consumerd.handlers.threads import in_thread
from consumerd.wire.v07 import validate_topic

log = structlog.get_logger(__name__)

#: What to do where nothing of a topic is stored, though offsets of it are committed.
IfEmpty = Literal["stop", "continue"]


class RangeOverlapError(HandlerFailedError):
    """A batch begins before the end of the ranges that are stored."""


class InterruptedRangeError(Exception):
    """The handler was cancelled while its thread wrote. It is never raised to a caller."""


class TakenFolder(Protocol):
    """A partition's folder that this process has taken over."""

    #: The log that it has the last ranges of, and where they end.
    stored: StoredLog


_Folder = TypeVar("_Folder", bound=TakenFolder)


class RangeStore(Protocol[_Folder]):
    """The storage of ranges. All calls block, and run in a thread; OSError and the like are for the retry policy."""

    def prepare(self) -> None:
        """Find out whether it can be used. Raises HandlerFailedError where it never can."""
        ...

    def has(self, topic: str) -> bool:
        """Whether ranges of the topic were ever stored here, or may have been. Raises HandlerFailedError."""
        ...

    def take_over(self, topic: str, partition: str) -> _Folder:
        """The folder of a partition, in which a former owner can store nothing any more."""
        ...

    def store(self, folder: _Folder, batch: Batch, pieces: Callable[[], Iterator[bytes]]) -> None:
        """Store the batch under its name, durably, the whole or nothing, and move `folder.stored`.

        `pieces()` are the bytes, and raise InterruptedRangeError when the handler no longer waits for them. Raises
        PartitionTakenError, RangeOverlapError; one that has stored the same batch before returns.
        """
        ...

    def give_back(self, folders: Iterable[_Folder]) -> None:
        """Release folders, in which nothing more is stored."""
        ...


class RangeHandler(Handler, Generic[_Folder]):
    """A handler that stores ranges in `store`; `encode(batch)` makes the pieces of a file.

    `path`: of a directory; None: a store of objects. `if_empty`: see `position`.
    """

    @checked
    def __init__(
        self,
        store: RangeStore[_Folder],
        encode: Callable[[Batch], Iterator[bytes]],
        path: Path | None,
        if_empty: IfEmpty = "stop",
    ) -> None:
        self._store = store
        self._path = path
        self._if_empty = if_empty
        self._context: HandlerContext | None = None
        self._encode = encode
        self._folders: dict[TopicPartition, _Folder] = {}

    async def start(self, context: HandlerContext) -> None:
        """Make the directory, or look into the store, so that a wrong one is found before the group is joined."""
        self._context = context
        await in_thread(self._store.prepare)

    async def check_online(self) -> str:
        """Look at the directory. Raises HandlerFailedError."""
        path = self._path
        if path is None:
            return "writes to a store of objects, which is not looked at"
        return await in_thread(lambda: look_at_directory(path))

    async def stop(self) -> None:
        """Remove the (empty) folders of this writer."""
        folders = [*self._folders.values()]
        self._folders.clear()
        await in_thread(lambda: self._store.give_back(folders))

    async def position(self, partition: TopicPartition) -> int | None:
        """Take the partition's folder over, and tell where its ranges end; None for a partition without files.

        Raises HandlerFailedError where offsets of the partition are committed and nothing of its topic is here, unless
        `if_empty` is "continue": the disk with the ranges may not be mounted.
        """
        if self._if_empty == "stop" and self._context is not None:
            validate_topic(partition.topic)
            known = await in_thread(lambda: self._store.has(partition.topic))
            committed = None if known else await self._context.committed(partition)
            if committed:
                raise HandlerFailedError(
                    f"offset {committed} of {partition} is committed, but the directory has no folder "
                    f"{partition.topic}: is its file system mounted? If the directory is new, make the folder, or set "
                    'handler.options.if_empty = "continue".'
                )
        return (await self._taken(partition)).stored.position

    async def handle(self, batch: Batch) -> None:
        """Store the batch; when it returns, the file is durable.

        A cancellation leaves the whole range or, where that would take long, nothing of it.
        """
        folder = self._folders.get(batch.partition) or await self._taken(batch.partition)
        if batch.next_offset > batch.start_offset:
            cancelled = threading.Event()
            await in_thread(lambda: self._write(folder, batch, cancelled), interrupt=cancelled.set)

    async def _taken(self, partition: TopicPartition) -> _Folder:
        self._folders.pop(partition, None)
        validate_topic(partition.topic)  # it names a folder: nothing may lead out of ours
        folder = await in_thread(lambda: self._store.take_over(partition.topic, partition.name))
        log.info("files_position_found", partition=str(partition), position=folder.stored.end)
        self._folders[partition] = folder
        return folder

    def _write(self, folder: _Folder, batch: Batch, cancelled: threading.Event) -> None:
        self._store.store(folder, batch, lambda: _interruptible(self._encode(batch), cancelled))
        batch.mark(len(batch))  # also seen by a caller that has cancelled us meanwhile


def _interruptible(pieces: Iterator[bytes], cancelled: threading.Event) -> Iterator[bytes]:
    for count, piece in enumerate(pieces):
        if count and cancelled.is_set():
            raise InterruptedRangeError
        yield piece


def overlap(batch: Batch, end: int, folder: object) -> RangeOverlapError:
    """The error of a batch that lies before `end`."""
    return RangeOverlapError(
        f"offset {batch.start_offset} of {batch.partition} is below {end}, where the files in "
        f"{folder} end: the topic was recreated or its log was truncated; move the folder away, or set another "
        "`directory`, to store it again."
    )
