"""Ranges in a store of objects (`s3://...`), by fsspec: an object is there as a whole or not at all.

Strategy: nothing is renamed. The bytes of a range are complete before they are sent, in one call under their final
name, which depends on the range alone: an upload that was cut off leaves nothing, and one whose answer got lost is made
again with the same bytes.

There is no folder that only its writer can use, so a former owner is found by looking: before each upload the folder is
listed, and a range that this process has not written, behind those that it knows, ends its ownership. What remains is a
process that is suspended between listing and upload, for longer than its session, while the next owner begins: its
range can overlap those of the next owner. The next takeover reports that (`overlapping_ranges`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from consumerd.base.errors import HandlerFailedError, reason_of
from consumerd.handlers.api import PartitionTakenError
from consumerd.handlers.builtin.range_logs import StoredLog, StoredRange, last_log, ranges_among
from consumerd.handlers.builtin.ranges import overlap
from consumerd.handlers.messages import Batch
from consumerd.storage.archives.extras import extra


@dataclass(slots=True)
class ObjectFolder:
    """A partition's prefix that this process has taken over."""

    path: str
    stored: StoredLog
    #: The last object written by us: a batch may come again when its confirmation was lost (cancelled, timed out).
    last: str | None = None
    #: A note that no range follows yet.
    pending: str | None = None


class RangeObjects:
    """A `RangeStore` below a URL, for objects whose names end with `suffix`. `options` are those of fsspec's driver."""

    def __init__(self, url: str, options: Mapping[str, Any], suffix: str) -> None:
        self._url = url
        self._options = dict(options)
        self._suffix = suffix
        self._files: Any = None
        self._root = ""

    def prepare(self) -> None:
        core = extra("fsspec.core", f"writing to {self._url}")
        try:
            # A listing that another member has changed since must not come from a cache.
            options = {**self._options, "use_listings_cache": False, "skip_instance_cache": True}
            self._files, root = core.url_to_fs(self._url, **options)
            self._root = root.rstrip("/")
            self._names(self._root)
        except Exception as error:  # each driver has errors of its own
            raise HandlerFailedError(f"{self._url} cannot be used: {reason_of(error)}.") from error

    def give_back(self, folders: Iterable[ObjectFolder]) -> None:
        """Do nothing: no file is left in them."""

    def has(self, topic: str) -> bool:
        return True  # nothing else can be in the place of a bucket, and an empty one has no folders to tell

    def take_over(self, topic: str, partition: str) -> ObjectFolder:
        path = f"{self._root}/{topic}/{partition}"
        stored, pending = last_log(path, self._names(path), self._suffix)
        for name in pending:
            self._files.rm_file(f"{path}/{name}")
        return ObjectFolder(path, stored)

    def store(self, folder: ObjectFolder, batch: Batch, pieces: Callable[[], Iterator[bytes]]) -> None:
        stored = folder.stored.at(batch)
        name = stored.range_name(batch, self._suffix)
        path, data = f"{folder.path}/{name}", b"".join(pieces())
        if stored.end is not None and batch.start_offset < stored.end:
            if name != folder.last or self._files.cat_file(path) != data:
                raise overlap(batch, stored.end, folder.path)
            return
        found = ranges_among(self._names(folder.path), self._suffix)
        # Uploaded by an attempt that failed afterwards:
        ours = StoredRange(stored.number, batch.start_offset, batch.next_offset)
        known = folder.stored.number, folder.stored.end or 0
        if others := [each for each in found if (each.number, each.end) > known and each != ours]:
            raise PartitionTakenError(
                f"another member took over {batch.partition}: it wrote the range {others[0].start}-{others[0].end} to "
                f"{folder.path}; nothing was stored."
            )
        self._take_note(folder, stored.note(batch))
        self._files.pipe_file(path, data)  # a prefix is not made: drivers would make a bucket that is missing
        folder.stored, folder.last, folder.pending = stored.with_batch(batch), name, None

    def _take_note(self, folder: ObjectFolder, note: str | None) -> None:
        """Let the folder have this note, and none that came to nothing."""
        former = folder.pending
        if former is not None and former != note:
            self._files.rm_file(f"{folder.path}/{former}")
        folder.pending = note
        if note is not None:
            self._files.pipe_file(f"{folder.path}/{note}", b"")

    def _names(self, folder: str) -> list[str]:
        try:
            found = self._files.ls(folder, detail=False)
        except FileNotFoundError:
            return []
        return [str(path).rpartition("/")[2] for path in found]
