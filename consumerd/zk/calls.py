"""The calls on nodes, one attempt each: a path and data go out, an answer or a declared error comes back.

Strategy: wait for the live connection (a bounded time), write the request without awaiting in between, await its
answer. So a call is either never sent (`NotConnected`) or its outcome is known or it is `ConnectionLost`; nothing is
repeated behind the caller's back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiozk import protocol

from consumerd.ports import Clock, NodeStat, Operation
from consumerd.zk.connection import NeverSent
from consumerd.zk.errors import (
    BadReply,
    ConnectionLost,
    InvalidPath,
    MultiFailed,
    NoNode,
    NotConnected,
    ServerError,
    error_for,
)
from consumerd.zk.multi import MultiRequest, encode_operations

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiozk.protocol.stat import Stat

    from consumerd.zk.connection import Connection
    from consumerd.zk.lifecycle import Lifecycle

_NO_NODE, _NO_AUTH, _NODE_EXISTS = -101, -102, -110


def node_stat(stat: Stat) -> NodeStat:
    """Ours of aiozk's Stat."""
    return NodeStat(stat.version, stat.ephemeral_owner, stat.num_children, stat.created_zxid, stat.modified)


def create_request(full: str, data: bytes | None, acl: list[Any], *, ephemeral: bool = False) -> Any:
    """A plain create, known to every server since 3.3; `full` is absolute, None is null data."""
    request = protocol.CreateRequest(path=full, data=data, acl=acl)
    request.set_flags(ephemeral=ephemeral)
    return request


async def ensure_on(connection: Connection, full: str, acl: list[Any]) -> None:
    """Create the absolute path and its parents where missing. Raises ServerError, ConnectionLost.

    Looks first: a member that may not write above its own nodes must get by with parents that are there.
    """
    missing: list[str] = []
    while full != "/" and not await _is_there(connection, full):
        missing.append(full)
        full = full.rpartition("/")[0] or "/"
    while missing:
        try:
            await connection.request(create_request(missing[-1], None, acl))
        except ServerError as error:
            if error.code != _NODE_EXISTS:
                raise
        missing.pop()


async def _is_there(connection: Connection, full: str) -> bool:
    try:
        await connection.request(protocol.ExistsRequest(path=full, watch=False))
    except ServerError as error:
        if error.code == _NO_AUTH:
            return True  # servers from 3.9 on ask for read permission, on nodes that exist
        if error.code != _NO_NODE:
            raise
        return False
    return True


class NodeCalls:
    """The calls of `consumerd.ports.ZooKeeper` that are one attempt each."""

    def __init__(self, lifecycle: Lifecycle, *, chroot: str, acl: list[Any], clock: Clock) -> None:
        self._lifecycle = lifecycle
        self._chroot = chroot
        self._acl = acl
        self._clock = clock

    async def get(self, path: str, *, watch: bool = False) -> tuple[bytes | None, NodeStat]:
        """Data (None: null) and stat. Raises NoNode."""
        reply = await self._call(protocol.GetDataRequest(path=self._full(path), watch=watch), path)
        return reply.data, node_stat(reply.stat)

    async def exists(self, path: str, *, watch: bool = False) -> NodeStat | None:
        """Stat, or None; a watch is armed in either case."""
        try:
            reply = await self._call(protocol.ExistsRequest(path=self._full(path), watch=watch), path)
        except NoNode:
            return None
        return node_stat(reply.stat)

    async def children(self, path: str, *, watch: bool = False) -> list[str]:
        """Names below `path`, sorted. Raises NoNode, and then no watch is armed."""
        reply = await self._call(protocol.GetChildren2Request(path=self._full(path), watch=watch), path)
        if None in reply.children:
            raise BadReply(f"ZooKeeper lists a child without a name below {path}")
        return sorted(reply.children)

    async def create(self, path: str, data: bytes | None, *, ephemeral: bool = False) -> None:
        """Create a node with the configured ACL; None is null data. Raises NodeExists, NoNode (for the parent)."""
        await self._call(create_request(self._full(path), data, self._acl, ephemeral=ephemeral), path)

    async def ensure(self, path: str) -> None:
        """Create `path` and its parents, persistent with null data, where missing (golden notes, 4)."""
        full = self._full(path)
        connection = await self._lifecycle.connection()
        try:
            await ensure_on(connection, full, self._acl)
        except ServerError as error:
            raise self._translate(error, path, connection) from None

    async def set(self, path: str, data: bytes, *, version: int = -1) -> NodeStat:
        """Overwrite. Raises NoNode, BadVersion."""
        reply = await self._call(protocol.SetDataRequest(path=self._full(path), data=data, version=version), path)
        return node_stat(reply.stat)

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

    # -- for subclasses

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

    async def _ask(self, connection: Connection, request: Any, path: str) -> Any:
        try:
            return await connection.request(request)
        except ServerError as error:
            raise self._translate(error, path, connection) from None

    def _translate(self, error: ServerError, path: str, connection: Connection) -> Exception:
        translated = error_for(error.code, path)
        if isinstance(translated, ConnectionLost):
            connection.kill(str(translated))
        return translated

    def _full(self, path: str) -> str:
        """Absolute form of a path. Raises InvalidPath for what cannot be one."""
        if not path.startswith("/") or (path.endswith("/") and path != "/"):
            raise InvalidPath(path)
        try:
            path.encode()
        except UnicodeEncodeError:
            raise InvalidPath(path) from None
        return (self._chroot + path).rstrip("/") or "/"
