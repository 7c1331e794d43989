"""A ZooKeeper at the level of its wire protocol: sessions that expire, watches in order, requests at a bounded rate.

Strategy: requests of all connections go through one queue, from which the kernel takes so many per slice of time; each
is answered on its connection in the order in which it came. Writes change the leader's tree. A connection reads from
its replica, which is the leader's tree itself or a follower's that applies the same transactions `lag` seconds later;
on a follower a write is answered, and what comes behind it on the same connection carried out, once it is applied
there. Watches belong to the replica and go out when it changes, so before any later answer.

Sessions end when nothing came from their client for their timeout, looked at every tick as the server does. A server
that is `down` has no connections and lets none in; its sessions have their whole timeout again when it is back.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence

from consumerd.base.ports import Create, Delete, Operation, SetData
from consumerd.net.zk.errors import ServerError
from consumerd.testing.memory_tree import Change, Transaction, Tree, TreeNode
from tests.simulation import zookeeper_wire as wire
from tests.simulation.kernel import Event, Kernel
from tests.simulation.network import Line, Link, Network

SLICE = 0.001
WALL = 1_700_000_000.0
_NO_AUTH = -102
_THROTTLED = -127
_FIRST_SESSION = 0x1_0000_0000_0001
_PLAIN_WRITES = (wire.CREATE, wire.CREATE2, wire.DELETE, wire.SET_DATA)
_WRITES = (*_PLAIN_WRITES, wire.MULTI)


class Session:
    """One session, as the leader knows it."""

    def __init__(self, number: int, timeout: float, password: bytes, owner: str) -> None:
        self.id = number
        self.timeout = timeout
        self.password = password
        #: Name of the process that has it.
        self.owner = owner
        self.connection: Connection | None = None
        self.heard = 0.0


class Replica:
    """The data that connections read, and the watches that they set."""

    def __init__(self, tree: Tree | None = None, lag: float = 0.0) -> None:
        self.lag = lag
        self.tree = tree or Tree()
        self.tree.fired = self.fired
        self.data_watches: dict[str, dict[Connection, None]] = {}
        self.child_watches: dict[str, dict[Connection, None]] = {}
        self.connections: dict[Connection, None] = {}

    def fired(self, change: Change, path: str) -> None:
        watchers: dict[Connection, None] = {}
        if change is not Change.CHILDREN:
            watchers.update(self.data_watches.pop(path, {}))
        if change in (Change.CHILDREN, Change.DELETED):
            watchers.update(self.child_watches.pop(path, {}))
        if watchers:
            data = wire.event(change, path)
            for connection in watchers:
                connection.watched(path, data)

    def forget(self, connection: Connection) -> None:
        """Watches die with their connection."""
        self.connections.pop(connection, None)
        for path in connection.watches:
            for watches in (self.data_watches, self.child_watches):
                watchers = watches.get(path)
                if watchers is not None:
                    watchers.pop(connection, None)
                    if not watchers:
                        del watches[path]


class Connection:
    """The server's side of one connection."""

    def __init__(self, server: SimulatedZooKeeper, link: Link, replica: Replica) -> None:
        self.link = link
        self.replica = replica
        self.session: Session | None = None
        self.open = True
        self.waiting: deque[bytes] = deque()
        #: Answers that wait until the replica has applied a transaction, and reads behind them with them.
        self.pending: deque[tuple[int, bytes]] = deque()
        self.watches: dict[str, None] = {}
        self._server = server
        self._bytes = bytearray()

    def received(self, data: bytes) -> None:
        """Requests came."""
        if not self.open:
            return
        self._bytes += data
        while len(self._bytes) >= 4:
            size = int.from_bytes(self._bytes[:4], "big", signed=True)
            if len(self._bytes) < 4 + size:
                break
            self.waiting.append(bytes(self._bytes[4 : 4 + size]))
            del self._bytes[: 4 + size]
            self._server.enqueue(self)

    def lost(self) -> None:
        """The client has disconnected; its session stays."""
        self.open = False
        self._server.forget(self)

    def close(self) -> None:
        """End it."""
        self.open = False
        self._server.forget(self)
        self.link.close()

    def send(self, data: bytes) -> None:
        """To the client."""
        if self.open:
            self.link.send(data)

    def watched(self, path: str, data: bytes) -> None:
        """One of its watches fired."""
        self.watches.pop(path, None)
        self._server.watch_events += 1
        self.send(data)


