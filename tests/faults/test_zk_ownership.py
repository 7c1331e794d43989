"""Ownership of a session under faults, against a real server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import pytest

from consumerd.base.ports import Create, Delete
from consumerd.net.zk import (
    InvalidPath,
    NodeExists,
    base_session,
)
from consumerd.testing.fault_proxy import Direction
from consumerd.wire.registry.errors import NameRefusedError
from consumerd.wire.registry.paths import check_name
from tests.support.zookeeper_retry import retry

if TYPE_CHECKING:
    from tests.faults.conftest import ZkRig

pytestmark = pytest.mark.asyncio

# -- names


async def test_server_refuses_the_names_that_we_refuse(zk: ZkRig) -> None:
    """Java looks at UTF-16 units: it takes a character above U+FFFF for two surrogates, which it refuses."""
    session = await zk.session()
    edges = (
        0x1F,
        0x20,
        0x7E,
        0x7F,
        0x9F,
        0xA0,
        0xD7FF,
        0xE000,
        0xF8FF,
        0xF900,
        0xFFEF,
        0xFFF0,
        0xFFFD,
        0x10000,
        0x1F600,
    )
    for name in [f"a{chr(code)}" for code in edges]:
        try:
            check_name("topic", name)
            ours = True
        except NameRefusedError:
            ours = False
        try:
            await session.create(f"/{name}", b"")
            theirs = True
        except InvalidPath:
            theirs = False
        assert (name, ours) == (name, theirs)


# -- ownership


async def test_claim_waits_for_another_owner_and_never_adopts_its_node(
    zk: ZkRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base_session, "_REREAD_INTERVAL", 3600.0)
    mine, other = await zk.session(), await zk.session()
    await other.create_ephemeral("/owners/t/0-0", b"other", wait=0)
    started = time.monotonic()
    with pytest.raises(NodeExists):
        await mine.create_ephemeral("/owners/t/0-0", b"mine", wait=0.3)
    assert time.monotonic() - started >= 0.3
    assert not await mine.delete_owned("/owners/t/0-0")
    waiting = asyncio.create_task(mine.create_ephemeral("/owners/t/0-0", b"mine", wait=60))
    await asyncio.sleep(0.1)
    assert await zk.owner("/owners/t/0-0") == other.session_id
    assert await other.delete_owned("/owners/t/0-0")
    await waiting  # by the watch: it looks again after an hour
    assert await zk.owner("/owners/t/0-0") == mine.session_id
    assert len(mine._watches) == 0
    data, stat = await zk.observer.get("/owners/t")
    assert (data, stat.ephemeral_owner) == (None, 0)


async def test_claim_waits_until_the_session_of_a_crashed_owner_ends(zk: ZkRig) -> None:
    mine, other = await zk.session(), await zk.session(2.0)
    await other.create_ephemeral("/owner", b"", wait=0)
    assert other._task is not None
    other._task.cancel()  # as by SIGKILL: nothing is said to the server
    started = time.monotonic()
    await mine.create_ephemeral("/owner", b"", wait=60)
    assert time.monotonic() - started > 0.5
    assert await zk.owner("/owner") == mine.session_id


async def test_reads_the_node_after_a_create_without_a_response(zk: ZkRig) -> None:
    session = await zk.session()
    await session.ensure("/owners")
    lost = zk.once(lambda direction, frame: direction is Direction.TO_CLIENT and b"/owners/x" in frame, zk.cut_instead)
    await session.create_ephemeral("/owners/x", b"data", wait=0)
    assert lost.is_set()
    assert await zk.owner("/owners/x") == session.session_id
    assert (await zk.observer.get("/owners/x"))[1].version == 0


# -- cancellation


async def test_session_works_after_calls_are_cancelled_at_any_moment(zk: ZkRig) -> None:
    """Ownership calls are cancelled after 0, 1, 2 ... steps of the loop; the next one must see the truth."""
    session = await zk.session()
    calls: list[Callable[[], Awaitable[Any]]] = [
        lambda: session.create_ephemeral("/a/b/c", b"x", wait=1),
        lambda: session.delete_owned("/a/b/c"),
        lambda: session.multi([Create("/m", None), Delete("/m")]),
        lambda: retry(lambda: session.children("/", watch=True), deadline=1),
    ]
    for steps in range(25):
        for call in calls:
            task = asyncio.ensure_future(call())
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    await session.create_ephemeral("/a/b/c", b"x", wait=60)
    assert await zk.owner("/a/b/c") == session.session_id
    assert await session.delete_owned("/a/b/c")
    assert await session.exists("/m") is None
    assert len(session._watches) == 0
    assert zk.proxy.accepted == 1
