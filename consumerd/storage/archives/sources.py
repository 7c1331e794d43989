"""The sources of segments: files, folders, tars, compressed files and URLs, as a list of things to open.

Strategy: one `SegmentSource` is one file that a worker reads from beginning to end: a segment, packed or not, or a tar
with many. Only the members of a plain tar are sources of their own, because one can seek to them. A source knows
its size and a stamp, so that a file that changed after its export is recognised. The worker reads
everything else (a tar's members, the size of packed bytes).
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, Final

from consumerd.base.errors import ConsumerdError, reason_of
from consumerd.storage import DamagedArchiveError
from consumerd.storage.archives.errors import NoSourceError, ReadFailedError
from consumerd.storage.archives.extras import extra
from consumerd.storage.log.archive_names import INSIDE, LOG_SUFFIX, parse_segment_file
from consumerd.storage.log.archive_tar import SeekableStream, TarKind, TarMember, list_members
from consumerd.storage.log.segment import SUFFIX


class Packing(Enum):
    """The compression of a file."""

    NONE = ""
    GZIP = ".gz"
    ZSTD = ".zst"


#: Ends of names -> compression, and whether it is a tar.
_KINDS: dict[str, tuple[Packing, bool]] = {
    **{f".tar{packing.value}": (packing, True) for packing in Packing},
    ".tgz": (Packing.GZIP, True),
    ".tzst": (Packing.ZSTD, True),
    **{suffix + packing.value: (packing, False) for suffix in (SUFFIX, LOG_SUFFIX) for packing in Packing},
}


#: Bytes that a store is asked for at least: the default of most drivers is megabytes, for some headers.
REMOTE_BLOCK: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class SegmentSource:
    """One file to open. `path` is absolute, or a URL; `size` counts the bytes as they lie there, None if unknown."""

    path: str
    size: int | None
    #: The stamp of the file's state: its modification time, or the equivalent of its store.
    stamp: str
    packing: Packing = Packing.NONE
    is_tar: bool = False
    is_remote: bool = False
    #: The member of a plain tar that it is.
    part: TarMember | None = None
    #: Not a regular file (a FIFO, a device, a socket): opening it might wait for ever.
    is_special: bool = False
    #: Folders in a tar, as `place` of a member begins, that are not read: other copies are.
    left_out: frozenset[str] = frozenset()

    @property
    def place(self) -> str:
        """The path, with the member's name behind `!/`."""
        return self.path if self.part is None else f"{self.path}{INSIDE}{self.part.name}"

    @property
    def name(self) -> str:
        """The place, printable in any encoding."""
        return printable(self.place)

    @property
    def folder(self) -> str:
        """The folder of the place."""
        return self.place.rpartition("/")[0]

    def leaves_out(self, member: str) -> bool:
        """Whether a member of a tar is in a folder that is not read."""
        return bool(self.left_out) and f"{self.path}{INSIDE}{member}".rpartition("/")[0] in self.left_out


def kind_of(name: str) -> tuple[Packing, bool] | None:
    """The compression, and whether it is a tar, by the suffix of a name; None for a name that is not a source.

    Other files end with `.log`, too, so that one of 0.8 and later has to be named by its offset.
    """
    found = [ending for ending in _KINDS if name.endswith(ending)]
    if not found:
        return None
    ending = max(found, key=len)
    if ending.startswith(LOG_SUFFIX):
        file = name.rpartition("/")[2]
        if parse_segment_file(file[: len(file) - len(ending) + len(LOG_SUFFIX)]) is None:
            return None
    return _KINDS[ending]


def packing_of(name: str) -> Packing:
    """The compression by the suffix of a name."""
    return (kind_of(name) or (Packing.NONE, False))[0]


def printable(name: str) -> str:
    """A name of a file, in any encoding."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def unpacked_name(name: str) -> str:
    """The name of a file as it was before it was compressed."""
    return name.removesuffix(Packing.GZIP.value).removesuffix(Packing.ZSTD.value)


def is_url(path: str) -> bool:
    """Whether a path is for fsspec."""
    return "://" in path or "::" in path


def is_segment(name: str) -> bool:
    """Whether a tar's member of this name claims to be a segment."""
    kind = kind_of(name)
    return kind is not None and not kind[1]


def find_sources(paths: Sequence[str]) -> list[SegmentSource]:
    """All sources that files, folders (with all below them) and URLs lead to, sorted by name, each once.

    Raises NoSourceError where a path leads to nothing, ReadFailedError, MissingExtraError.
    """
    found: dict[str, SegmentSource] = {}
    for path in paths:
        sources = list(_remote(path) if is_url(path) else _local(path))
        if not sources:
            raise NoSourceError(
                f"{path} holds no segments; name {SUFFIX} files (0.7), {LOG_SUFFIX} files named by their offset (0.8 "
                "and later), tars, .gz or .zst of these, or a folder that has some"
            )
        found |= {source.name: source for source in sources}
    return [found[name] for name in sorted(found)]


