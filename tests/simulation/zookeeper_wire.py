"""ZooKeeper's protocol from the server's side: requests read, replies packed, with `struct` alone.

Strategy: not aiozk's, so that the client's reading and writing meet something that was not made by the same hand, and
since packing through it costs more than all the rest of the simulated server.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from consumerd.base.ports import Check, Create, Delete, Operation, SetData

CREATE, DELETE, EXISTS, GET_DATA, SET_DATA, GET_CHILDREN, SYNC, PING = 1, 2, 3, 4, 5, 8, 9, 11
GET_CHILDREN2, CHECK, MULTI, CREATE2, AUTH, SET_WATCHES, CLOSE = 12, 13, 14, 15, 100, 101, -11
NAMES = {
    CREATE: "create",
    DELETE: "delete",
    EXISTS: "exists",
    GET_DATA: "getData",
    SET_DATA: "setData",
    GET_CHILDREN: "getChildren",
    SYNC: "sync",
    PING: "ping",
    GET_CHILDREN2: "getChildren2",
    MULTI: "multi",
    CREATE2: "create2",
    AUTH: "auth",
    SET_WATCHES: "setWatches",
    CLOSE: "closeSession",
}
WATCH_XID, PING_XID, AUTH_XID = -1, -2, -4

ZXID = struct.Struct("!q")
_INT = struct.Struct("!i")
_KIND = struct.Struct("!ii")
_BOOL = struct.Struct("!?")
_HEADER = struct.Struct("!iqi")
_STAT = struct.Struct("!qqqqiiiqiiq")
_CONNECT = struct.Struct("!iqiq")
_CONNECTED = struct.Struct("!iiq")
_OPERATION = struct.Struct("!i?i")
_EVENT = struct.Struct("!ii")
_EPHEMERAL = 1


class Reader:
    """Takes one value after the other from a request. Raises struct.error, ValueError for what is none."""

    def __init__(self, data: bytes, position: int = 0) -> None:
        self.data = data
        self.position = position

    def take(self, layout: struct.Struct) -> tuple[int, ...]:
        """The bytes that `layout` describes."""
        values = layout.unpack_from(self.data, self.position)
        self.position += layout.size
        return values

    def number(self) -> int:
        """An int."""
        return self.take(_INT)[0]

    def flag(self) -> bool:
        """A boolean."""
        return bool(self.take(_BOOL)[0])

    def buffer(self) -> bytes | None:
        """Bytes, or null."""
        size = self.number()
        if size < 0:
            return None
        if self.position + size > len(self.data):
            raise ValueError("the request is cut off")
        data = self.data[self.position : self.position + size]
        self.position += size
        return data

    def text(self) -> str:
        """A string."""
        return (self.buffer() or b"").decode()

    def texts(self) -> list[str]:
        """A vector of strings."""
        return [self.text() for _ in range(self.number())]

    def skip_acl(self) -> None:
        """A vector of ACL entries, which do not matter here."""
        for _ in range(self.number()):
            self.number()
            self.buffer()
            self.buffer()

    @property
    def at_end(self) -> bool:
        """Whether all was read."""
        return self.position >= len(self.data)


def kind_of(request: bytes) -> int:
    """The opcode of a request."""
    return _KIND.unpack_from(request)[1]  # type: ignore[no-any-return]


class ConnectRequest:
    """The handshake."""

    def __init__(self, frame: bytes) -> None:
        reader = Reader(frame)
        _, self.seen_zxid, self.timeout_ms, self.session = reader.take(_CONNECT)
        self.password = reader.buffer() or b""
        self.with_read_only = not reader.at_end


def read_operation(kind: int, reader: Reader) -> Operation:
    """The body of a create, delete, setData or check."""
    path = reader.text()
    if kind in (CREATE, CREATE2):
        data = reader.buffer()
        reader.skip_acl()
        flags = reader.number()
        if flags not in (0, _EPHEMERAL):
            raise ValueError(f"the simulated ZooKeeper does not know the flags {flags} of a create")
        return Create(path, data, ephemeral=flags == _EPHEMERAL)
    if kind == DELETE:
        return Delete(path, reader.number())
    if kind == SET_DATA:
        data = reader.buffer()
        return SetData(path, data, reader.number())  # type: ignore[arg-type]
    if kind == CHECK:
        return Check(path, reader.number())
    raise ValueError(f"the simulated ZooKeeper does not know the operation {kind}")


def read_multi(reader: Reader) -> list[tuple[int, Operation]]:
    """The operations of a multi with their kinds."""
    operations: list[tuple[int, Operation]] = []
    while True:
        kind, done, _ = reader.take(_OPERATION)
        if done:
            return operations
        operations.append((kind, read_operation(kind, reader)))


def buffer(data: bytes | None) -> bytes:
    """Bytes with their length."""
    return _INT.pack(-1) if data is None else _INT.pack(len(data)) + data


def frame(payload: bytes) -> bytes:
    """With the length in front."""
    return _INT.pack(len(payload)) + payload


def reply(xid: int, zxid: int, code: int, body: bytes = b"") -> bytes:
    """A framed reply; one with an error has no body."""
    return frame(_HEADER.pack(xid, zxid, code) + (b"" if code else body))


def event(change: int, path: str) -> bytes:
    """A framed watch event, of a connected session."""
    return frame(_HEADER.pack(WATCH_XID, -1, 0) + _EVENT.pack(change, 3) + buffer(path.encode()))


def connected(timeout_ms: int, session: int, password: bytes, *, with_read_only: bool) -> bytes:
    """The framed answer to a handshake; session 0 says that the one asked for is over."""
    answer = _CONNECTED.pack(0, timeout_ms, session) + buffer(password)
    return frame(answer + _BOOL.pack(False) if with_read_only else answer)


def stat(values: Sequence[int]) -> bytes:
    """A Stat."""
    return _STAT.pack(*values)


def children(names: Iterable[str]) -> bytes:
    """A vector of strings."""
    texts = [buffer(name.encode()) for name in names]
    return _INT.pack(len(texts)) + b"".join(texts)


def multi_done(results: Iterable[tuple[int, bytes]]) -> bytes:
    """The body of a multi's reply, of kinds and results."""
    parts = [_OPERATION.pack(kind, False, 0) + result for kind, result in results]
    return b"".join(parts) + _OPERATION.pack(-1, True, -1)


def multi_failed(count: int, index: int, code: int) -> bytes:
    """The body of a failed multi's reply: 0 before the culprit, "runtime inconsistency" after it."""
    codes = [code if number == index else 0 if number < index else -2 for number in range(count)]
    return b"".join(_OPERATION.pack(-1, False, each) + _INT.pack(each) for each in codes) + _OPERATION.pack(
        -1, True, -1
    )