class SimulatedZooKeeper:
    """The ensemble behind one address. `rate`: requests in a second. `with_multi`: without, it is one of 3.3."""

    def __init__(
        self,
        kernel: Kernel,
        network: Network,
        *,
        host: str = "zookeeper",
        port: int = 2181,
        line: Line,
        rate: float = 20_000.0,
        tick: float = 2.0,
        with_multi: bool = True,
    ) -> None:
        self.kernel = kernel
        self.host, self.port = host, port
        self.rate = rate
        self.tick = tick
        self.with_multi = with_multi
        self.line = line
        self.leader = Replica()
        self.leader.tree.fired = self._changed
        self.followers: list[Replica] = []
        #: The replica that accepts new connections.
        self.entry = self.leader
        self.sessions: dict[int, Session] = {}
        #: Requests by (process, kind).
        self.requests: Counter[tuple[str, str]] = Counter()
        self.watch_events = 0
        #: Ends of sessions that were not requested: (time, process).
        self.expired: list[tuple[float, str]] = []
        self.down = False
        #: Every request is dropped with ThrottledOp.
        self.sheds_load = False
        #: The process whose request is carried out; "" for what the simulation does itself.
        self.serving = ""
        #: While the ephemerals of a session go with it: how it ended ("closed", "timed out", "expired").
        self.ending = ""
        #: Paths that no client may read.
        self.forbidden: set[str] = set()
        #: Called with process and kind right before every request is carried out.
        self.before: Callable[[str, str], None] = lambda owner, kind: None
        #: Called for every change of the leader's tree.
        self.observers: list[Callable[[Change, str], None]] = []
        self._network = network
        self._queue: deque[Connection] = deque()
        self._serving: Event | None = None
        self._credit = 0.0
        self._last_session = _FIRST_SESSION
        network.listen(host, port, self._accept, line)
        kernel.after(tick, self._tick)

    @property
    def tree(self) -> Tree:
        """The truth: the leader's tree. For observers; who writes uses `put` and `remove`."""
        return self.leader.tree

    # -- as if by another client, at once

    def put(self, path: str, data: bytes | None, *, session: int = 0) -> None:
        """Create or overwrite, parents included."""
        if path in self.tree.nodes:
            self.commit((SetData(path, data),))  # type: ignore[arg-type]
            return
        names = path.split("/")[1:]
        for end in range(1, len(names)):
            above = "/" + "/".join(names[:end])
            if above not in self.tree.nodes:
                self.commit((Create(above, None),))
        self.commit((Create(path, data, ephemeral=session != 0),), session)

    def remove(self, path: str) -> None:
        """Delete a node and all below it, if it is there."""
        for below in sorted((each for each in self.tree.nodes if f"{each}/".startswith(f"{path}/")), reverse=True):
            self.commit((Delete(below),))

    def commit(self, operations: Sequence[Operation], session: int = 0) -> tuple[int, int] | None:
        """Apply to the leader, and later to the followers. None, or which operation failed how."""
        transaction = Transaction(self.tree.zxid + 1, session, self._time(), tuple(operations))
        return self._apply(transaction)

    def peer(self, name: str) -> int:
        """The id of a session without a client here, which never expires; for `put`."""
        session = self._open(name, 20 * self.tick)
        session.heard = float("inf")
        return session.id

    # -- faults

    def expire(self, owner: str) -> bool:
        """End the session of a process now, as if it had been silent; whether there was one."""
        found = [session for session in self.sessions.values() if session.owner == owner]
        for session in found:
            self._end(session, "expired")
        return bool(found)

    def follow(self, lag: float) -> Replica:
        """Add a follower that is `lag` seconds behind; set `entry` to it to have it take new connections."""
        follower = Replica(lag=lag)
        follower.tree = _copy(self.tree)
        follower.tree.fired = follower.fired
        self.followers.append(follower)
        return follower

    def stop(self) -> None:
        """All servers are down: connections break, and new ones fail."""
        self.down = True
        self._network.unlisten(self.host, self.port)
        for replica in (self.leader, *self.followers):
            for connection in list(replica.connections):
                connection.close()
        self._queue.clear()

    def start(self) -> None:
        """They are back."""
        self.down = False
        self._network.listen(self.host, self.port, self._accept, self.line)
        for session in self.sessions.values():
            session.heard = max(session.heard, self.kernel.now)

    # -- connections

    def _accept(self, link: Link) -> Connection:
        connection = Connection(self, link, self.entry)
        self.entry.connections[connection] = None
        return connection

    def forget(self, connection: Connection) -> None:
        """A connection ended."""
        connection.replica.forget(connection)
        if connection.session is not None and connection.session.connection is connection:
            connection.session.connection = None

    def enqueue(self, connection: Connection) -> None:
        """One more request of `connection` waits."""
        self._queue.append(connection)
        if self._serving is None:
            self._serving = self.kernel.after(min(SLICE, 1.0 / self.rate), self._serve)

    def _serve(self) -> None:
        self._serving = None
        self._credit = min(self._credit + self.rate * SLICE, max(1.0, self.rate * SLICE))
        while self._queue and self._credit >= 1.0:
            self._credit -= 1.0
            self._next(self._queue.popleft())
        if self._queue:
            self._serving = self.kernel.after(SLICE, self._serve)

    def _next(self, connection: Connection) -> None:
        if not connection.open or not connection.waiting:
            return
        request = connection.waiting[0]
        if connection.session is None:
            connection.waiting.popleft()
            self._introduce(connection, wire.ConnectRequest(request))
        elif not connection.pending or wire.kind_of(request) in _WRITES:
            connection.waiting.popleft()
            self._request(connection, connection.session, request)

    # -- sessions

    def _introduce(self, connection: Connection, request: wire.ConnectRequest) -> None:
        if request.seen_zxid > connection.replica.tree.zxid:
            connection.close()
            return
        if request.session:
            session = self.sessions.get(request.session)
            if session is None or session.password != request.password:
                connection.send(wire.connected(0, 0, bytes(16), with_read_only=request.with_read_only))
                connection.close()
                return
            if session.connection is not None:
                session.connection.close()
        else:
            timeout = min(max(request.timeout_ms / 1000, 2 * self.tick), 20 * self.tick)
            session = self._open(connection.link.client, timeout)
        session.heard = self.kernel.now
        session.connection = connection
        connection.session = session
        self.requests[session.owner, "connect"] += 1
        timeout_ms = round(session.timeout * 1000)
        connection.send(wire.connected(timeout_ms, session.id, session.password, with_read_only=request.with_read_only))

    def _open(self, owner: str, timeout: float) -> Session:
        self._last_session += 1
        session = Session(self._last_session, timeout, self._last_session.to_bytes(16, "big"), owner)
        self.sessions[session.id] = session
        self.commit(())
        return session

    def _tick(self) -> None:
        if not self.down:
            for session in list(self.sessions.values()):
                if self.kernel.now - session.heard > session.timeout:
                    self.expired.append((self.kernel.now, session.owner))
                    self._end(session, "timed out")
        self.kernel.after(self.tick / 4, self._tick)

    def _end(self, session: Session, how: str) -> None:
        del self.sessions[session.id]
        self.ending = how
        self._apply(self.tree.end(session.id, self.tree.zxid + 1, self._time()))
        self.ending = ""
        self.kernel.note("zookeeper", f"session {session.id:#x} of {session.owner} {how}")
        if session.connection is not None and how != "closed":
            session.connection.close()

    # -- requests

    def _request(self, connection: Connection, session: Session, request: bytes) -> None:
        session.heard = self.kernel.now
        reader = wire.Reader(request)
        xid, kind = reader.number(), reader.number()
        name = wire.NAMES.get(kind, str(kind))
        self.requests[session.owner, name] += 1
        self.before(session.owner, name)
        if kind == wire.MULTI and not self.with_multi:
            return
        self.serving = session.owner
        try:
            if self.sheds_load and kind != wire.CLOSE:
                raise ServerError(_THROTTLED)
            body = self._answer(connection, session, kind, reader)
            code = 0
        except ServerError as error:
            body, code = b"", error.code
        finally:
            self.serving = ""
        zxid = self.tree.zxid if kind in _WRITES or kind == wire.SYNC else connection.replica.tree.zxid
        answer = wire.reply(xid, zxid, code, body)
        if connection.pending or zxid > connection.replica.tree.zxid:
            connection.pending.append((zxid, answer))
        else:
            connection.send(answer)
        if kind == wire.CLOSE:
            connection.close()

    def _answer(self, connection: Connection, session: Session, kind: int, reader: wire.Reader) -> bytes:
        if kind in _PLAIN_WRITES:
            return self._write(session, kind, wire.read_operation(kind, reader))
        if kind in (wire.GET_DATA, wire.EXISTS, wire.GET_CHILDREN, wire.GET_CHILDREN2):
            return self._read(connection, kind, reader.text(), reader.flag())
        if kind == wire.MULTI:
            return self._multi(session, wire.read_multi(reader))
        if kind == wire.SYNC:
            return wire.buffer(reader.text().encode())
        if kind == wire.SET_WATCHES:
            return self._set_watches(connection, reader)
        if kind == wire.CLOSE:
            self._end(session, "closed")
            return b""
        if kind in (wire.PING, wire.AUTH):
            return b""
        raise ServerError(-6)  # unimplemented

    def _write(self, session: Session, kind: int, operation: Operation) -> bytes:
        failure = self.commit((operation,), session.id)
        if failure is not None:
            raise ServerError(failure[1])
        return self._result(kind, operation)

    def _result(self, kind: int, operation: Operation) -> bytes:
        path = operation.path
        created = wire.buffer(path.encode()) if kind in (wire.CREATE, wire.CREATE2) else b""
        node = self.tree.nodes.get(path)
        with_stat = kind in (wire.SET_DATA, wire.CREATE2) and node is not None
        return created + (wire.stat(node.stat) if with_stat and node is not None else b"")

    def _multi(self, session: Session, placed: list[tuple[int, Operation]]) -> bytes:
        failure = self.commit([operation for _, operation in placed], session.id)
        if failure is not None:
            return wire.multi_failed(len(placed), *failure)
        return wire.multi_done((kind, self._result(kind, operation)) for kind, operation in placed)

    def _read(self, connection: Connection, kind: int, path: str, watch: bool) -> bytes:
        if path in self.forbidden:
            raise ServerError(_NO_AUTH)
        replica = connection.replica
        node = replica.tree.nodes.get(path)
        if watch and (node is not None or kind == wire.EXISTS):
            listing = kind in (wire.GET_CHILDREN, wire.GET_CHILDREN2)
            watches = replica.child_watches if listing else replica.data_watches
            watches.setdefault(path, {})[connection] = None
            connection.watches[path] = None
        if node is None:
            raise ServerError(-101)
        if kind == wire.GET_DATA:
            return wire.buffer(node.data) + wire.stat(node.stat)
        if kind == wire.EXISTS:
            return wire.stat(node.stat)
        names = wire.children(node.children)
        return names if kind == wire.GET_CHILDREN else names + wire.stat(node.stat)

    def _set_watches(self, connection: Connection, reader: wire.Reader) -> bytes:
        """Watches of a client that reconnected: those of what changed meanwhile fire at once."""
        (since,) = reader.take(wire.ZXID)
        nodes, replica = connection.replica.tree.nodes, connection.replica

        def fire_or_set(path: str, change: Change | None, watches: dict[str, dict[Connection, None]]) -> None:
            if change is not None:
                connection.send(wire.event(change, path))
            else:
                watches.setdefault(path, {})[connection] = None
                connection.watches[path] = None

        def since_then(path: str, attribute: str, change: Change) -> Change | None:
            node = nodes.get(path)
            if node is None:
                return Change.DELETED
            return change if getattr(node, attribute) > since else None

        for path in reader.texts():
            fire_or_set(path, since_then(path, "mzxid", Change.DATA), replica.data_watches)
        for path in reader.texts():
            fire_or_set(path, Change.CREATED if path in nodes else None, replica.data_watches)
        for path in reader.texts():
            fire_or_set(path, since_then(path, "pzxid", Change.CHILDREN), replica.child_watches)
        return b""

    # -- transactions

    def _changed(self, change: Change, path: str) -> None:
        self.leader.fired(change, path)
        for observer in self.observers:
            observer(change, path)

    def _apply(self, transaction: Transaction) -> tuple[int, int] | None:
        failure = self.tree.apply(transaction)
        for follower in self.followers:
            self.kernel.after(follower.lag, lambda follower=follower: self._replay(follower, transaction))  # type: ignore[misc]
        return failure

    def _replay(self, follower: Replica, transaction: Transaction) -> None:
        follower.tree.apply(transaction)
        for connection in list(follower.connections):
            while connection.pending and connection.pending[0][0] <= follower.tree.zxid:
                connection.send(connection.pending.popleft()[1])
            while connection.waiting and connection.open and not connection.pending:
                self._next(connection)

    def _time(self) -> int:
        return int((WALL + self.kernel.now) * 1000)


def _copy(tree: Tree) -> Tree:
    copy = Tree()
    copy.zxid = tree.zxid
    for path, node in tree.nodes.items():
        made = copy.nodes[path] = TreeNode(node.data, node.owner, node.czxid, node.ctime)
        made.mzxid, made.pzxid, made.mtime = node.mzxid, node.pzxid, node.mtime
        made.version, made.cversion, made.children = node.version, node.cversion, dict(node.children)
        if node.owner:
            copy._owned.setdefault(node.owner, {})[path] = None
    return copy