def _local(path: str) -> Iterator[SegmentSource]:
    root = os.path.abspath(path)  # noqa: PTH100 - resolve() would follow links, and names are part of the output
    try:
        if Path(root).is_dir():
            for folder, _, files in os.walk(root, onerror=_refuse):
                for name in files:
                    if kind_of(name) is not None:
                        with suppress(FileNotFoundError):  # a running broker deleted it since the folder was listed
                            yield from _local_file(f"{folder}/{name}")
        elif not Path(root).exists():
            raise NoSourceError(f"{path} does not exist; name files, folders or URLs that hold segments")
        elif not Path(root).is_file():
            raise NoSourceError(f"{path} is not a regular file; name files, folders or URLs that hold segments")
        elif kind_of(root) is not None:
            yield from _local_file(root)
    except OSError as error:
        raise ReadFailedError(f"{error.filename or path} cannot be read: {error.strerror or error}") from error


def _refuse(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):  # a running broker deletes partitions, too
        raise error


def _local_file(path: str) -> Iterator[SegmentSource]:
    source = local_source(path)
    if source.is_tar and source.packing is Packing.NONE and not source.is_special:
        with Path(path).open("rb", buffering=0) as file:
            yield from _members(source, file)
    else:
        yield source


def local_source(path: str) -> SegmentSource:
    """The file at a path whose name is that of a source. Raises OSError."""
    packing, is_tar = kind_of(path) or (Packing.NONE, False)
    try:
        status = os.stat(path)  # noqa: PTH116 - one of a million
    except OSError:
        status = os.lstat(path)  # a link that leads nowhere, or in a circle
        if not stat.S_ISLNK(status.st_mode):
            raise
    if not stat.S_ISREG(status.st_mode):
        return SegmentSource(path, 0, _mtime(status), packing, is_tar, is_special=True)
    return SegmentSource(path, status.st_size, _mtime(status), packing, is_tar)


def _mtime(status: os.stat_result) -> str:
    """The stamp of a local file."""
    return f"mtime {status.st_mtime_ns}"


def _members(tar: SegmentSource, file: SeekableStream) -> list[SegmentSource]:
    """The segments in a plain tar; the tar where it is damaged, and has to be read to find out where."""
    try:
        members = [member for member in list_members(file) if is_segment(member.name)]
    except DamagedArchiveError:
        return [tar]
    names = {member.name for member in members}
    if len(names) < len(members) or any(member.kind is not TarKind.FILE or member.is_unsafe for member in members):
        return [tar]
    return [replace(tar, size=each.size, packing=packing_of(each.name), is_tar=False, part=each) for each in members]


def _remote(url: str) -> Iterator[SegmentSource]:
    files, _, details = remote_tree(url)
    for path, info in details.items():
        if kind_of(path) is None:
            continue
        source = remote_source(files, path, info)
        if not source.is_tar or source.packing is not Packing.NONE:
            yield source
            continue
        with reading(source.name), files.open(path, "rb", block_size=REMOTE_BLOCK) as file:
            found = _members(source, file)
        yield from found


@contextlib.contextmanager
def reading(name: str) -> Iterator[None]:
    """Turn the errors of a file system, each of which has classes of its own, into ReadFailedError."""
    try:
        yield
    except (ConsumerdError, MemoryError):
        raise
    except ImportError as error:
        raise ReadFailedError(f"{name} cannot be read: {error}") from error
    except Exception as error:
        reason = getattr(error, "strerror", None) or reason_of(error)
        raise ReadFailedError(f"{name} cannot be read: {reason}") from error


def remote_tree(url: str) -> tuple[Any, str, Mapping[str, Mapping[str, Any]]]:
    """The file system of a URL, the path in it, and the files below: path -> what the store says of one.

    Raises NoSourceError, ReadFailedError, MissingExtraError.
    """
    core = extra("fsspec.core", f"reading {url}")
    details: Mapping[str, Mapping[str, Any]]
    with reading(url):
        files, path = core.url_to_fs(url)
        if files.isdir(path):
            details = files.find(path, detail=True)
        elif files.exists(path):
            details = {path: files.info(path)}
        else:
            raise NoSourceError(f"{url} does not exist")
    return files, path, details


def remote_system(url: str) -> Any:
    """The file system of a URL that was found. Raises MissingExtraError."""
    return extra("fsspec.core", f"reading {url}").url_to_fs(url)[0]


def remote_source(files: Any, path: str, info: Mapping[str, Any]) -> SegmentSource:
    """A file at a URL."""
    size = info.get("size")
    packing, is_tar = kind_of(path) or (Packing.NONE, False)
    url = str(files.unstrip_protocol(path))
    known = size if isinstance(size, int) else None
    return SegmentSource(url, known, _remote_stamp(info), packing, is_tar, is_remote=True)


def _remote_stamp(info: Mapping[str, Any]) -> str:
    """The first header that changes with the content; the size is compared in any case."""
    for key in (
        "ETag",
        "etag",
        "md5Hash",
        "content_md5",
        "sha256",
        "mtime",
        "LastModified",
        "last_modified",
        "modified",
    ):
        if info.get(key):
            return f"{key} {info[key]}"
    return "unknown"
