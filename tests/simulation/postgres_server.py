"""A PostgreSQL server at the level of its wire protocol: the two tables of the sink `postgres`, transactions and locks.

Strategy: the product's sink and asyncpg run unchanged, over simulated connections. The server reads the messages of
protocol 3.0 and knows the statements of the sink and of asyncpg by their text; any other is an error of the test. It
works on one message of a connection at a time, and each statement is a step: `watcher` is called before it, and again
when it is done and before its answer is sent (`COMMIT` and `COMMIT done`), and may end a process, a connection or the
server there, or let the statement fail (`fail`).

The semantics are those of READ COMMITTED. A transaction sees its own changes and what others have committed; a locked
row, or the advisory lock, makes others wait in their order until the transaction ends. A crash forgets what was not
committed. The backend of a dead client works off what it has received before it sees the end of the connection; the one
of a client that is stopped or cut off keeps its transaction and locks until `idle_in_transaction_session_timeout` or
`statement_timeout`. The table of messages has no primary key here, so that a row that is stored twice shows.
"""

from __future__ import annotations

import re
import struct
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any, ClassVar, Final, NamedTuple

from tests.simulation.kernel import Event, Kernel, SimulationError
from tests.simulation.network import Line, Link, Network

#: Seconds that a statement takes, and a commit, which is synced.
_STATEMENT, _COMMIT = 0.0003, 0.002
_CANCEL_REQUEST: Final = 80877102
#: Object ids of types.
_BOOL, _INT8, _INT4, _TEXT, _BYTEA = 16, 20, 23, 25, 17
_FORMATS: Final = {_BOOL: ">?", _INT8: ">q", _INT4: ">i"}
_PLACE: Final = (_TEXT, _TEXT, _INT4, _INT4)
_POSITION: Final = (("epoch", _INT8), ("next_offset", _INT8), ("topic_id", _TEXT), ("leader_epoch", _INT4))
_MESSAGE: Final = (
    ("topic", _TEXT), ("broker", _INT4), ("partition", _INT4), ("offset", _INT8), ("index", _INT4), ("key", _BYTEA),
    ("timestamp", _INT8), ("payload", _BYTEA), ("topic_id", _TEXT),
)  # fmt: skip
#: What a client's statement fails with.
CANCELED, ABORTED, IDLE, TIMED_OUT = "57014", "25P02", "25P03", "57014"


class Position(NamedTuple):
    """A row of the table of positions."""

    epoch: int
    next_offset: int | None
    topic_id: str | None = None
    leader_epoch: int | None = None


class _Statement(NamedTuple):
    """A prepared statement."""

    name: str
    text: str
    parameters: tuple[int, ...]
    columns: tuple[tuple[str, int], ...]


class _ServerError(Exception):
    """A statement fails with an SQLSTATE."""


class _Locked(Exception):  # noqa: N818 - not an error of the statement
    """A statement has to wait for another transaction, and is begun again after it."""

    def __init__(self, lock: Hashable) -> None:
        super().__init__(lock)
        self.lock = lock


class SimulatedPostgres:
    """One server. `slowness`: the factor by which statements take longer than usual."""

    host, port = "database", 5432

    def __init__(self, kernel: Kernel, network: Network, line: Line) -> None:
        self.kernel = kernel
        self._network = network
        self._line = line
        self.slowness = 1.0
        self.watcher: Callable[[Session, str], None] = lambda session, step: None
        #: What is committed.
        self.positions: dict[tuple[Any, ...], Position] = {}
        self.rows: list[tuple[Any, ...]] = []
        self.has_tables = False
        self.locks: dict[Hashable, Session] = {}
        self.waiting: deque[Session] = deque()
        self.sessions: dict[Session, None] = {}
        self.commits = 0
        self._pids = 0
        self.start()

    @property
    def dsn(self) -> str:
        """For asyncpg."""
        return f"postgresql://consumerd:secret@{self.host}:{self.port}/events?sslmode=disable"

    def start(self) -> None:
        """Take connections."""
        self._network.listen(self.host, self.port, self._accept, self._line)

    def crash(self) -> None:
        """Forget transactions, end all connections and refuse others until `start`."""
        self._network.unlisten(self.host, self.port)
        for session in list(self.sessions):
            session.link.cut()
            session.end()

    def _accept(self, link: Link) -> Session:
        self._pids += 1
        session = Session(self, link, self._pids)
        self.sessions[session] = None
        return session

    def cancel(self, pid: int) -> None:
        """Let the statement of a connection fail, if it has one."""
        for session in list(self.sessions):
            if session.pid == pid:
                session.interrupt(CANCELED)

    def released(self) -> None:
        """A transaction has ended: those that wait look again, in their order."""
        waiting, self.waiting = self.waiting, deque()
        for session in waiting:
            session.go_on()


