"""The folder of a table's data files, on this machine or in an object store.

Strategy: files of this machine are synced before their names are, by `consumerd.base.files`. Stores are deltalake's, so
that data and commits go to the same place with the same options; what a store has accepted is durable.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa
from pyarrow.fs import FileType

from consumerd.base.files import SystemFiles

#: Bytes that are copied at once.
_COPIED: Final = 8 << 20
#: Requests to a store at the same time, and names that one thread asks for, one after the other.
_REQUESTS: Final = 16
_ASKED: Final = 8


class StoredFile(NamedTuple):
    """A durable file: size in bytes, time of its last change in milliseconds since 1970."""

    size: int
    modified: int


class DataFolder(Protocol):
    """Files by their names in the folder, which may have `/`. Raises OSError."""

    def create(self, name: str) -> pa.NativeFile:
        """A new file that takes bytes until it is closed. Missing folders are made."""
        ...

    def sync(self, name: str) -> StoredFile:
        """Make a closed file durable, and its name."""
        ...

    def open(self, name: str) -> pa.NativeFile:
        """The file for reading at any place. Raises FileNotFoundError."""
        ...

    def missing(self, names: Sequence[str]) -> list[str]:
        """Those that are not there."""
        ...

    def take(self, source: str, name: str) -> None:
        """Move a durable file to here from the folder `source`; does nothing where that was done."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file. A missing one is fine."""
        ...


def open_folder(path: str, storage_options: Mapping[str, str] | None = None) -> DataFolder:
    """The folder at a path of this machine, which may have the scheme `file`, or at a URL of a store."""
    local = local_path(path)
    return StoreFolder(path, storage_options) if local is None else LocalFolder(local)


def local_path(path: str) -> str | None:
    """The path on this machine; None for a URL of a store."""
    scheme, found, rest = path.partition("://")
    if not found:
        return path
    return f"/{rest.lstrip('/')}" if scheme == "file" else None


class LocalFolder:
    """A folder of this machine."""

    def __init__(self, path: str, files: SystemFiles | None = None) -> None:
        self._path = path
        self._files = files or SystemFiles()

    def create(self, name: str) -> pa.NativeFile:
        path = f"{self._path}/{name}"
        self._files.make_directory(os.path.dirname(path))  # noqa: PTH120 - names of tables are texts
        return pa.OSFile(path, "wb")

    def sync(self, name: str) -> StoredFile:
        path = f"{self._path}/{name}"
        self._files.sync_file(path)
        status = self._files.system.status(path)
        return StoredFile(status.st_size, status.st_mtime_ns // 1_000_000)

    def open(self, name: str) -> pa.NativeFile:
        return pa.OSFile(f"{self._path}/{name}", "rb")

    def missing(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if not self._files.exists(f"{self._path}/{name}")]

    def take(self, source: str, name: str) -> None:
        self._files.make_directory(self._path)
        if self._files.exists(f"{source}/{name}"):
            self._files.rename(f"{source}/{name}", f"{self._path}/{name}")
        self._files.sync_file(f"{self._path}/{name}")

    def remove(self, name: str) -> None:
        self._files.remove(f"{self._path}/{name}")


class StoreFolder:
    """A folder of an object store that deltalake knows."""

    def __init__(self, url: str, storage_options: Mapping[str, str] | None) -> None:
        from deltalake.fs import DeltaStorageHandler  # noqa: PLC0415 - only where the table has a URL

        self._options = dict(storage_options or {})
        self._handler: Any = DeltaStorageHandler(url, self._options)

    def create(self, name: str) -> pa.NativeFile:
        return self._handler.open_output_stream(name)

    def sync(self, name: str) -> StoredFile:
        with self.open(name) as file:
            return StoredFile(file.size(), time.time_ns() // 1_000_000)

    def open(self, name: str) -> pa.NativeFile:
        return self._handler.open_input_file(name)

    def missing(self, names: Sequence[str]) -> list[str]:
        """See DataFolder. One request each, since a listing would have all files of the table."""

        def kinds(part: Sequence[str]) -> list[FileType]:
            return [info.type for info in self._handler.get_file_info(list(part))]

        parts = [names[first : first + _ASKED] for first in range(0, len(names), _ASKED)]
        with ThreadPoolExecutor(_REQUESTS) as pool:
            found = [kind for part in pool.map(kinds, parts) for kind in part]
        return [name for name, kind in zip(names, found, strict=True) if kind != FileType.File]

    def take(self, source: str, name: str) -> None:
        """Copy the file, since objects cannot be renamed; also one that a failed copy has cut short."""
        old = StoreFolder(source, self._options).open(name)
        there = self._handler.get_file_info([name])[0]
        if there.type == FileType.File and there.size == old.size():
            return
        # deltalake's stream takes bytes alone, which it gets from a buffer that is larger than a piece.
        with old, pa.BufferedOutputStream(self.create(name), 2 * _COPIED) as new:
            while piece := old.read(_COPIED):
                new.write(piece)

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._handler.delete_file(name)
