"""The requests that a member sends most, packed and read by `struct` directly: get, exists, children, set.

Strategy: aiozk builds a `struct` format for each request, and a chain of objects for each reply, which costs more than
sending and receiving them. Here a request packs itself (`serialize`, without the xid) and reads its own reply
(`read`, into the values that callers need). Rare requests remain aiozk's. The bytes are those of aiozk
(`tests/property/test_zk_requests.py`).

Replies are hostile: `read` raises struct.error, ValueError (UnicodeDecodeError too) for an invalid reply.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import ClassVar

from consumerd.base.ports import NodeStat

_INT = struct.Struct("!i")
_KIND = struct.Struct("!ii")  # opcode, length of the path
#: Fields of a Stat: czxid, mzxid, mtime, version, ephemeralOwner, numChildren; skipped: ctime, cversion, aversion,
#: dataLength, pzxid (zookeeper.jute).
_STAT = struct.Struct("!qq8xqi8xq4xi8x")


@dataclass(slots=True)
class _NodeRead:
    """`path` is absolute; `watch` sets one."""

    path: str
    watch: bool

    opcode: ClassVar[int]
    special_xid: ClassVar = None

    def serialize(self) -> bytes:
        """Return the request without its xid."""
        return _of_path(self.opcode, self.path) + (b"\1" if self.watch else b"\0")


class GetDataRequest(_NodeRead):
    """Data and stat of a node; `path` is absolute."""

    __slots__ = ()
    opcode: ClassVar = 4

    @staticmethod
    def read(frame: bytes, offset: int) -> tuple[bytes | None, NodeStat]:
        """Return data (None: null) and stat, of the reply that begins at `offset`."""
        data, offset = read_buffer(frame, offset)
        return data, _read_stat(frame, offset)


class ExistsRequest(_NodeRead):
    """The stat of a node; `path` is absolute."""

    __slots__ = ()
    opcode: ClassVar = 3

    @staticmethod
    def read(frame: bytes, offset: int) -> NodeStat:
        """Return the stat, of the reply that begins at `offset`."""
        return _read_stat(frame, offset)


class GetChildrenRequest(_NodeRead):
    """The names below a node (getChildren2, servers from 3.3); `path` is absolute."""

    __slots__ = ()
    opcode: ClassVar = 12

    @staticmethod
    def read(frame: bytes, offset: int) -> list[str | None]:
        """Return the names in the reply's order (None: null), of the reply that begins at `offset`."""
        (count,) = _INT.unpack_from(frame, offset)
        offset += _INT.size
        names = []
        for _ in range(count):
            name, offset = read_buffer(frame, offset)
            names.append(None if name is None else name.decode())
        _read_stat(frame, offset)
        return names


@dataclass(slots=True)
class SetDataRequest:
    """Overwrite a node's data; `path` is absolute, `version` -1 for any."""

    path: str
    data: bytes
    version: int

    opcode: ClassVar = 5
    special_xid: ClassVar = None

    def serialize(self) -> bytes:
        """Return the request without its xid."""
        return _of_path(5, self.path) + _INT.pack(len(self.data)) + self.data + _INT.pack(self.version)

    @staticmethod
    def read(frame: bytes, offset: int) -> NodeStat:
        """Return the new stat, of the reply that begins at `offset`."""
        return _read_stat(frame, offset)


def _of_path(opcode: int, path: str) -> bytes:
    encoded = path.encode()
    return _KIND.pack(opcode, len(encoded)) + encoded


def read_buffer(frame: bytes, offset: int) -> tuple[bytes | None, int]:
    """The buffer at `offset` (None: null), and the offset after it. Raises struct.error, ValueError."""
    (length,) = _INT.unpack_from(frame, offset)
    offset += _INT.size
    if length == -1:
        return None, offset
    end = offset + length
    if not offset <= end <= len(frame):
        raise ValueError(f"a buffer of {length} bytes in a reply of {len(frame)}")
    return frame[offset:end], end


def _read_stat(frame: bytes, offset: int) -> NodeStat:
    created_zxid, modified_zxid, modified, version, owner, children = _STAT.unpack_from(frame, offset)
    return NodeStat(version, owner, children, created_zxid, modified, modified_zxid)
