"""The ranges of offsets that the `files` handler has written to a directory, and the splits that read them.

    <directory>/<topic>/<broker>-<partition>/<start>-<end>.ndjson        20 digits each; [start, end) in log offsets

Strategy: planning needs nothing but the names, and no file is opened or measured: the extent of a range in the log
stands for its size. The handler names a file only when it is complete and synced, so listed files can be read. Anything
with another name is not part of the output: writers' directories (`.writer-*`, `.fenced-*`), notes, other directories.

Ranges of one partition never overlap, as the handler ensures; if they do, something else has written files, and it is
unknown which one is right. A stretch between two ranges is a gap of the log: compressed messages without content,
retention, skipped corruption.

The ranges are small (a batch each), so a split takes as many as fit. It never cuts one, unless the requested offsets
do.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Final

from consumerd.base.errors import ConfigError, CorruptDataError, NotFoundError
from consumerd.base.partition import TopicPartition
from consumerd.spark.source.split import FilesSplit, RangeFile
from consumerd.wire.errors import InvalidTopicError
from consumerd.wire.v07 import validate_topic


def files_splits(
    topic: str, broker_partition: str, files: Sequence[RangeFile], start: int, end: int, max_bytes: int
) -> Iterator[FilesSplit]:
    """Splits for [start, end) of one partition; together they hold each message of it once.

    `files`: what `ranges` lists for the partition. `max_bytes`: of the log, per split; a range that is larger is a
    split of its own.
    """
    _, broker, partition = TopicPartition.parse(topic, broker_partition)
    group: list[RangeFile] = []
    for file in within(files, start, end):
        if group and file.end - group[0].start > max_bytes:
            yield _split(topic, broker, partition, start, end, group)
            group = []
        group.append(file)
    if group:
        yield _split(topic, broker, partition, start, end, group)


def _split(topic: str, broker: int, partition: int, start: int, end: int, group: list[RangeFile]) -> FilesSplit:
    low, high = max(start, group[0].start), min(end, group[-1].end)
    return FilesSplit(topic, broker, partition, low, high, tuple(group))


_NAME: Final = re.compile(r"([0-9]{20})-([0-9]{20})\.ndjson")
_OFFSETS_END: Final = 1 << 63


class OverlappingRangesError(CorruptDataError):
    """Two files claim the same part of a partition's log."""


def ranges(
    directory: str, wanted: Callable[[str, str], bool] = lambda *_: True
) -> dict[tuple[str, str], list[RangeFile]]:
    """The ranges of every (topic, broker-partition) below `directory` that is selected, by offset.

    Raises NotFoundError for a directory that does not exist, ConfigError for one that cannot be read, and
    OverlappingRangesError.
    """
    try:
        found = {
            (topic.name, folder.name): _ranges_in(folder.path)
            for topic in _folders(directory)
            if _is_topic(topic.name)
            for folder in _folders(topic.path)
            if _is_partition(topic.name, folder.name) and wanted(topic.name, folder.name)
        }
    except FileNotFoundError as error:
        raise NotFoundError(
            f"the directory {error.filename or directory} does not exist; files = names the directory of a `files` "
            "handler"
        ) from error
    except OSError as error:
        raise ConfigError(f"{error.filename or directory} cannot be listed: {error.strerror or error}") from error
    return dict(sorted(found.items()))


def gaps(files: Sequence[RangeFile]) -> list[tuple[int, int]]:
    """Return the gaps between the ranges of one partition, as [start, end) in log offsets."""
    return [(one.end, other.start) for one, other in pairwise(files) if one.end < other.start]


def within(files: Sequence[RangeFile], start: int, end: int) -> list[RangeFile]:
    """The files that hold some of [start, end), in order; a range of nothing but its end is none of them."""
    first = bisect_right(files, start, key=_end)
    last = bisect_left(files, end, key=_start)
    return list(files[first:last])


def boundary(files: Sequence[RangeFile], wanted: int) -> int | None:
    """The first end of a range that is not before `wanted`; the last one where there is none, None without files."""
    if not files:
        return None
    found = bisect_left(files, wanted, key=_end)
    return files[min(found, len(files) - 1)].end


def _start(file: RangeFile) -> int:
    return file.start


def _end(file: RangeFile) -> int:
    return file.end


def _folders(directory: str) -> Iterator[os.DirEntry[str]]:
    with os.scandir(directory) as entries:
        yield from (entry for entry in entries if not entry.name.startswith(".") and entry.is_dir())


def _is_topic(name: str) -> bool:
    try:
        validate_topic(name)
    except InvalidTopicError:
        return False
    return True


def _is_partition(topic: str, name: str) -> bool:
    try:
        TopicPartition.parse(topic, name)
    except ValueError:
        return False
    return True


def _ranges_in(folder: str) -> list[RangeFile]:
    found = sorted(
        RangeFile(start, end, f"{folder}/{match[0]}")
        for match in map(_NAME.fullmatch, os.listdir(folder))  # noqa: PTH208 - there may be a million
        if match is not None and (start := int(match[1])) < (end := int(match[2])) < _OFFSETS_END
    )
    for one, other in pairwise(found):
        if other.start < one.end:
            raise OverlappingRangesError(
                f"{one.path} and {other.path} hold the same part of the log; the topic was created again or files were "
                "copied together: move one of the two away"
            )
    return found
