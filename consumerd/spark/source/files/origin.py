"""Partitions in the output of the `files` handler.

Strategy: every snapshot lists the directory again. A partition reaches from the start of its first range to the end of
its last one; landed ranges may be deleted from the front, as retention does. The ends of ranges are message boundaries
without any search, so batches and splits end there; only an offset in the options is searched for in a file.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from consumerd.base.errors import NotFoundError
from consumerd.base.partition import TopicPartition
from consumerd.spark.source.choice import PartitionChoice
from consumerd.spark.source.errors import FileReadError
from consumerd.spark.source.files.lines import ExpectedRange, read_rows
from consumerd.spark.source.files.ranges import boundary, files_splits, gaps, ranges, within
from consumerd.spark.source.logs import WithoutEpochs
from consumerd.spark.source.offsets import Key
from consumerd.spark.source.option_values import FilesLocation
from consumerd.spark.source.options import SourceOptions
from consumerd.spark.source.split import RangeFile, Split


class FilesOrigin(WithoutEpochs):
    """The chosen partitions of one directory. Raises what `ranges` raises."""

    def __init__(self, location: FilesLocation, options: SourceOptions) -> None:
        self._directory = location.directory
        self._choice = PartitionChoice(options.topics)
        self._topics: set[str] = set()

    def snapshot(self) -> Mapping[Key, FilesLog]:
        self._topics.clear()
        found = ranges(self._directory, self._wants)
        return {key: FilesLog(TopicPartition.parse(*key), tuple(files)) for key, files in found.items() if files}

    def missing(self, found: Mapping[Key, object]) -> str | None:
        return self._choice.missing(found, self._topics)

    def _wants(self, topic: str, name: str) -> bool:
        self._topics.add(topic)
        return self._choice.wants((topic, name))


@dataclass(frozen=True)
class FilesLog:
    """A snapshot of one partition: `files` by offset, at least one."""

    named: TopicPartition
    files: tuple[RangeFile, ...]

    topic_id = None

    @property
    def key(self) -> Key:
        return self.named.topic, self.named.name

    @property
    def broker(self) -> int:
        return self.named.broker

    @property
    def partition(self) -> int:
        return self.named.partition

    @property
    def start(self) -> int:
        return self.files[0].start

    @property
    def end(self) -> int:
        return self.files[-1].end

    def gaps(self) -> Sequence[tuple[int, int]]:
        return gaps(self.files)

    def message_at(self, offset: int) -> int | None:
        """As the log's; behind the last message that a range has, its end is not known, and neither is the answer."""
        found = within(self.files, offset, offset + 1)
        if not found or found[0].start == offset:
            return offset if boundary(self.files, offset) == offset or found else None
        (file,) = found
        last = None
        with _opened(file) as lines:
            for rows in read_rows(lines, ExpectedRange(*self.named, file.start, file.end)):
                for position in rows.offsets.to_pylist():
                    if position > offset:
                        return last
                    last = position
        return offset if last == offset else None

    def resumed(self, offset: int) -> int:
        """The names of the ranges are the boundaries, and an offset within one is the start of a message there."""
        return offset

    def limited(self, start: int, most: int) -> int:
        ahead = within(self.files, start, self.end)
        if not ahead or start + most >= self.end:
            return self.end
        reached = boundary(ahead, start + most)
        assert reached is not None
        before = [file.end for file in within(ahead, start, reached) if file.end <= start + most]
        return before[-1] if before else reached

    def before(self, time_ms: int) -> int:
        """The first range that was written then or later; a file is written after its messages."""
        position = self.end
        for file in reversed(self.files):
            if _modified(file) < time_ms:
                break
            position = file.start
        return position

    def splits(self, start: int, end: int, max_bytes: int) -> list[Split]:
        most = max_bytes or self.end - self.start
        return list(files_splits(self.named.topic, self.named.name, self.files, start, end, most))


@contextlib.contextmanager
def _opened(file: RangeFile) -> Iterator[BinaryIO]:
    try:
        with Path(file.path).open("rb", buffering=0) as opened:
            yield opened
    except FileNotFoundError:
        raise NotFoundError(f"{file.path} was deleted while the query was planned; start the query again") from None
    except OSError as error:
        raise FileReadError(
            f"cannot read {file.path}: {error.strerror or error}; make it readable for Spark's driver"
        ) from error


def _modified(file: RangeFile) -> float:
    """Milliseconds since 1970."""
    try:
        return os.stat(file.path).st_mtime_ns / 1e6  # noqa: PTH116 - one of very many
    except FileNotFoundError:
        raise NotFoundError(f"{file.path} was deleted while the query was planned; start the query again") from None
