"""Opening the place of a split: which reader is for which file, URL or broker.

Strategy: the one table of that decision, for executors that read and for planners that look for boundaries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumerd.spark.source.v07.broker_log import DEFAULT_FETCH_SIZE, BrokerLog
from consumerd.spark.source.v07.client import DEFAULT_TIMEOUT
from consumerd.spark.source.v07.packed_file import SUFFIX, PackedFile
from consumerd.spark.source.v07.remote_file import RemoteFile, is_remote
from consumerd.spark.source.v07.segment_file import LocalFile
from consumerd.spark.source.v07.split import BrokerRange, FileRange

if TYPE_CHECKING:
    from consumerd.spark.source.v07.segment_file import Place


def open_place(
    place: FileRange | BrokerRange,
    topic: str,
    partition: int,
    *,
    fetch_size: int = DEFAULT_FETCH_SIZE,
    timeout: float = DEFAULT_TIMEOUT,
) -> Place:
    """The open place, to be used as a context manager.

    Raises FileNotFoundError for a file that is not there, PlaceError, BrokerReadError.
    """
    if isinstance(place, BrokerRange):
        return BrokerLog(place, topic, partition, fetch_size=fetch_size, timeout=timeout)
    if not place.path.endswith(SUFFIX):
        return open_file(place.path, place.segment_start)
    return PackedFile(open_file(place.path, 0), place.segment_start)


def open_file(path: str, start: int) -> Place:
    """A file as it lies there, its first byte at offset `start`. Raises FileNotFoundError, PlaceError."""
    return RemoteFile(path, start) if is_remote(path) else LocalFile(path, start)
