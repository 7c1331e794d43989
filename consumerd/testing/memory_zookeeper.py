"""A ZooKeeper in memory, behind the port `consumerd.base.ports.ZooKeeper`: for simulations and tests, never for
service.

    zookeeper = MemoryZooKeeper()
    zookeeper.put("/brokers/ids/0", b"creator:127.0.0.1:9092")
    async with zookeeper.session() as zk:
        await zk.create_ephemeral("/consumers/g/ids/g_a", b"{ }", wait=0)
        zookeeper.expire(zk)  # its nodes go; it gets a new session, as a connected client does

Strategy: only the wire and the server are replaced. A `MemorySession` runs the calls, the state machine and the watch
table of `consumerd.net.zk` itself, so its errors, events and their order are those of the real session; a
`MemoryZooKeeperConnection`, which understands the session's requests, takes the place of the connection. A request is
carried out at the moment it is sent, and answered in the next turn of the loop; watches are one-shot, belong to the
connection, and fire in the order in which they were armed, before any answer sent after the change. Nothing else
decides the order of things, so equal programs run equally.

Faults are calls: `disconnect`, `reconnect`, `expire`, `cut_next_call`, and `lose_watches` on a session; and the set
`denied` of nodes whose ACL lets nobody create children. Time passes only in the clock that is handed in; sessions end
by a call, not by themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

from aiozk import protocol

from consumerd.base.clock import SystemClock
from consumerd.base.ports import Clock, Operation, SessionState
from consumerd.net.zk.acl import parse_acl
from consumerd.net.zk.base_session import BaseSession
from consumerd.net.zk.connection import ZooKeeperConnection
from consumerd.net.zk.errors import UNIMPLEMENTED, ConnectionLost, MultiFailed, ServerError, error_for
from consumerd.net.zk.lifecycle import NO_PASSWORD, SessionLifecycle
from consumerd.net.zk.requests import ExistsRequest, GetChildrenRequest, GetDataRequest, SetDataRequest
from consumerd.net.zk.watches import WatchTable
from consumerd.testing.memory_tree import MemoryTree, WatchKind

_FIRST_SESSION = 0x1_0000_0000
_NO_AUTH = -102


class MemoryZooKeeperConnection:
    """The connection of a session: requests in, responses and watch events out, until `kill`."""

    where = "memory:0"

    def __init__(self, server: MemoryZooKeeper, session: MemorySession, session_id: int) -> None:
        self._server = server
        self._session = session
        self._session_id = session_id
        self._waiting: set[asyncio.Future[Any]] = set()
        self.end_reason = ""
        #: Lose the next call's connection: before (False) or after (True) it is carried out. None: do not.
        self.cut: bool | None = None

    def request(self, request: Any) -> asyncio.Future[Any]:
        """Carry out a request; the future brings what reading its reply would, or ServerError."""
        return self.call(lambda: self._answer(request))

    def call(self, work: Callable[[], Any]) -> asyncio.Future[Any]:
        """Run `work` on the server now and answer in the next turn. Raises ConnectionLost when it has ended."""
        if self.end_reason:
            raise ConnectionLost(f"the connection to the memory ZooKeeper has ended: {self.end_reason}")
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        future.add_done_callback(self._waiting.discard)
        cut, self.cut = self.cut, None
        if cut is False:
            self._server.disconnect(self._session)
            return future
        try:
            result, error = work(), None
        except ServerError as refused:
            result, error = None, refused
        if cut is True:
            self._server.disconnect(self._session)
        else:
            self.later(lambda: self._settle(future, result, error))
        return future

    def later(self, deliver: Callable[[], None]) -> None:
        """Deliver in the next turn, in order, unless the connection ends before."""
        asyncio.get_running_loop().call_soon(lambda: None if self.end_reason else deliver())

    @staticmethod
    def _settle(future: asyncio.Future[Any], result: Any, error: ServerError | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def kill(self, reason: str) -> None:
        """End; outstanding calls get ConnectionLost."""
        if self.end_reason:
            return
        self.end_reason = reason
        for future in list(self._waiting):
            if not future.done():
                future.set_exception(ConnectionLost(f"the connection to the memory ZooKeeper was lost: {reason}"))
        self._server.forget_watches(self)
        self._session.detached(self)

    def watched(self, path: str) -> None:
        """A watch of this connection fired."""
        if not self._session.lose_watches:
            self.later(lambda: self._session.fire(path))

    def _answer(self, request: Any) -> Any:
        tree, path = self._server.tree, request.path
        if isinstance(request, protocol.CreateRequest):
            if path.rpartition("/")[0] in self._server.denied:
                raise ServerError(_NO_AUTH)
            owner = self._session_id if request.flags & 1 else 0
            tree.create(path, request.data, owner)
            return None
        if isinstance(request, protocol.DeleteRequest):
            tree.delete(path, request.version)
            return None
        if isinstance(request, SetDataRequest):
            tree.set(path, request.data, request.version)
            return tree.stat(path)
        kind = WatchKind.CHILDREN if isinstance(request, GetChildrenRequest) else WatchKind.DATA
        # A read of a missing node arms nothing, except `exists`, which waits for its creation.
        if request.watch and (tree.has(path) or isinstance(request, ExistsRequest)):
            self._server.arm(kind, path, self)
        stat = tree.stat(path)
        if isinstance(request, GetChildrenRequest):
            return tree.children(path)
        if isinstance(request, GetDataRequest):
            return tree.data(path), stat
        assert isinstance(request, ExistsRequest), f"{request!r} is unknown to the memory ZooKeeper"
        return stat


class MemorySession(BaseSession):
    """One client. Made by `MemoryZooKeeper.session`; used like `consumerd.net.zk.session.Session`."""

    def __init__(
        self, server: MemoryZooKeeper, lifecycle: SessionLifecycle, watches: WatchTable, *, chroot: str, clock: Clock
    ) -> None:
        super().__init__(lifecycle, watches, chroot=chroot, acl=parse_acl("open"), clock=clock)
        self._server = server
        self._link: MemoryZooKeeperConnection | None = None
        #: While set, fired watches of this session never arrive.
        self.lose_watches = False

    async def start(self, timeout: float | None = None) -> None:
        """Get a session."""
        self._server.reconnect(self)

    async def close(self) -> None:
        """End the session: its ephemerals go at once. Outstanding calls fail. May be called again."""
        session_id = self._lifecycle.session_id
        self._lifecycle.refuse()
        if self._link is not None:
            self._link.kill("the session was closed")
            self._server.end(session_id)
        self._lifecycle.finish(None)

    def lease_left(self) -> float:
        """The whole timeout while connected; from the disconnection on, the rest of it."""
        if self.state is SessionState.CONNECTED:
            self._lifecycle.prove(self._clock.monotonic())
        return super().lease_left()

    async def multi(self, operations: Sequence[Operation], *, session_id: int | None = None) -> None:
        """All or nothing, on the very session `session_id` if one is named; refused where `has_multi` is false."""
        if not operations:
            return
        if not self.has_multi:
            raise error_for(UNIMPLEMENTED, operations[0].path)
        absolute = [operation._replace(path=self._full(operation.path)) for operation in operations]
        await self._lifecycle.connection(session_id)
        link = self._link
        assert link is not None
        tree, own = self._server.tree, self.session_id
        failure = await link.call(lambda: tree.multi(absolute, own))
        if failure is not None:
            index, code = failure
            raise MultiFailed(index, error_for(code, operations[index].path))

    # -- for the server

    @property
    def link(self) -> MemoryZooKeeperConnection | None:
        """The present connection."""
        return self._link

    @property
    def granted_id(self) -> int:
        """The session that the server gave this client, as far as the client knows."""
        return self._lifecycle.granted_id

    def fire(self, path: str) -> None:
        """Tell the watchers of an absolute path."""
        self._watches.fire(path)

    def attach(self, session_id: int) -> None:
        """A connection is there; with another id than before it is a new session."""
        lifecycle = self._lifecycle
        if session_id != lifecycle.granted_id:
            lifecycle.expire()
            lifecycle.grant(session_id, NO_PASSWORD, lifecycle.timeout)
            self._server.make(self._chroot)
        self._link = MemoryZooKeeperConnection(self._server, self, session_id)
        lifecycle.announce(cast("ZooKeeperConnection", self._link), self._clock.monotonic())

    def detached(self, link: MemoryZooKeeperConnection) -> None:
        """The connection ended."""
        if link is self._link:
            self._lifecycle.prove(self._clock.monotonic())
            self._link = None
            self._lifecycle.detach(cast("ZooKeeperConnection", link))


class MemoryZooKeeper:
    """The server. Paths given to it are absolute, outside of any chroot."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self.tree = MemoryTree(now_ms=lambda: int(self._clock.wall() * 1000), changed=self._changed)
        self._watches: dict[tuple[WatchKind, str], dict[MemoryZooKeeperConnection, None]] = {}
        self._last_session = _FIRST_SESSION
        self._alive: set[int] = set()
        #: Nodes below which no session may create another one.
        self.denied: set[str] = set()

    def session(
        self, *, chroot: str = "", session_timeout: float = 6.0, wait_connected: float | None = None
    ) -> MemorySession:
        """A client, not started yet. Its calls wait `wait_connected` seconds of the loop for a connection."""
        watches = WatchTable()
        wait = session_timeout if wait_connected is None else wait_connected
        lifecycle = SessionLifecycle("memory", session_timeout, wait, clock=self._clock, watches=watches)
        return MemorySession(self, lifecycle, watches, chroot=chroot, clock=self._clock)

    # -- faults

    def disconnect(self, session: MemorySession) -> None:
        """Cut the connection. The session lives on; its calls wait for `reconnect`, outstanding ones fail."""
        if session.link is not None:
            session.link.kill("it was cut")

    def reconnect(self, session: MemorySession) -> None:
        """Connect again; a session that ended meanwhile learns of it and gets a new one."""
        if session.link is not None or session.state is SessionState.CLOSED:
            return
        session_id = session.granted_id
        if session_id not in self._alive:
            self._last_session += 1
            session_id = self._last_session
            self._alive.add(session_id)
        session.attach(session_id)

    def expire(self, session: MemorySession) -> None:
        """End the session on the server. A connected client gets a new one at once, a disconnected one learns later."""
        connected = session.link is not None
        self.disconnect(session)
        self.end(session.granted_id)
        if connected:
            self.reconnect(session)

    def cut_next_call(self, session: MemorySession, *, carried_out: bool) -> None:
        """Cut the connection at the session's next call, after or before it is carried out. The call cannot tell."""
        assert session.link is not None, "the session is not connected"
        session.link.cut = carried_out

    # -- nodes, as if by another client; no loop is needed without watches

    def put(self, path: str, data: bytes | None, *, session_id: int = 0) -> None:
        """Create or overwrite, parents included; `session_id` makes a new node that session's ephemeral."""
        if self.tree.has(path):
            self.tree.set(path, data)
        else:
            self.make(path.rpartition("/")[0])
            self.tree.create(path, data, session_id)

    def make(self, path: str) -> None:
        """Create `path` and its parents with null data, where missing."""
        names = path.split("/")[1:]
        for end in range(1, len(names) + 1):
            above = "/" + "/".join(names[:end])
            if not self.tree.has(above):
                self.tree.create(above, None)

    def remove(self, path: str) -> None:
        """Delete a node and everything below it. A missing one is nothing to complain about."""
        for below in reversed(self.tree.paths()):
            if below == path or below.startswith(f"{path}/"):
                self.tree.delete(below)

    def dump(self) -> dict[str, bytes | None]:
        """All nodes but the root, with their data."""
        return {path: self.tree.data(path) for path in self.tree.paths() if path != "/"}

    # -- for sessions

    def end(self, session_id: int) -> None:
        """Forget a session and delete its ephemerals."""
        self._alive.discard(session_id)
        for path in self.tree.owned_by(session_id):
            self.tree.delete(path)

    def arm(self, kind: WatchKind, path: str, link: MemoryZooKeeperConnection) -> None:
        """Note a one-shot watch."""
        self._watches.setdefault((kind, path), {})[link] = None

    def forget_watches(self, link: MemoryZooKeeperConnection) -> None:
        """The server's watches die with their connection."""
        for links in self._watches.values():
            links.pop(link, None)

    def _changed(self, kind: WatchKind, path: str) -> None:
        for link in self._watches.pop((kind, path), {}):
            link.watched(path)
