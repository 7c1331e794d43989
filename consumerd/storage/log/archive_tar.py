"""The files in a tar, front to back: ustar, GNU and pax archives, nothing ever written to disk.

Strategy: a reader of our own, because the standard library's believes the sizes that headers of headers claim and, on
some of the supported Pythons, can be made to loop. Here every header is checked by its sum, headers of headers have a
limit, and every error is a DamagedArchiveError. Only regular files have bytes; links are not followed, and names are
only read, so that none of them is opened.

Sources: POSIX.1-2017, pax, "ustar Interchange Format" and "pax Extended Header"; GNU tar's manual, "Basic Tar Format".
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple, Protocol

from consumerd.storage.log.archive_items import ByteStream
from consumerd.storage.log.errors import DamagedArchiveError

_BLOCK = 512
_EMPTY = bytes(_BLOCK)
#: Bytes that a long name or a set of pax records may have. Real ones have a few hundred.
_MAX_EXTENDED = 1 << 20
#: Largest size of a file; a larger one is false.
_MAX_SIZE = 1 << 50
#: Bytes skipped at once.
_STEP = 1 << 20
_SPACES = b" " * 8
#: The prefix of the pax records of a sparse file.
_SPARSE = b"GNU.sparse."


class TarKind(Enum):
    """The kind of a member."""

    FILE = "file"
    LINK = "link"
    SPARSE = "sparse file"
    #: Directories, devices, extensions of other tars.
    OTHER = "other"


class TarMember(NamedTuple):
    """One member. `position` is that of its first byte in the tar, `modified` its time in seconds, 0 for none."""

    name: str
    size: int
    kind: TarKind
    position: int
    modified: int

    @property
    def is_unsafe(self) -> bool:
        """Whether the name would lead out of the folder it is unpacked in."""
        return ".." in self.name.split("/")


class SeekableStream(Protocol):
    """A stream that can skip bytes."""

    def read(self, size: int, /) -> bytes: ...

    def seek(self, position: int, /) -> int: ...


class MemberStream:
    """The bytes of one member. Invalid as soon as the next member is requested."""

    def __init__(self, tar: _Tar, size: int) -> None:
        self._tar = tar
        self.left = size

    def read(self, size: int, /) -> bytes:
        if not self.left or not size:
            return b""
        data = self._tar.read_some(min(size, self.left))
        self.left -= len(data)
        return data


def read_members(stream: ByteStream) -> Iterator[tuple[TarMember, MemberStream]]:
    """Yield the members of a tar with their bytes, which are skipped where they are not read.

    The stream is read to its very end: several tars in a row are one, and the checksum of a compressed one is
    checked. Raises DamagedArchiveError, also for a tar without an end mark: the rest of it is missing.
    """
    tar = _Tar(stream)
    for member in tar.members():
        data = MemberStream(tar, member.size if member.kind is TarKind.FILE else 0)
        yield member, data
        tar.skip_to(member.position + _blocks(member.size))


def list_members(stream: SeekableStream) -> list[TarMember]:
    """Return the members of a tar that can seek, without reading their content. Raises DamagedArchiveError."""
    tar = _Tar(stream)
    found = []
    for member in tar.members():
        found.append(member)
        tar.position = stream.seek(member.position + _blocks(member.size))
    return found


class _Tar:
    """The stream and its position."""

    def __init__(self, stream: ByteStream) -> None:
        self.stream = stream
        self.position = 0

    def read_some(self, size: int) -> bytes:
        data = self.stream.read(size)
        if not data:
            raise DamagedArchiveError(f"the tar is truncated at byte {self.position}")
        self.position += len(data)
        return data

    def read_exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            data += self.read_some(size - len(data))
        return data

    def skip_to(self, position: int) -> None:
        while self.position < position:
            self.read_some(min(_STEP, position - self.position))

    def header(self) -> bytes | None:
        """Return the next header; None at the end."""
        block, marked = _EMPTY, False
        while block == _EMPTY:
            first = self.stream.read(_BLOCK)
            if not first and marked:
                return None
            self.position += len(first)
            block = first + self.read_exactly(_BLOCK - len(first))
            marked = marked or block == _EMPTY
        return block

    def members(self) -> Iterator[TarMember]:
        """Yield the members; between two of them the caller moves to the end of the first."""
        common: dict[str, str] = {}
        own: dict[str, str] = {}
        while (header := self.header()) is not None:
            self._check_sum(header)
            kind = header[156:157]
            size = self._size(header[124:136])
            if kind in b"xgLK":
                self._extend(kind, size, common, own)
                continue
            records = common | own
            own = {}
            name = records.get("path") or _name(header)
            if "size" in records:
                size = self._size(records["size"].encode(), base=10)
            meaning = _kind(kind, name, records)
            if meaning in {TarKind.LINK, TarKind.OTHER} and kind in b"123456":
                size = 0  # the field is the size of the link's target, or has no meaning
            modified = _number(header[136:148]) or 0
            yield TarMember(name.lstrip("/").removeprefix("./"), size, meaning, self.position, modified)

    def _extend(self, kind: bytes, size: int, common: dict[str, str], own: dict[str, str]) -> None:
        """Read a header of headers: pax records, or GNU's long name or long name of a link."""
        if size > _MAX_EXTENDED:
            raise DamagedArchiveError(f"the tar has a header of {size} bytes at byte {self.position}")
        data = self.read_exactly(_blocks(size))[:size]
        if kind == b"L":
            own["path"] = _text(data.rstrip(b"\0"))
        elif kind == b"x":
            own.update(self._records(data))
        elif kind == b"g":
            common.update(self._records(data))

    def _records(self, data: bytes) -> Iterator[tuple[str, str]]:
        """Pax records: `length key=value` and a line end, the length counting itself."""
        at = 0
        while at < len(data):  # records that are not needed are dropped: there may be any number of them
            digits, _, _ = data[at : at + 20].partition(b" ")
            length = int(digits) if digits.isdigit() else 0
            record = data[at + len(digits) + 1 : at + length]
            key, equals, value = record.partition(b"=")
            if at + length > len(data) or not (equals and value.endswith(b"\n")):
                raise DamagedArchiveError(f"the tar has broken pax records before byte {self.position}")
            if key.startswith(_SPARSE):
                yield _SPARSE.decode(), ""
            elif key in (b"path", b"size"):
                yield key.decode(), _text(value[:-1])
            at += length

    def _check_sum(self, header: bytes) -> None:
        claimed = _number(header[148:156])
        summed = header[:148] + _SPACES + header[156:]
        # Some old tars summed signed bytes.
        if claimed not in {sum(summed), sum(byte - 256 if byte > 127 else byte for byte in summed)}:
            raise DamagedArchiveError(f"the tar has no valid header at byte {self.position - _BLOCK}")

    def _size(self, field: bytes, base: int = 8) -> int:
        size = _number(field, base)
        if size is None or size > _MAX_SIZE:
            raise DamagedArchiveError(f"the tar has a member of impossible size before byte {self.position}")
        return size


def _number(field: bytes, base: int = 8) -> int | None:
    """Read a number in digits or, with the top bit set, in binary (GNU); None for others and negative ones."""
    if field[:1] == b"\x80":
        return int.from_bytes(field[1:])
    digits = field.strip(b" \0") or b"0"
    if len(digits) > 20 or not digits.isdigit() or (base == 8 and max(digits) > ord("7")):
        return None
    return int(digits, base)


def _kind(kind: bytes, name: str, records: dict[str, str]) -> TarKind:
    if kind == b"S" or _SPARSE.decode() in records:
        return TarKind.SPARSE
    if kind in b"12":
        return TarKind.LINK
    if kind in (b"0", b"\0", b"7") and not name.endswith("/"):
        return TarKind.FILE
    return TarKind.OTHER


def _name(header: bytes) -> str:
    name = header[:100].partition(b"\0")[0]
    if header[257:263] == b"ustar\0" and (prefix := header[345:500].partition(b"\0")[0]):
        name = prefix + b"/" + name
    return _text(name)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")


def _blocks(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK
