"""The folders of an archive, wherever they are: on a disk, at a URL, in a tar.

Strategy: a folder is its path, the names in it, and a way to open its files. Files on a disk, at a URL and in a plain
tar can seek. A compressed tar is read once, from beginning to end: the small text files of brokers are kept, up to a
limit, and the ends of the segments are looked at as they pass. Links to folders are not followed, as in a search for
segments, and a file that is not a regular one is not opened.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from consumerd.base.errors import ConsumerdError, reason_of
from consumerd.storage.archives.errors import NoSourceError, ReadFailedError
from consumerd.storage.archives.findings import ArchiveFinding, ArchiveFindingKind
from consumerd.storage.archives.opening import opened_file, unpacked, unpacked_bytes
from consumerd.storage.archives.segment_ends import SegmentEnds, ends_of_stream
from consumerd.storage.archives.sources import (
    REMOTE_BLOCK,
    Packing,
    SegmentSource,
    is_url,
    kind_of,
    local_source,
    printable,
    reading,
    remote_source,
    remote_tree,
    unpacked_name,
)
from consumerd.storage.log.archive_items import FlawKind
from consumerd.storage.log.archive_names import INSIDE, segment_start
from consumerd.storage.log.archive_tar import SeekableStream, TarKind, TarMember, list_members, read_members
from consumerd.storage.log.errors import DamagedArchiveError

#: The text files that are kept of a compressed tar, the most bytes of one, and of all.
_KEPT: Final = frozenset({"leader-epoch-checkpoint", "partition.metadata", "meta.properties"})
_KEPT_FILE: Final = 1 << 20
_KEPT_BYTES: Final = 64 << 20


class ArchiveFiles(Protocol):
    """A way to files. Paths are those of sources, a tar's members behind `!/`. Each may raise OSError; all block."""

    def names(self, folder: str) -> list[str]:
        """The files in a folder."""
        ...

    def size(self, path: str) -> int | None:
        """The bytes of a regular file; None for another one."""
        ...

    def open(self, path: str) -> AbstractContextManager[SeekableStream]: ...

    def known_ends(self, path: str) -> SegmentEnds | None:
        """The ends of a segment that were looked at when its tar was read; None where it has to be opened."""
        return None


class ArchiveFolder(NamedTuple):
    """One folder."""

    path: str
    names: Collection[str]
    files: ArchiveFiles

    def file(self, name: str) -> str:
        """The path of a file in it."""
        return f"{self.path}/{name}"


class _LocalFiles(ArchiveFiles):
    """Files on a disk."""

    def names(self, folder: str) -> list[str]:
        return os.listdir(folder)  # noqa: PTH208 - names, as they are

    def size(self, path: str) -> int | None:
        status = os.stat(path)  # noqa: PTH116 - one of a million
        return status.st_size if stat.S_ISREG(status.st_mode) else None

    def open(self, path: str) -> AbstractContextManager[SeekableStream]:
        if not Path(path).is_file():  # opening a FIFO waits for a writer
            raise OSError(errno.EINVAL, "it is not a regular file")
        return Path(path).open("rb", buffering=0)


LOCAL_FILES: Final[ArchiveFiles] = _LocalFiles()


