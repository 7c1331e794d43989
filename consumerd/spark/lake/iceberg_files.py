"""The files of metadata that pyiceberg writes on this machine, which it does not sync."""

from __future__ import annotations

from typing import Any

from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from consumerd.base.files import SystemFiles


class SyncedFileIO(PyArrowFileIO):
    """Files of this machine that are durable when they are closed."""

    def new_output(self, location: str) -> PyArrowFile:
        scheme, netloc, path = self.parse_location(location, self.properties)
        return _SyncedFile(location=location, path=path, fs=self.fs_by_scheme(scheme, netloc))


class _SyncedFile(PyArrowFile):
    def create(self, overwrite: bool = False) -> _SyncedStream:
        return _SyncedStream(super().create(overwrite), self._path)


class _SyncedStream:
    """pyiceberg's OutputStream: a file that is synced after it was closed."""

    def __init__(self, stream: Any, path: str) -> None:
        self._stream = stream
        self._path = path

    def write(self, data: bytes) -> int:
        return int(self._stream.write(data))

    def tell(self) -> int:
        return int(self._stream.tell())

    def close(self) -> None:
        if not self._stream.closed:
            self._stream.close()
            SystemFiles().sync_file(self._path)

    @property
    def closed(self) -> bool:
        return bool(self._stream.closed)

    def flush(self) -> None:
        self._stream.flush()

    def __enter__(self) -> _SyncedStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
