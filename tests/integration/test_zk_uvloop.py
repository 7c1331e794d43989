"""The session on uvloop's event loop and transports, where it is installed."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from consumerd.base.clock import SystemClock
from consumerd.base.ports import SessionEvent
from consumerd.net.zk.errors import NotConnected
from consumerd.net.zk.session import Session
from consumerd.testing.fault_proxy import FaultProxy
from tests.conftest import TlsFiles

uvloop = pytest.importorskip("uvloop")


def run(main: Coroutine[Any, Any, None]) -> None:
    def in_thread() -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(in_thread).result()


async def comes_back_and_closes(port: int, context: ssl.SSLContext | None) -> None:
    async with FaultProxy("127.0.0.1", port) as proxy:
        connect = f"{proxy.connect}/uvloop"
        events: asyncio.Queue[SessionEvent] = asyncio.Queue()
        async with Session(
            connect, clock=SystemClock(), rng=random.Random(1), session_timeout=4, ssl=context
        ) as session:
            session.subscribe(lambda event, session_id: events.put_nowait(event))
            await session.create("/large", bytes(500_000))
            for rst in (False, True):
                proxy.cut(rst=rst)
                assert await asyncio.wait_for(events.get(), 60) is SessionEvent.SUSPENDED
                assert await asyncio.wait_for(events.get(), 60) is SessionEvent.RECONNECTED
            replies = await asyncio.gather(*(session.get("/large") for _ in range(5)))
            assert {len(data or b"") for data, _ in replies} == {500_000}
            proxy.refuse()
            proxy.cut()
        with pytest.raises(NotConnected):
            await session.get("/large")
    assert len(asyncio.all_tasks()) == 1


def test_works_on_uvloop(zookeeper: Any) -> None:
    run(comes_back_and_closes(zookeeper.port, None))


def test_works_on_uvloop_over_tls(zookeeper_factory: Any, tls_files: TlsFiles) -> None:
    async def scenario() -> None:
        server = await zookeeper_factory(tls=tls_files.zookeeper)
        await comes_back_and_closes(server.secure_port, ssl.create_default_context(cafile=str(tls_files.authority)))

    run(scenario())
