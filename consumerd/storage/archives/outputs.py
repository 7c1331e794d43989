"""The files of an export: written under a temporary name, summed, synced, and only then renamed.

    <folder>/_manifest.json                                        finished files (consumerd.storage.archives.manifest)
    <folder>/.partial/                                             unfinished files
    <folder>/<topic>/<broker>-<partition>/<start>-<end>.ndjson     20 digits each; [start, end) in log offsets

Strategy: workers write into `.partial`; only the parent gives names, so that there is one place where two segments of
the same name meet. Before a file gets its name, a note of it is put into `.partial`, and stays until the manifest tells
of the file; before the manifest stops to tell of one, likewise, until it is removed. So the next run knows which files
a kill has left over, and never touches one that is not ours. The two names of our own begin with characters that
engines skip which read whole folders. The folder belongs to one export at a time, held by a lock that dies with its
process.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from isal import isal_zlib

from consumerd.base.files import SystemFiles, write_all
from consumerd.storage.archives.errors import OutputFolderError, WriteFailedError
from consumerd.storage.archives.extras import extra
from consumerd.storage.archives.options import ExportCompression, ExportFormat, ExportOptions
from consumerd.storage.log.archive_names import is_topic

MANIFEST = "_manifest.json"
PARTIAL = ".partial"
#: The suffix of the names of notes.
_NOTE = ".name"
#: The part of the name of a file after the topic.
_OUTPUT = re.compile(r"[0-9]{1,10}(?:-[0-9]{1,10})?/[0-9]{20}-[0-9]{20}(?:\.[a-z]+){1,2}")

#: Of isal's levels 0 to 3, as for messages.
_GZIP_LEVEL = 2
_ZSTD_LEVEL = 3


@contextlib.contextmanager
def refusals(path: Path) -> Iterator[None]:
    """Raise WriteFailedError that names the file for an OSError."""
    try:
        yield
    except OSError as error:
        raise WriteFailedError(f"{path} cannot be written: {error.strerror or error}") from error


def is_output(name: str) -> bool:
    """Whether `name` is a path that an export gives to its files (`t/0-0/<start>-<end>.ndjson`), within its folder.

    Names come from the manifest and the notes of a former run, which every writer to the folder can change.
    """
    topic, _, rest = name.partition("/")
    return is_topic(topic) and topic not in (MANIFEST, PARTIAL) and _OUTPUT.fullmatch(rest) is not None


class _Packer(Protocol):
    def compress(self, data: bytes, /) -> bytes: ...

    def flush(self) -> bytes: ...


def _packer(options: ExportOptions) -> _Packer | None:
    if options.format is ExportFormat.PARQUET or options.compression is ExportCompression.NONE:
        return None
    if options.compression is ExportCompression.ZSTD:
        library = extra("zstandard", "writing .zst files")
        packer: _Packer = library.ZstdCompressor(level=_ZSTD_LEVEL, write_checksum=True).compressobj()
        return packer
    return isal_zlib.compressobj(_GZIP_LEVEL, isal_zlib.DEFLATED, 16 + isal_zlib.MAX_WBITS)


class PartialFile:
    """An unfinished file, written from its beginning to its end. pyarrow takes it for a file, too."""

    closed = False

    def __init__(self, folder: Path, options: ExportOptions, files: SystemFiles) -> None:
        self.path = folder / PARTIAL / secrets.token_hex(8)
        self.size = 0
        self._sum = hashlib.sha256()
        self._files = files
        self._packer = _packer(options)
        with refusals(self.path), contextlib.ExitStack() as opened:
            self._descriptor = files.system.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            opened.callback(files.system.close, self._descriptor)
            self._opened = opened.pop_all()

    @property
    def sha256(self) -> str:
        """The checksum of the bytes written so far, as they are on the disk."""
        return self._sum.hexdigest()

    def write(self, data: bytes, /) -> int:
        self._put(data if self._packer is None else self._packer.compress(data))
        return len(data)

    def _put(self, data: bytes) -> None:
        self._sum.update(data)
        with refusals(self.path):
            self.size = write_all(self._files.system, self._descriptor, data, self.size)

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        """Does nothing: writes are not buffered."""

    def close(self) -> None:
        """Called by pyarrow. Does nothing: `seal` ends the file."""

    def seal(self) -> None:
        """Make the complete file durable, so that it can be renamed."""
        if self._packer is not None:
            self._put(self._packer.flush())
        with refusals(self.path):
            self._files.system.sync(self._descriptor)
            self._opened.close()

    def discard(self) -> None:
        """Delete the file."""
        with refusals(self.path):
            self._opened.close()
            self._files.remove(self.path)


class OutputFolder:
    """The folder of an export, as the parent sees it."""

    def __init__(self, path: Path, files: SystemFiles | None = None) -> None:
        self.path = path
        self._files = files or SystemFiles()
        self._notes: list[Path] = []

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Create and lock the folder. Raises OutputFolderError (in use, or with other files), WriteFailedError."""
        with refusals(self.path):
            self._files.make_directory(self.path)
            names = {entry.name for entry in self._files.entries(self.path)} - {PARTIAL}
        if names and MANIFEST not in names:
            raise OutputFolderError(f"{self.path} holds files but no {MANIFEST}; export into an empty folder")
        try:
            lock = self._files.lock(self.path)
        except BlockingIOError as error:
            raise OutputFolderError(f"another export is writing to {self.path}; wait until it has finished") from error
        except OSError as error:
            raise WriteFailedError(f"{self.path} cannot be locked: {error.strerror}") from error
        with lock:
            with refusals(self.path):
                self._files.make_directory(self.path / PARTIAL)
            yield

    def clean(self, listed: Callable[[str], bool]) -> None:
        """Remove the leftovers of a former run: unfinished files, and finished ones that are not in its manifest.

        Raises OutputFolderError for a note of a path that no export gives to a file, WriteFailedError.
        """
        with refusals(self.path):
            left = [self.path / PARTIAL / entry.name for entry in self._files.entries(self.path / PARTIAL)]
            for note in (path for path in left if path.suffix == _NOTE):
                text, end, _ = (self._files.read(note) or b"").partition(b"\n")
                if not end:
                    continue  # it came before any renaming
                name = text.decode("utf-8", "replace")
                if not is_output(name):
                    raise OutputFolderError(
                        f"{note} names {name[:80]!r}, which is not a file of an export: nothing is deleted; "
                        "find out who wrote it, or export into an empty folder"
                    )
                if not listed(name):
                    self._files.remove(self.path / name)
            for path in left:
                self._files.remove(path)

    def commit(self, partial: Path, name: str) -> None:
        """Give a sealed file its name, durably."""
        target = self.path / name
        note = self._write_note(name)
        with refusals(target):
            self._files.make_directory(target.parent)
            self._files.rename(partial, target)
            self._files.sync_directory(target.parent)
        self._notes.append(note)  # else it stays: the file may have its name, and no manifest will tell of it

    def note(self, name: str) -> None:
        """Note durably that the file of this name is to be removed unless the manifest names it."""
        self._notes.append(self._write_note(name))

    def _write_note(self, name: str) -> Path:
        note = self.path / PARTIAL / (secrets.token_hex(8) + _NOTE)
        with refusals(note):
            self._files.write(note, [name.encode() + b"\n"])
            self._files.sync_directory(note.parent)
        return note

    def forget(self) -> None:
        """Note that the manifest names all renamed files, and no others."""
        with refusals(self.path / PARTIAL):
            for note in self._notes:
                self._files.remove(note)
        self._notes.clear()

    def remove(self, name: str) -> None:
        """Remove a file that another one replaces."""
        with refusals(self.path / name):
            self._files.remove(self.path / name)

    def size(self, name: str) -> int | None:
        """The size of a finished file; None where there is none."""
        try:
            return self._files.size(self.path / name)
        except OSError as error:
            raise WriteFailedError(f"{self.path / name} cannot be read: {error.strerror}") from error

    def read_manifest(self) -> bytes | None:
        """Return the manifest of the last run; None without one."""
        with refusals(self.path / MANIFEST):
            return self._files.read(self.path / MANIFEST)

    def write_manifest(self, data: bytes) -> None:
        """Replace the manifest, durably and atomically."""
        with refusals(self.path / MANIFEST):
            self._files.replace(self.path / MANIFEST, data, partial=self.path / PARTIAL / secrets.token_hex(8))
