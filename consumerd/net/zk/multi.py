"""Multis: several operations that ZooKeeper carries out all or not at all (opcode 14, servers from 3.4).

Strategy: the operations are packed one by one into a join, since aiozk builds one `struct` format of the whole
multi, which costs more than the round trip. Of the reply only the error codes matter: results of operations that
succeeded are skipped by their known sizes. When one operation fails, the server answers "rolled back" (0) for those
before it and "runtime inconsistency" (-2) for those after it, so the first other code is that of the failed operation.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from consumerd.base.ports import Check, Create, Delete, Operation, SetData
from consumerd.net.zk.errors import BadReply

_INT = struct.Struct("!i")
_HEADER = struct.Struct("!i?i")  # type, done, error
_OPERATION = struct.Struct("!i?ii")  # the same, and the length of the path
_MULTI = 14
_STAT_SIZE = 68
_CREATE, _DELETE, _SET_DATA, _CHECK, _CREATE2, _ERROR = 1, 2, 5, 13, 15, -1
_END = _HEADER.pack(-1, True, -1)
_EPHEMERAL = 1


def _buffer(data: bytes | None) -> bytes:
    return _INT.pack(-1) if data is None else _INT.pack(len(data)) + data


def encode_operations(operations: Iterable[Operation], full: Callable[[str], str], acl: Iterable[Any]) -> bytes:
    """Return the body of a multi request; `full` makes a path absolute, `acl` is for created nodes."""
    packed_acl: bytes | None = None
    parts: list[bytes] = []
    for operation in operations:
        path = full(operation.path).encode()
        match operation:
            case Check(_, version):
                parts += _OPERATION.pack(_CHECK, False, -1, len(path)), path, _INT.pack(version)
            case SetData(_, data, version):
                parts += _OPERATION.pack(_SET_DATA, False, -1, len(path)), path, _buffer(data), _INT.pack(version)
            case Create(_, data, ephemeral):
                if packed_acl is None:
                    packed_acl = b"".join(_pack_acl(acl))
                flags = _INT.pack(_EPHEMERAL if ephemeral else 0)
                parts += _OPERATION.pack(_CREATE, False, -1, len(path)), path, _buffer(data), packed_acl, flags
            case Delete(_, version):
                parts += _OPERATION.pack(_DELETE, False, -1, len(path)), path, _INT.pack(version)
    parts.append(_END)
    return b"".join(parts)


def _pack_acl(acl: Iterable[Any]) -> Iterable[bytes]:
    entries = list(acl)
    yield _INT.pack(len(entries))
    for entry in entries:
        yield _INT.pack(entry.perms) + _buffer(entry.id.scheme.encode()) + _buffer(entry.id.id.encode())


def first_failure(payload: bytes, offset: int = 0) -> tuple[int, int] | None:
    """Return index and error code of the operation that failed the multi whose reply begins at `offset`, or None.

    Raises BadReply for bytes that are not a multi's reply.
    """
    index = 0
    failure = None
    try:
        while True:
            kind, done, _ = _HEADER.unpack_from(payload, offset)
            offset += _HEADER.size
            if done:
                return failure
            if kind == _ERROR:
                (code,) = _INT.unpack_from(payload, offset)
                offset += _INT.size
                if code != 0 and failure is None:
                    failure = (index, code)
            else:
                offset = _skip_result(kind, payload, offset)
            index += 1
    except struct.error as error:
        raise BadReply("ZooKeeper's reply to a multi is truncated") from error


def _skip_result(kind: int, payload: bytes, offset: int) -> int:
    if kind in (_CREATE, _CREATE2):
        (length,) = _INT.unpack_from(payload, offset)
        if length < 0:
            raise BadReply("ZooKeeper's reply to a multi holds a created node without a path")
        offset += _INT.size + length
    if kind in (_SET_DATA, _CREATE2):
        return offset + _STAT_SIZE
    if kind in (_CREATE, _DELETE, _CHECK):
        return offset
    raise BadReply(f"ZooKeeper's reply to a multi holds a result of unknown type {kind}")


@dataclass(slots=True)
class MultiRequest:
    """A multi whose body is packed already. Its answer is `first_failure`."""

    body: bytes

    opcode: ClassVar = _MULTI
    special_xid: ClassVar = None
    read = staticmethod(first_failure)

    def serialize(self) -> bytes:
        """Return the request without its xid."""
        return _INT.pack(_MULTI) + self.body
