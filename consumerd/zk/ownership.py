"""Nodes that this very session owns: made without adopting anybody's, deleted without touching anybody's.

Strategy: ownership is the node's `ephemeralOwner`, nothing else; the path proves nothing, since peers create and delete
by path. A call is bound to the session it began with: it uses only connections of that session and raises
SessionChanged when it is over. A lost reply is resolved by looking: ours means that it was carried out.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiozk import protocol

from consumerd.zk.calls import NodeCalls, create_request
from consumerd.zk.errors import BadVersion, ConnectionLost, NodeExists, NoNode, SessionChanged

if TYPE_CHECKING:
    from consumerd.ports import Clock
    from consumerd.zk.connection import Connection
    from consumerd.zk.lifecycle import Lifecycle
    from consumerd.zk.watches import WatchTable

#: A deleted node whose watch event was lost is noticed after so many seconds.
_LOOK_AGAIN = 1.0


class OwnershipCalls(NodeCalls):
    """`create_ephemeral` and `delete_owned` of `consumerd.ports.ZooKeeper`."""

    def __init__(
        self, lifecycle: Lifecycle, watches: WatchTable, *, chroot: str, acl: list[object], clock: Clock
    ) -> None:
        super().__init__(lifecycle, chroot=chroot, acl=acl, clock=clock)
        self._watches = watches

    async def create_ephemeral(self, path: str, data: bytes, *, wait: float) -> None:
        """Create for the present session, parents included; returns when this session owns the node with this data.

        A node of another session is waited for up to `wait` seconds, never adopted, then NodeExists is raised. A lost
        reply is resolved by looking at the owner. Raises SessionChanged when the session ends meanwhile, NotConnected
        or ConnectionLost when the connection does not come back. After a cancellation the node may exist:
        `delete_owned` clears it away.
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
                await self._wait(changed, min(left, _LOOK_AGAIN))
        finally:
            forget()

    async def _claim(self, path: str, full: str, data: bytes, session_id: int) -> bool:
        """One attempt; False when the node is somebody else's (then a watch on it is armed)."""
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
                found = await self._ask(connection, protocol.ExistsRequest(path=full, watch=True), path)
                if found.stat.ephemeral_owner != session_id:
                    return False
                await self._correct(connection, path, full, data)
            except (NoNode, BadVersion):
                continue
            return True

    async def _correct(self, connection: Connection, path: str, full: str, data: bytes) -> None:
        """The node is ours, from a lost reply or an earlier call: make it say what was asked for."""
        found = await self._ask(connection, protocol.GetDataRequest(path=full, watch=False), path)
        if found.data != data:
            await self._ask(connection, protocol.SetDataRequest(path=full, data=data, version=found.stat.version), path)

    async def _wait(self, changed: asyncio.Event, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await changed.wait()
        except TimeoutError:
            return  # look again all the same

    async def delete_owned(self, path: str) -> bool:
        """Delete `path` if this very session owns it. False when it is gone or somebody else's.

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
                found = await self._ask(connection, protocol.ExistsRequest(path=full, watch=False), path)
                if found.stat.ephemeral_owner != session_id:
                    return False
                asked = True
                await self._ask(connection, protocol.DeleteRequest(path=full, version=found.stat.version), path)
            except NoNode:
                return asked
            except SessionChanged:
                return False  # it went with its session
            except BadVersion:
                continue  # a peer wrote into it
            except ConnectionLost:
                if self._clock.monotonic() > until:
                    raise
                continue
            return True
