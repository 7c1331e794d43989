"""A ZooKeeper session behind a fault proxy, and an observer that talks to the server directly."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest_asyncio

from consumerd.base.clock import SystemClock
from consumerd.base.ports import SessionEvent
from consumerd.demo.zookeeper import ZooKeeperServer
from consumerd.net.zk.connect_string import parse_connect_string
from consumerd.net.zk.session import Session
from consumerd.testing.fault_proxy import Direction, FaultProxy


def _code_file(task: asyncio.Task[Any]) -> str:
    code = getattr(task.get_coro(), "cr_code", None)
    return code.co_filename if code else ""


def opcode(frame: bytes) -> int | None:
    """Of a request with its length; None for a handshake (whose first word is the protocol version 0)."""
    length, xid, code = struct.unpack_from("!iii", frame)
    return None if xid == 0 and length >= 44 else code


class ZkRig:
    """Sessions through `proxy`; `observer` sees the truth. Everything is closed at the end of the test."""

    def __init__(self, root: str, stack: AsyncExitStack) -> None:
        self.hosts, self.chroot = root.split("/", maxsplit=1)[0], "/" + root.split("/", 1)[1]
        host = parse_connect_string(self.hosts).hosts[0]
        self.proxy = FaultProxy(host.name, host.port, frames=True, hook=self._hook)
        self.events: asyncio.Queue[tuple[SessionEvent, int]] = asyncio.Queue()
        self.requests: list[int | None] = []
        self.rules: list[Callable[[Direction, bytes], bytes]] = []
        self._stack = stack
        self.observer: Session

    def _hook(self, direction: Direction, frame: bytes) -> bytes:
        if direction is Direction.TO_SERVER:
            self.requests.append(opcode(frame))
        for rule in list(self.rules):
            frame = rule(direction, frame)
        return frame

    async def open(self) -> None:
        await self._stack.enter_async_context(self.proxy)
        self.observer = await self._stack.enter_async_context(
            Session(self.hosts + self.chroot, clock=SystemClock(), rng=random.Random(2))
        )

    async def session(self, timeout: float = 15.0, *, hosts: str | None = None, **options: Any) -> Session:
        """A started session whose events go to `events`.

        Its default timeout is long enough for a busy machine; a test that waits for heartbeats or expiry gives less.
        """
        defaults: dict[str, Any] = {"clock": SystemClock(), "rng": random.Random(1), "session_timeout": timeout}
        session = Session((hosts or self.proxy.connect) + self.chroot, **(defaults | options))
        session.subscribe(lambda event, session_id: self.events.put_nowait((event, session_id)))
        return await self._stack.enter_async_context(session)

    async def event(self, wanted: SessionEvent, within: float = 60.0) -> int:
        """Wait for an event, whatever came before it; the session id that came with it."""
        async with asyncio.timeout(within):
            while True:
                event, session_id = await self.events.get()
                if event is wanted:
                    return session_id

    def once(self, when: Callable[[Direction, bytes], bool], act: Callable[[bytes], bytes]) -> asyncio.Event:
        """Let `act` replace the first frame for which `when` holds; the event says that it happened."""
        done = asyncio.Event()

        def rule(direction: Direction, frame: bytes) -> bytes:
            if done.is_set() or not when(direction, frame):
                return frame
            done.set()
            self.rules.remove(rule)
            return act(frame)

        self.rules.append(rule)
        return done

    def session_tasks(self) -> set[asyncio.Task[Any]]:
        """The tasks that belong to sessions."""
        return {task for task in asyncio.all_tasks() if "/consumerd/net/zk/" in _code_file(task)}

    async def owner(self, path: str) -> int | None:
        """The session that owns a node, as the server sees it; None when there is no node."""
        stat = await self.observer.exists(path)
        return stat and stat.ephemeral_owner


@pytest_asyncio.fixture
async def zk(zk_root: str, zookeeper: ZooKeeperServer) -> AsyncIterator[ZkRig]:
    """A rig on the shared server, with a chroot of this test's own."""
    async with AsyncExitStack() as stack:
        rig = ZkRig(zk_root, stack)
        await rig.open()
        yield rig