class RemoteFiles(ArchiveFiles):
    """Files of a file system of fsspec. `details`: what is known of them, by path; else it is asked for."""

    def __init__(self, files: Any, details: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        self._files = files
        self._details = details

    def _path(self, url: str) -> str:
        return str(self._files._strip_protocol(url))  # noqa: SLF001 - the only way, and what fsspec's own modules call

    def names(self, folder: str) -> list[str]:
        with _os_errors():
            found = self._files.ls(self._path(folder), detail=True)
            return [each["name"].rpartition("/")[2] for each in found if each.get("type") == "file"]

    def size(self, path: str) -> int | None:
        inside = self._path(path)
        with _os_errors():
            info = self._files.info(inside) if self._details is None else self._details[inside]
        size = info.get("size")
        return size if isinstance(size, int) and info.get("type", "file") == "file" else None

    @contextmanager
    def open(self, path: str) -> Iterator[SeekableStream]:
        inside = self._path(path)
        if self._details is not None and inside not in self._details:
            raise FileNotFoundError(errno.ENOENT, "there is no such file")
        with _os_errors(), self._files.open(inside, "rb", block_size=REMOTE_BLOCK) as file:
            yield file


class _Tar(ArchiveFiles):
    """The members of a tar, by the paths of its folders."""

    def __init__(self, source: SegmentSource) -> None:
        self.source = source
        self.members: dict[str, TarMember] = {}
        self._folders: defaultdict[str, list[str]] = defaultdict(list)

    def add(self, member: TarMember) -> str | None:
        """The path of a member; None for one that leads out of the tar, and for one that is there twice."""
        path = f"{self.source.place}{INSIDE}{member.name}"
        if member.is_unsafe or path in self.members or member.name.endswith("/"):
            return None
        self.members[path] = member
        folder, _, name = path.rpartition("/")
        self._folders[folder].append(name)
        return path

    def folders(self) -> Iterator[str]:
        yield from sorted(self._folders)

    def names(self, folder: str) -> list[str]:
        return self._folders.get(folder, [])

    def size(self, path: str) -> int | None:
        member = self.member(path)
        return member.size if member.kind is TarKind.FILE else None

    def member(self, path: str) -> TarMember:
        """Raises FileNotFoundError."""
        if path not in self.members:
            raise FileNotFoundError(errno.ENOENT, "there is no such file in the tar")
        return self.members[path]


class PlainTarFiles(_Tar):
    """The files in a tar that can seek. Raises DamagedArchiveError, OSError."""

    def __init__(self, source: SegmentSource) -> None:
        super().__init__(source)
        with _os_errors(), opened_file(source) as file:
            for member in list_members(file):
                self.add(member)

    @contextmanager
    def open(self, path: str) -> Iterator[SeekableStream]:
        member = self.member(path)
        if member.kind is not TarKind.FILE:
            raise OSError(errno.EINVAL, "it is not a regular file")
        with _os_errors(), opened_file(self.source) as file:
            yield _Window(file, member.position, member.size)


class PackedTarFiles(_Tar):
    """The files in a tar that is compressed, or damaged: it was read once. Raises ReadFailedError."""

    def __init__(self, source: SegmentSource) -> None:
        super().__init__(source)
        self.damage: str | None = None
        self._kept: dict[str, bytes] = {}
        self._room = _KEPT_BYTES
        self._ends: dict[str, SegmentEnds] = {}
        with unpacked_bytes(source) as stream:
            try:
                for member, data in read_members(stream):
                    if (path := self.add(member)) is not None and member.kind is TarKind.FILE:
                        self._look(path, member, data)
            except DamagedArchiveError as error:
                self.damage = str(error)

    def _look(self, path: str, member: TarMember, data: Any) -> None:
        name = path.rpartition("/")[2]
        kind, start = kind_of(name), segment_start(name)
        if kind is not None and start is not None:
            self._ends[path] = ends_of_stream(unpacked(data, kind[0]), printable(unpacked_name(name)), start)
        elif name in _KEPT and member.size <= min(_KEPT_FILE, self._room):
            self._room -= member.size
            self._kept[path] = b"".join(iter(lambda: data.read(_KEPT_FILE), b""))

    @contextmanager
    def open(self, path: str) -> Iterator[SeekableStream]:
        self.member(path)
        if path not in self._kept:
            raise OSError(errno.ESPIPE, "it is in a tar that cannot be read in any order")
        yield io.BytesIO(self._kept[path])

    def known_ends(self, path: str) -> SegmentEnds | None:
        return self._ends.get(path)


class _Window:
    """A part of a file, as a file."""

    def __init__(self, file: SeekableStream, begin: int, size: int) -> None:
        self._file = file
        self._begin = begin
        self._size = size
        self._at = 0
        file.seek(begin)

    def read(self, size: int, /) -> bytes:
        data = self._file.read(max(0, min(size, self._size - self._at)))
        self._at += len(data)
        return data

    def seek(self, position: int, /) -> int:
        self._file.seek(self._begin + position)
        self._at = position
        return position


@contextmanager
def _os_errors() -> Iterator[None]:
    """Each file system has errors of its own: they become OSError."""
    try:
        yield
    except (OSError, ConsumerdError, MemoryError):
        raise
    except Exception as error:
        raise OSError(errno.EIO, reason_of(error)) from error


def tar_files(source: SegmentSource) -> PlainTarFiles | PackedTarFiles:
    """The files in a tar; one that is compressed or damaged is read. Raises ReadFailedError, MissingExtraError."""
    if source.packing is Packing.NONE:
        with suppress(DamagedArchiveError), reading(source.name):
            return PlainTarFiles(source)
    return PackedTarFiles(source)


def find_folders(path: str) -> Iterator[ArchiveFolder | ArchiveFinding]:
    """The folders below a directory, in a tar, or at a URL of one of these, with those in tars below it. Blocks.

    Raises NoSourceError for anything else, ReadFailedError for a URL, MissingExtraError.
    """
    if is_url(path):
        yield from _remote_folders(path)
        return
    root = os.path.abspath(path)  # noqa: PTH100 - resolve() would follow links, and names are part of the output
    if Path(root).is_dir():
        yield from _local_folders(root)
    elif not Path(root).exists():
        raise NoSourceError(f"{path} does not exist; {_NAME}")
    elif _is_tar(root):
        yield from _folders_in(local_source(root))
    else:
        raise NoSourceError(f"{path} is not a directory; {_NAME}")


_NAME: Final = "name directories that hold segments, tars, or URLs of these"


def _is_tar(name: str) -> bool:
    return (kind_of(name) or (Packing.NONE, False))[1]


def _local_folders(root: str) -> Iterator[ArchiveFolder | ArchiveFinding]:
    refused: list[OSError] = []
    for folder, inside, names in os.walk(root, onerror=refused.append):
        inside.sort()
        yield ArchiveFolder(folder, frozenset(names), LOCAL_FILES)
        for name in sorted(filter(_is_tar, names)):
            tar = f"{folder}/{name}"
            try:
                source = local_source(tar)
            except OSError as error:
                yield _unreadable(tar, error.strerror or reason_of(error))
            else:
                yield from _folders_in(source)
    for refusal in refused:
        yield _unreadable(str(refusal.filename or root), refusal.strerror or str(refusal))


def _remote_folders(url: str) -> Iterator[ArchiveFolder | ArchiveFinding]:
    files, path, details = remote_tree(url)
    if path in details:
        if not _is_tar(path):
            raise NoSourceError(f"{url} is not a directory; {_NAME}")
        yield from _folders_in(remote_source(files, path, details[path]))
        return
    folders: defaultdict[str, set[str]] = defaultdict(set)
    for each in details:
        folder, _, name = each.rpartition("/")
        folders[folder].add(name)
    reader = RemoteFiles(files, details)
    for folder, names in sorted(folders.items()):
        yield ArchiveFolder(str(files.unstrip_protocol(folder)), names, reader)
        for name in sorted(filter(_is_tar, names)):
            tar = f"{folder}/{name}"
            yield from _folders_in(remote_source(files, tar, details[tar]))


def _folders_in(source: SegmentSource) -> Iterator[ArchiveFolder | ArchiveFinding]:
    """The folders in a tar. What cannot be read is a finding."""
    if source.is_special:
        problem = f"{source.name} is not a regular file; it was not read"
        yield ArchiveFinding(ArchiveFindingKind.NO_FILE, source.name, problem)
        return
    try:
        tar = tar_files(source)
    except ReadFailedError as error:
        yield ArchiveFinding(ArchiveFindingKind.UNREADABLE, source.name, str(error))
        return
    for folder in tar.folders():
        yield ArchiveFolder(folder, frozenset(tar.names(folder)), tar)
    if isinstance(tar, PackedTarFiles) and tar.damage is not None:
        problem = f"{source.name} is damaged, and what follows is missing: {tar.damage}"
        yield ArchiveFinding(FlawKind.ARCHIVE, source.name, problem)


def _unreadable(path: str, reason: str) -> ArchiveFinding:
    name = printable(path)
    return ArchiveFinding(ArchiveFindingKind.UNREADABLE, name, f"{name} cannot be read: {reason}")


def whole_tar(source: SegmentSource) -> SegmentSource:
    """The tar of which a source is a member."""
    return replace(source, part=None, packing=Packing.NONE, is_tar=True, size=None)
