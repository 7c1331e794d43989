"""The sources of segments: files, folders, tars, compressed files and URLs, as a list of things to open.

Strategy: one `SegmentSource` is one file that a worker reads from beginning to end: a segment, packed or not, or a tar
with many. Only the members of a plain local tar are sources of their own, because one can seek to them. A source knows
its size and a stamp, so that a file that changed after its export is recognised. The worker reads
everything else (a tar's members, the size of packed bytes).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from consumerd.base.errors import reason_of
from consumerd.storage import DamagedArchiveError
from consumerd.storage.archives.errors import NoSourceError, ReadFailedError
from consumerd.storage.archives.extras import extra
from consumerd.storage.log.archive_names import INSIDE, LOG_SUFFIX, parse_segment_file
from consumerd.storage.log.archive_tar import TarKind, list_members
from consumerd.storage.log.segment import SUFFIX


class Packing(Enum):
    """The compression of a file."""

    NONE = ""
    GZIP = ".gz"
    ZSTD = ".zst"


#: Ends of names -> compression, and whether it is a tar.
_KINDS: dict[str, tuple[Packing, bool]] = {
    ".tar": (Packing.NONE, True),
    ".tar.gz": (Packing.GZIP, True),
    ".tgz": (Packing.GZIP, True),
    ".tar.zst": (Packing.ZSTD, True),
    ".tzst": (Packing.ZSTD, True),
    SUFFIX: (Packing.NONE, False),
    SUFFIX + ".gz": (Packing.GZIP, False),
    SUFFIX + ".zst": (Packing.ZSTD, False),
    LOG_SUFFIX: (Packing.NONE, False),
    LOG_SUFFIX + ".gz": (Packing.GZIP, False),
    LOG_SUFFIX + ".zst": (Packing.ZSTD, False),
}


class TarPart(NamedTuple):
    """A member of a plain local tar: where its bytes are."""

    name: str
    position: int
    size: int


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
    part: TarPart | None = None
    #: Not a regular file (a FIFO, a device, a socket): opening it might wait for ever.
    is_special: bool = False

    @property
    def name(self) -> str:
        """The path, printable in any encoding, with the member's name behind `!/`."""
        path = self.path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
        return path if self.part is None else f"{path}{INSIDE}{self.part.name}"


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
        sources = list(_remote(path) if "://" in path or "::" in path else _local(path))
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
                    if (kind := kind_of(name)) is not None:
                        yield from _local_file(f"{folder}/{name}", kind)
        elif not Path(root).exists():
            raise NoSourceError(f"{path} does not exist; name files, folders or URLs that hold segments")
        elif not Path(root).is_file():
            raise NoSourceError(f"{path} is not a regular file; name files, folders or URLs that hold segments")
        elif (kind := kind_of(root)) is not None:
            yield from _local_file(root, kind)
    except OSError as error:
        raise ReadFailedError(f"{error.filename or path} cannot be read: {error.strerror or error}") from error


def _refuse(error: OSError) -> None:
    raise error


def _local_file(path: str, kind: tuple[Packing, bool]) -> Iterator[SegmentSource]:
    status = os.stat(path)  # noqa: PTH116 - one of a million
    packing, is_tar = kind
    if not stat.S_ISREG(status.st_mode):
        yield SegmentSource(path, 0, _mtime(status), packing, is_tar, is_special=True)
        return
    source = SegmentSource(path, status.st_size, _mtime(status), packing, is_tar)
    parts = _parts(source) if is_tar and packing is Packing.NONE else None
    if parts is None:
        yield source
        return
    for part in parts:
        packing, is_tar = kind_of(part.name) or kind
        yield replace(source, size=part.size, packing=packing, is_tar=is_tar, part=part)


def _mtime(status: os.stat_result) -> str:
    """The stamp of a local file."""
    return f"mtime {status.st_mtime_ns}"


def _parts(tar: SegmentSource) -> list[TarPart] | None:
    """The segments in a plain tar; None where it is damaged, and has to be read to find out where."""
    try:
        with Path(tar.path).open("rb", buffering=0) as file:
            members = [member for member in list_members(file) if is_segment(member.name)]
    except DamagedArchiveError:
        return None
    names = {member.name for member in members}
    if len(names) < len(members) or any(member.kind is not TarKind.FILE or member.is_unsafe for member in members):
        return None
    return [TarPart(member.name, member.position, member.size) for member in members]


def _remote(url: str) -> Iterator[SegmentSource]:
    core = extra("fsspec.core", f"reading {url}")
    try:
        files, path = core.url_to_fs(url)
        details: Mapping[str, Mapping[str, Any]]
        if files.isdir(path):
            details = files.find(path, detail=True)
        elif files.exists(path):
            details = {path: files.info(path)}
        else:
            raise NoSourceError(f"{url} does not exist")
        found = list(_remote_files(files, details))
    except (NoSourceError, MemoryError):
        raise
    except ImportError as error:
        raise ReadFailedError(f"{url} cannot be read: {error}") from error
    except Exception as error:  # each file system has errors of its own
        raise ReadFailedError(f"{url} cannot be read: {reason_of(error)}") from error
    yield from found


def _remote_files(files: Any, details: Mapping[str, Mapping[str, Any]]) -> Iterable[SegmentSource]:
    for path, info in details.items():
        if (kind := kind_of(path)) is not None:
            size = info.get("size")
            yield SegmentSource(
                str(files.unstrip_protocol(path)),
                size if isinstance(size, int) else None,
                _remote_stamp(info),
                *kind,
                is_remote=True,
            )


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
