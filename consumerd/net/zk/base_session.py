"""The calls and the state of a session, apart from how it gets and keeps its connection.

Strategy: a call waits for the live connection (a bounded time), writes the request without awaiting in between, and
awaits its answer. So it is either never sent (`NotConnected`), or its outcome is known, or it is `ConnectionLost`;
nothing is repeated behind the caller's back.

Two calls are about nodes that this very session owns: created without adopting one of another session, deleted without
touching one of another session. Ownership is the node's `ephemeralOwner`, nothing else; the path proves nothing, since
peers create and delete by path. Such a call is bound to the session it began with: it uses only connections of that
session and raises SessionChanged when it is over. A lost reply is resolved by reading the node: ours means that it was
carried out.

State, lease and events are the lifecycle's, watches the watch table's. How a session begins and ends is up to a
subclass, of which there are two: one with a server, and one with a server in memory.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Final, Self, TypeVar, cast

from aiozk import protocol

from consumerd.base.ports import Clock, NodeStat, Operation, SessionEvent, SessionState
from consumerd.net.zk.connection import NeverSent, ZooKeeperConnection
from consumerd.net.zk.errors import (
    BadReply,
    BadVersion,
    ConnectionLost,
    InvalidPath,
    MultiFailed,
    NodeExists,
    NoNode,
    NotConnected,
    ServerError,
    SessionChanged,
    error_for,
)
from consumerd.net.zk.lifecycle import SessionLifecycle
from consumerd.net.zk.multi import MultiRequest, encode_operations
from consumerd.net.zk.requests import ExistsRequest, GetChildrenRequest, GetDataRequest, SetDataRequest
from consumerd.net.zk.watches import WatchTable

_T = TypeVar("_T")

#: A deleted node whose watch event was lost is noticed after this many seconds.
_REREAD_INTERVAL: Final = 1.0
_NO_NODE, _NO_AUTH, _NODE_EXISTS = -101, -102, -110


def create_request(full: str, data: bytes | None, acl: list[Any], *, ephemeral: bool = False) -> Any:
    """Return a plain create, known to every server since 3.3; `full` is absolute, None is null data."""
    request = protocol.CreateRequest(path=full, data=data, acl=acl)
    request.set_flags(ephemeral=ephemeral)
    return request


async def ensure_on(connection: ZooKeeperConnection, full: str, acl: list[Any]) -> None:
    """Create the absolute path and its parents where missing. Raises ServerError, ConnectionLost.

    Reads first: a member that may not write above its own nodes can still use existing parents. The server keeps the
    order of requests, so all parents are read in one round trip, and all missing nodes created in another one.
    """
    if full == "/" or await _is_there(connection, full):
        return
    above = _parents(full)
    there = await _in_order(_is_there(connection, each) for each in above)
    missing = [full, *above[: there.index(True) if True in there else None]]
    try:
        await _in_order(_create_missing(connection, each, acl) for each in reversed(missing))
    except ServerError as error:
        if error.code != _NO_NODE:
            raise
        for each in reversed(missing):  # a parent that the server dropped to shed load came behind its child
            await _create_missing(connection, each, acl)


def _parents(full: str) -> list[str]:
    """Return the nodes above an absolute path without the root, nearest first."""
    found = []
    while full := full.rpartition("/")[0]:
        found.append(full)
    return found


async def _in_order(calls: Iterable[Coroutine[None, None, _T]]) -> list[_T]:
    """Return the results of calls that are sent in order, once all are answered. Raises the first error in order."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return cast("list[_T]", results)


async def _create_missing(connection: ZooKeeperConnection, full: str, acl: list[Any]) -> None:
    try:
        await connection.request(create_request(full, None, acl))
    except ServerError as error:
        if error.code != _NODE_EXISTS:
            raise


async def _is_there(connection: ZooKeeperConnection, full: str) -> bool:
    try:
        await connection.request(ExistsRequest(full, watch=False))
    except ServerError as error:
        if error.code == _NO_AUTH:
            return True  # servers from 3.9 on ask for read permission, on nodes that exist
        if error.code != _NO_NODE:
            raise
        return False
    return True