class Session:
    """One connection and its transaction."""

    def __init__(self, server: SimulatedPostgres, link: Link, pid: int) -> None:
        self.server = server
        self.link = link
        self.pid = pid
        self.open = True
        #: The client has closed the connection; messages that came before are still worked off.
        self._left = False
        self._bytes = bytearray()
        self._begun = False
        self._messages: deque[tuple[str, bytes]] = deque()
        self._working: Event | None = None
        self._running = False
        self._failure = ""
        self._skipping = False
        self._copying: list[bytes] | None = None
        self._prepared: dict[str, _Statement] = {}
        self._bound: tuple[_Statement, tuple[Any, ...]] | None = None
        #: "I" outside of transactions, "T" in one, "E" in one that has failed.
        self._status = "I"
        self._positions: dict[tuple[Any, ...], Position] = {}
        self._rows: list[tuple[Any, ...]] = []
        self._limits: dict[str, float] = {}
        self._alarm: Event | None = None

    # -- bytes

    def received(self, data: bytes) -> None:
        """Bytes came."""
        if not self.open:
            return
        self._bytes += data
        while self._next():
            pass
        self._work()

    def _next(self) -> bool:
        """Take one message off the bytes; whether there was one."""
        head = 1 if self._begun else 0
        if len(self._bytes) < head + 4:
            return False
        size = head + int.from_bytes(self._bytes[head : head + 4], "big")
        if len(self._bytes) < size:
            return False
        kind, body = chr(self._bytes[0]) if head else "startup", bytes(self._bytes[head + 4 : size])
        del self._bytes[:size]
        self._begun = True
        self._messages.append((kind, body))
        return True

    def lost(self) -> None:
        """The client has closed the connection."""
        self._left = True
        self._work()

    def end(self) -> None:
        """The backend ends, and with it its transaction."""
        if not self.open:
            return
        self.open = False
        self.server.sessions.pop(self, None)
        for event in (self._working, self._alarm):
            if event is not None:
                event.cancel()
        if self in self.server.waiting:
            self.server.waiting.remove(self)
        self._forget()

    def _forget(self) -> None:
        """End the transaction without its changes."""
        server = self.server
        self._positions, self._rows, self._limits, self._status = {}, [], {}, "I"
        held = [lock for lock, holder in server.locks.items() if holder is self]
        for lock in held:
            del server.locks[lock]
        if held:
            server.released()

    # -- one message after the other

    def _work(self) -> None:
        if not self.open or self._running or self._working is not None or self in self.server.waiting:
            return
        if not self._messages:
            if self._left:
                self.end()
            return
        self._silence()
        kind, body = self._messages[0]
        if kind in "SHdX" or kind == "startup":
            cost = 0.0
        else:
            cost = _COMMIT if kind == "Q" and body.startswith(b"COMMIT;") else _STATEMENT
        self._working = self.server.kernel.after(cost * self.server.slowness, self._run)
        if kind not in "SHX":
            self._limit("statement_timeout", lambda: self.interrupt(TIMED_OUT))

    def go_on(self) -> None:
        """The lock that this connection waits for may be free."""
        self._working = self.server.kernel.after(0.0, self._run)

    def _run(self) -> None:
        self._working = None
        self._running = True
        try:
            self._work_on(*self._messages[0])
        finally:
            self._running = False
        self._work()

    def _work_on(self, kind: str, body: bytes) -> None:
        step = self._step(kind, body)
        try:
            if step:
                self.server.watcher(self, step)
            if not self.open:
                return
            answer = self._answer_in_order(kind, body)
            if step and self.open:
                self.server.watcher(self, f"{step} done")
        except _Locked:
            self.server.waiting.append(self)
            return
        if self not in self.server.sessions:  # it ended meanwhile
            return
        self._messages.popleft()
        self._silence()
        if answer and not self._left:
            self.link.send(answer)
        if self._copying is not None:
            self._limit("statement_timeout", lambda: self.interrupt(TIMED_OUT))
        elif self._status != "I":
            self._limit("idle_in_transaction_session_timeout", self._terminate)

    def _answer_in_order(self, kind: str, body: bytes) -> bytes:
        """The answer to a message, or nothing after an error, until the client synchronizes."""
        if kind == "S":
            self._skipping = False
            return self._ready()
        if self._skipping:
            return b""
        try:
            if self._failure:
                raise _ServerError(self._failure)
            return self._answer(kind, body)
        except _ServerError as error:
            self._copying = None
            if kind == "Q" and body.startswith(b"COMMIT"):
                self._forget()
            elif self._status == "T":
                self._status = "E"
            simple = kind in "Qdcf"
            self._skipping = not simple
            return _error(str(error)) + (self._ready() if simple else b"")
        finally:
            self._failure = ""

    def fail(self, code: str) -> None:
        """Let the statement that is about to be worked on fail."""
        self._failure = code

    def interrupt(self, code: str) -> None:
        """Let a statement that is worked on or waits fail."""
        if not self.open or not (self._working or self in self.server.waiting or self._copying is not None):
            return
        self._failure = code
        if self in self.server.waiting:
            self.server.waiting.remove(self)
            self.go_on()
        elif self._working is None:  # it waits for data, and would say so at once
            self._copying = None
            self._status = "E" if self._status == "T" else self._status
            self._failure = ""
            self.link.send(_error(code) + self._ready())

    def _terminate(self) -> None:
        if not self._left:
            self.link.send(_error(IDLE))
        self.link.close()
        self.end()

    def _limit(self, name: str, action: Callable[[], None]) -> None:
        seconds = self._limits.get(name)
        if seconds is not None:
            self._silence()
            self._alarm = self.server.kernel.after(seconds, action)

    def _silence(self) -> None:
        alarm, self._alarm = self._alarm, None
        if alarm is not None:
            alarm.cancel()

    def _step(self, kind: str, body: bytes) -> str:
        """The name of a statement; empty for messages that are none."""
        if kind == "Q":
            return body.split(maxsplit=1)[0].rstrip(b";\0").decode()
        if kind == "E" and self._bound is not None:
            return self._bound[0].text.split(maxsplit=1)[0]
        return {"startup": "connect", "P": "prepare", "c": "COPY"}.get(kind, "")

    # -- messages

    def _answer(self, kind: str, body: bytes) -> bytes:
        answer = self._answers.get(kind)
        if answer is None:
            raise SimulationError(f"unknown message {kind!r} of {self.link.client}")
        return answer(self, body)

    def _parse(self, body: bytes) -> bytes:
        name, text, _ = (part.decode() for part in body.split(b"\0", 2))
        self._prepared[name] = _described(name, text)
        return _message("1", b"")

    def _describe(self, body: bytes) -> bytes:
        return _description(self._prepared[body[1:-1].decode()])

    def _close_statement(self, body: bytes) -> bytes:
        self._prepared.pop(body[1:-1].decode(), None)
        return _message("3", b"")

    def _copy_data(self, body: bytes) -> bytes:
        if self._copying is not None:
            self._copying.append(body)
        return b""

    def _copy_fails(self, body: bytes) -> bytes:
        raise _ServerError(CANCELED)

    def _flush(self, body: bytes) -> bytes:
        return b""

    def _leave(self, body: bytes) -> bytes:
        self.link.close()
        self.end()
        return b""

    def _start(self, body: bytes) -> bytes:
        if int.from_bytes(body[:4], "big") == _CANCEL_REQUEST:
            self.server.cancel(int.from_bytes(body[4:8], "big"))
            self.link.close()
            self.end()
            return b""
        settings = (("server_version", "15.4"), ("client_encoding", "UTF8"))
        said = b"".join(_message("S", f"{name}\0{value}\0".encode()) for name, value in settings)
        return _message("R", bytes(4)) + said + _message("K", struct.pack(">ii", self.pid, 0)) + self._ready()

    def _ready(self) -> bytes:
        return _message("Z", self._status.encode())

    def _query(self, body: bytes) -> bytes:
        text = body.rstrip(b"\0").decode().strip()
        if text.startswith("COMMIT"):
            return self._commit()
        if text.startswith("ROLLBACK"):
            self._forget()
            return self._done("ROLLBACK")
        self._require_intact()
        if text.startswith("BEGIN"):
            self._status = "T"
        elif text.startswith("SET LOCAL"):
            for name, value in re.findall(r"SET LOCAL (\w+) = (\d+)", text):
                self._limits[name] = int(value) / 1000
        elif text.startswith("SELECT pg_advisory_xact_lock"):
            self._lock("advisory")
        elif text.startswith("CREATE TABLE IF NOT EXISTS"):
            self.server.has_tables = True
        elif text.startswith("COPY"):
            columns = re.findall(r'"(\w+)"', text.partition("(")[2])
            assert columns == [name for name, _ in _MESSAGE], text
            self._copying = []
            return _message("G", struct.pack(">bh", 1, len(columns)) + struct.pack(">h", 1) * len(columns))
        elif not text.startswith("SELECT pg_advisory_unlock_all()"):
            raise SimulationError(f"unknown statement: {text}")
        return self._done(text.split(maxsplit=1)[0])

    def _done(self, tag: str) -> bytes:
        return _message("C", tag.encode() + b"\0") + self._ready()

    def _require_intact(self) -> None:
        if self._status == "E":
            raise _ServerError(ABORTED)

    def _commit(self) -> bytes:
        server = self.server
        if self._status == "E":
            self._forget()
            return self._done("ROLLBACK")
        server.positions.update(self._positions)
        server.rows += self._rows
        server.commits += 1
        self._forget()
        return self._done("COMMIT")

    # -- statements with parameters

    def _bind(self, body: bytes) -> bytes:
        _, name, rest = body.split(b"\0", 2)
        statement = self._prepared[name.decode()]
        formats = struct.unpack_from(">h", rest)[0]
        at = 2 + 2 * formats
        (count,) = struct.unpack_from(">h", rest, at)
        assert count == len(statement.parameters)
        values, _ = _fields(rest, at + 2, statement.parameters)
        self._bound = statement, values
        return _message("2", b"")

    def _execute(self, body: bytes) -> bytes:
        assert self._bound is not None
        self._require_intact()
        (_, text, _, columns), values = self._bound
        if text.startswith("INSERT"):
            found: tuple[Any, ...] | None = self._take(text, values)
        elif "pg_attribute" in text:
            found = (self.server.has_tables,)
        elif text.startswith("SELECT"):
            if "FOR UPDATE" in text:
                self._lock(values)
            found = self._position(values)
        else:
            self._lock(values[:4])
            before = self._position(values[:4])
            if before is not None:
                self._change(values[:4], Position(before.epoch, *values[4:]))
            return _message("C", b"UPDATE 1\0")
        rows = b"" if found is None else _row(found, columns)
        return rows + _message("C", text.split(maxsplit=1)[0].encode() + b" 0 1\0")

    def _take(self, text: str, place: tuple[Any, ...]) -> Position:
        self._lock(place)
        before = self._position(place)
        raised = 1 if "epoch = p.epoch + 1" in text else 0
        position = Position(1, None) if before is None else before._replace(epoch=before.epoch + raised)
        self._change(place, position)
        if self._status == "I":  # a transaction of its own
            self._commit()
        return position

    def _copied(self, body: bytes) -> bytes:
        if self._copying is None:
            return b""
        self._require_intact()
        data, self._copying = b"".join(self._copying), None
        at, types = 19, [kind for _, kind in _MESSAGE]
        while (count := struct.unpack_from(">h", data, at)[0]) >= 0:
            assert count == len(_MESSAGE)
            values, at = _fields(data, at + 2, types)
            self._rows.append(values)
        return self._done("COPY")

    def _position(self, place: tuple[Any, ...]) -> Position | None:
        return self._positions.get(place) or self.server.positions.get(place)

    def _change(self, place: tuple[Any, ...], position: Position) -> None:
        self._positions[place] = position

    def _lock(self, lock: Hashable) -> None:
        if self.server.locks.setdefault(lock, self) is not self:
            raise _Locked(lock)

    _answers: ClassVar[dict[str, Callable[[Session, bytes], bytes]]] = {
        "startup": _start,
        "Q": _query,
        "P": _parse,
        "D": _describe,
        "B": _bind,
        "E": _execute,
        "C": _close_statement,
        "d": _copy_data,
        "c": _copied,
        "f": _copy_fails,
        "H": _flush,
        "X": _leave,
    }


