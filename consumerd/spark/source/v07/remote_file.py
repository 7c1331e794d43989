"""Segment files behind URLs, by fsspec, which is imported when the first one is read.

Strategy: ranges by position and nothing else: no file object that reads ahead or remembers. One range is one request
to the store, so ranges are large. Each file system has errors of its own; all become one declared error.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final, Self

from consumerd.errors import ConsumerdError
from consumerd.spark.source.errors import FileReadError

if TYPE_CHECKING:
    from types import TracebackType

#: Marks a path as one for fsspec: `s3://bucket/...`, `zip://...::https://...`.
_MARKS: Final = ("://", "::")


def is_remote(path: str) -> bool:
    """Whether a path is a URL."""
    return any(mark in path for mark in _MARKS)


class RemoteFile:
    """A plain segment file behind a URL. Raises FileReadError; FileNotFoundError only where there is no such file."""

    window = 8 << 20

    def __init__(self, url: str, segment_start: int) -> None:
        self._url = url
        self._start = segment_start
        try:
            core: Any = importlib.import_module("fsspec.core")
        except ImportError as error:
            raise FileReadError(f"reading {url} requires the package fsspec; install it on every executor") from error
        with _declared(url):
            self._files, self._path = core.url_to_fs(url)
            #: None where the store does not tell.
            self._size: int | None = self._files.info(self._path).get("size")

    def fetch(self, offset: int, size: int) -> bytes:
        position = offset - self._start
        if self._size is not None:
            # Some stores refuse ranges beyond the end.
            size = min(size, self._size - position)
        if size <= 0:
            return b""
        with _declared(self._url):
            data: bytes = self._files.cat_file(self._path, start=position, end=position + size)
        if len(data) > size:
            raise FileReadError(
                f"cannot read ranges of {self._url}: its server ignores range requests; copy the file elsewhere"
            )
        return data

    def next_available(self, offset: int) -> int | None:
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass  # nothing is open between ranges


class _declared:  # noqa: N801 - reads as a verb
    """Turns whatever a file system raises into a FileReadError; FileNotFoundError stays."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception) and not isinstance(error, (FileNotFoundError, ConsumerdError)):
            raise FileReadError(
                f"cannot read {self._url}: {type(error).__name__}: {error}; make it readable for the executors"
            ) from error