class BaseSession(ABC):
    """The calls of `consumerd.base.ports.ZooKeeper`, one attempt each. `async with` starts and closes the session."""

    def __init__(
        self, lifecycle: SessionLifecycle, watches: WatchTable, *, chroot: str, acl: list[Any], clock: Clock
    ) -> None:
        self._lifecycle = lifecycle
        self._watches = watches
        self._chroot = chroot
        self._acl = acl
        self._clock = clock

    @abstractmethod
    async def start(self, timeout: float | None = None) -> None:
        """Establish a session within `timeout` seconds."""

    @abstractmethod
    async def close(self) -> None:
        """End the session. Outstanding calls fail. May be called again."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # -- the present state

    @property
    def state(self) -> SessionState:
        return self._lifecycle.state

    @property
    def session_id(self) -> int:
        """The id of the present session; 0 when there is none. It stays while the session is suspended."""
        return self._lifecycle.session_id

    @property
    def session_timeout(self) -> float:
        """The negotiated session timeout in seconds (before the first session: the requested one)."""
        return self._lifecycle.timeout

    @property
    def has_multi(self) -> bool:
        """Whether the server carries out multis: servers before 3.4 drop them without an answer."""
        return self._lifecycle.has_multi

    def lease_left(self) -> float:
        """Seconds for which the server cannot have expired this session; negative when it may have, or without one.

        On a healthy connection it moves between half and three quarters of the session timeout.
        """
        return self._lifecycle.lease_left()

    # -- events

    def subscribe(self, listener: Callable[[SessionEvent, int], None]) -> Callable[[], None]:
        return self._lifecycle.subscribe(listener)

    def watch(self, path: str, changed: Callable[[], None]) -> Callable[[], None]:
        return self._watches.add(self._full(path), changed)

    # -- nodes

    async def get(self, path: str, *, watch: bool = False) -> tuple[bytes | None, NodeStat]:
        """Return data (None: null) and stat. Raises NoNode."""
        found: tuple[bytes | None, NodeStat] = await self._call(GetDataRequest(self._full(path), watch), path)
        return found

    async def exists(self, path: str, *, watch: bool = False) -> NodeStat | None:
        """Return the stat, or None; a watch is armed in either case."""
        try:
            stat: NodeStat = await self._call(ExistsRequest(self._full(path), watch), path)
        except NoNode:
            return None
        return stat

    async def children(self, path: str, *, watch: bool = False) -> list[str]:
        """Return the sorted names below `path`. Raises NoNode, and then no watch is armed."""
        names: list[str] = await self._call(GetChildrenRequest(self._full(path), watch), path)
        if None in names:
            raise BadReply(f"ZooKeeper lists a child without a name below {path}")
        return sorted(names)

    async def create(self, path: str, data: bytes | None, *, ephemeral: bool = False) -> None:
        """Create a node with the configured ACL; None is null data. Raises NodeExists, NoNode (for the parent)."""
        await self._call(create_request(self._full(path), data, self._acl, ephemeral=ephemeral), path)

    async def ensure(self, path: str) -> None:
        full = self._full(path)
        connection = await self._lifecycle.connection()
        try:
            await ensure_on(connection, full, self._acl)
        except ServerError as error:
            raise self._translate(error, path, connection) from None

    async def set(self, path: str, data: bytes, *, version: int = -1) -> NodeStat:
        """Overwrite. Raises NoNode, BadVersion."""
        stat: NodeStat = await self._call(SetDataRequest(self._full(path), data, version), path)
        return stat

    async def delete(self, path: str, *, version: int = -1) -> None:
        """Delete. Raises NoNode, BadVersion, NotEmpty."""
        await self._call(protocol.DeleteRequest(path=self._full(path), version=version), path)

    async def multi(self, operations: Sequence[Operation], *, session_id: int | None = None) -> None:
        """All or nothing, on the very session `session_id` if one is named.

        Raises MultiFailed(index, cause), SessionChanged (not sent), NotConnected (not sent), ConnectionLost.
        """
        if not operations:
            return
        request = MultiRequest(encode_operations(operations, self._full, self._acl))
        failure = await self._call(request, operations[0].path, session_id=session_id)
        if failure is not None:
            index, code = failure
            raise MultiFailed(index, error_for(code, operations[min(index, len(operations) - 1)].path))

    # -- nodes that this session owns

    async def create_ephemeral(self, path: str, data: bytes, *, wait: float) -> None:
        """Create for the present session, parents included; returns when this session owns the node with this data.

        A node of another session is waited for up to `wait` seconds, never adopted, then NodeExists is raised. A lost
        reply is resolved by looking at the owner. Raises SessionChanged when the session ends meanwhile, NotConnected
        or ConnectionLost when the connection does not come back. After a cancellation the node may exist:
        `delete_owned` deletes it.
        """
        full = self._full(path)
        await self._lifecycle.connection()
        session_id = self._lifecycle.session_id
        until = self._clock.monotonic() + wait
        changed = asyncio.Event()
        forget = self._watches.add(full, changed.set)
        try:
            while True:
                changed.clear()
                try:
                    if await self._claim(path, full, data, session_id):
                        return
                except ConnectionLost:
                    if self._clock.monotonic() > until + self._lifecycle.timeout:
                        raise
                    continue
                left = until - self._clock.monotonic()
                if left <= 0:
                    raise NodeExists(path)
                await self._wait(changed, min(left, _REREAD_INTERVAL))
        finally:
            forget()

    async def _claim(self, path: str, full: str, data: bytes, session_id: int) -> bool:
        """Make one attempt; return False if another session owns the node (then a watch on it is armed)."""
        connection = await self._lifecycle.connection(session_id)
        while True:
            try:
                await self._ask(connection, create_request(full, data, self._acl, ephemeral=True), path)
                return True
            except NoNode:
                await self.ensure(path.rpartition("/")[0] or "/")
                connection = await self._lifecycle.connection(session_id)
                continue
            except NodeExists:
                pass
            try:
                stat: NodeStat = await self._ask(connection, ExistsRequest(full, watch=True), path)
                if stat.ephemeral_owner != session_id:
                    return False
                await self._correct(connection, path, full, data)
            except (NoNode, BadVersion):
                continue
            return True

    async def _correct(self, connection: ZooKeeperConnection, path: str, full: str, data: bytes) -> None:
        """Write the data if it differs: the session owns the node, from a lost reply or an earlier call."""
        found, stat = await self._ask(connection, GetDataRequest(full, watch=False), path)
        if found != data:
            await self._ask(connection, SetDataRequest(full, data, stat.version), path)

    async def _wait(self, changed: asyncio.Event, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await changed.wait()
        except TimeoutError:
            return  # read again in any case

    async def delete_owned(self, path: str) -> bool:
        """Delete `path` if this very session owns it. False when it is gone or another session owns it.

        Look and delete go down one connection, so that a change of session in between fails the delete. A lost reply
        is resolved by looking again. Raises NotConnected or ConnectionLost when the connection does not come back.
        """
        full = self._full(path)
        await self._lifecycle.connection()
        session_id = self._lifecycle.session_id
        until = self._clock.monotonic() + self._lifecycle.timeout
        asked = False
        while True:
            try:
                connection = await self._lifecycle.connection(session_id)
                stat: NodeStat = await self._ask(connection, ExistsRequest(full, watch=False), path)
                if stat.ephemeral_owner != session_id:
                    return False
                asked = True
                await self._ask(connection, protocol.DeleteRequest(path=full, version=stat.version), path)
            except NoNode:
                return asked
            except SessionChanged:
                return False  # it was deleted with its session
            except BadVersion:
                continue  # a peer wrote into it
            except ConnectionLost:
                if self._clock.monotonic() > until:
                    raise
                continue
            return True

    # -- one attempt

    async def _call(self, request: Any, path: str, *, session_id: int | None = None) -> Any:
        connection = await self._lifecycle.connection(session_id)
        try:
            return await self._ask(connection, request, path)
        except NeverSent:  # the connection ended while the call waited for its turn: wait once more
            connection = await self._lifecycle.connection(session_id)
        try:
            return await self._ask(connection, request, path)
        except NeverSent as error:
            raise NotConnected(str(error)) from None

    async def _ask(self, connection: ZooKeeperConnection, request: Any, path: str) -> Any:
        try:
            return await connection.request(request)
        except ServerError as error:
            raise self._translate(error, path, connection) from None

    def _translate(self, error: ServerError, path: str, connection: ZooKeeperConnection) -> Exception:
        translated = error_for(error.code, path)
        if isinstance(translated, ConnectionLost):
            connection.kill(str(translated))
        return translated

    def _full(self, path: str) -> str:
        """Return the absolute form of a path. Raises InvalidPath for an invalid one."""
        if not path.startswith("/") or (path.endswith("/") and path != "/"):
            raise InvalidPath(path)
        if not path.isascii():
            try:
                path.encode()
            except UnicodeEncodeError:
                raise InvalidPath(path) from None
        return (self._chroot + path).rstrip("/") or "/"