def _described(name: str, text: str) -> _Statement:
    """A statement with the types of its parameters and results."""
    if text.startswith("INSERT INTO"):
        return _Statement(name, text, _PLACE, _POSITION)
    if "pg_attribute" in text:
        return _Statement(name, text, (_TEXT, _TEXT), (("found", _BOOL),))
    if text.startswith("SELECT epoch, next_offset"):
        return _Statement(name, text, _PLACE, _POSITION)
    if text.startswith("UPDATE"):
        return _Statement(name, text, (*_PLACE, _INT8, _TEXT, _INT4), ())
    if re.fullmatch(r'SELECT "topic", .* LIMIT 1', text):
        return _Statement(name, text, (), _MESSAGE)
    raise SimulationError(f"unknown statement: {text}")


def _message(kind: str, body: bytes) -> bytes:
    return kind.encode() + struct.pack(">i", len(body) + 4) + body


def _error(code: str) -> bytes:
    fields = (("S", "FATAL" if code == IDLE else "ERROR"), ("C", code), ("M", f"simulated error {code}"))
    return _message("E", b"".join(f"{name}{value}\0".encode() for name, value in fields) + b"\0")


def _description(statement: _Statement) -> bytes:
    types = struct.pack(f">h{len(statement.parameters)}i", len(statement.parameters), *statement.parameters)
    if not statement.columns:
        return _message("t", types) + _message("n", b"")
    columns = b"".join(
        name.encode() + b"\0" + struct.pack(">ihihih", 0, 0, kind, -1, -1, 0) for name, kind in statement.columns
    )
    return _message("t", types) + _message("T", struct.pack(">h", len(statement.columns)) + columns)


def _row(values: tuple[Any, ...], columns: tuple[tuple[str, int], ...]) -> bytes:
    fields = b""
    for value, (_, kind) in zip(values, columns, strict=True):
        data = None
        if value is not None:
            data = struct.pack(_FORMATS[kind], value) if kind in _FORMATS else value.encode()
        fields += struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data
    return _message("D", struct.pack(">h", len(columns)) + fields)


def _fields(data: bytes, at: int, types: Any) -> tuple[tuple[Any, ...], int]:
    """Values with their lengths before them, from `at` on, and the end of them."""
    values: list[Any] = []
    for kind in types:
        (size,) = struct.unpack_from(">i", data, at)
        at += 4
        if size < 0:
            values.append(None)
            continue
        raw = data[at : at + size]
        at += size
        values.append(
            struct.unpack(_FORMATS[kind], raw)[0] if kind in _FORMATS else raw if kind == _BYTEA else raw.decode()
        )
    return tuple(values), at
