"""Ownership and commits of a session under faults, against a real server."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest

from consumerd.base.ports import Check, Create, Delete, SetData
from consumerd.net.zk import (
    ConnectionLost,
    InvalidPath,
    MultiFailed,
    NodeExists,
    NoNode,
    Session,
    SessionChanged,
    base_session,
)
from consumerd.testing.fault_proxy import Direction
from consumerd.wire.registry.errors import NameRefusedError
from consumerd.wire.registry.paths import check_name
from tests.support.zookeeper_retry import retry

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from consumerd.base.ports import Operation
    from tests.faults.conftest import ZkRig

pytestmark = pytest.mark.asyncio

DELETE, MULTI = 2, 14


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


async def test_corrects_its_own_node_with_other_data(zk: ZkRig) -> None:
    session = await zk.session()
    await session.create_ephemeral("/x", b"stream-0", wait=0)
    await session.create_ephemeral("/x", b"stream-1", wait=0)
    assert (await zk.observer.get("/x"))[0] == b"stream-1"


async def test_reads_the_node_after_a_delete_without_a_response(zk: ZkRig) -> None:
    session = await zk.session()
    await session.create_ephemeral("/x", b"", wait=0)
    zk.requests.clear()
    lost = zk.once(lambda direction, frame: direction is Direction.TO_CLIENT and DELETE in zk.requests, zk.cut_instead)
    assert await session.delete_owned("/x")
    assert lost.is_set()
    assert await zk.owner("/x") is None
    assert not await session.delete_owned("/x")


@pytest.mark.parametrize("wait", [0.0, 5.0])
async def test_claim_ends_with_its_session(zk: ZkRig, wait: float) -> None:
    mine, other = await zk.session(), await zk.session()
    first = mine.session_id
    await other.create_ephemeral("/owner", b"", wait=0)
    zk.proxy.stall(Direction.TO_CLIENT)
    zk.proxy.refuse()
    claim = asyncio.create_task(mine.create_ephemeral("/owner", b"", wait=wait))
    delete = asyncio.create_task(mine.delete_owned("/owner"))
    zk.proxy.cut()
    await zk.expire(mine)
    zk.proxy.heal()
    with pytest.raises(SessionChanged) as error:
        await claim
    assert error.value.expected == first
    assert await delete is False
    assert await zk.owner("/owner") == other.session_id


# -- commits


def offsets(count: int, data: bytes) -> list[list[Operation]]:
    nodes = [f"/offsets/t/{i // 100}-{i % 100}" for i in range(count)]
    return [[SetData(node, data) for node in nodes[start : start + 100]] for start in range(0, count, 100)]


async def make_offsets(session: Session, count: int) -> None:
    await session.ensure("/offsets/t")
    await session.create("/owner", b"", ephemeral=True)
    for multi in offsets(count, b"0"):
        await session.multi([Create(operation.path, b"0") for operation in multi])


async def commit(session: Session, count: int, data: bytes) -> None:
    fence: list[Operation] = [Check("/owner")]
    await asyncio.gather(*(session.multi(fence + multi) for multi in offsets(count, data)))


async def stored(zk: ZkRig, count: int) -> set[bytes | None]:
    calls = [zk.observer.get(operation.path) for multi in offsets(count, b"") for operation in multi]
    return {data for data, _ in await asyncio.gather(*calls)}


async def test_commits_a_thousand_offsets_in_ten_requests(zk: ZkRig) -> None:
    session = await zk.session()
    await make_offsets(session, 1000)
    zk.requests.clear()
    await commit(session, 1000, b"123456789")
    assert zk.requests.count(MULTI) == 10
    assert await stored(zk, 1000) == {b"123456789"}


async def test_commit_is_complete_after_a_retry_over_a_lost_connection(zk: ZkRig) -> None:
    session = await zk.session()
    await make_offsets(session, 1000)
    zk.once(lambda direction, frame: direction is Direction.TO_CLIENT and len(frame) > 7000, zk.cut_instead)
    with pytest.raises(ConnectionLost):
        await commit(session, 1000, b"777")
    await retry(lambda: commit(session, 1000, b"777"), deadline=60)
    assert await stored(zk, 1000) == {b"777"}


async def test_rejects_a_whole_commit_if_one_owner_node_is_missing(zk: ZkRig) -> None:
    session = await zk.session()
    await make_offsets(session, 100)
    await zk.observer.delete("/owner")
    with pytest.raises(MultiFailed) as error:
        await commit(session, 100, b"5")
    assert (error.value.index, type(error.value.cause)) == (0, NoNode)
    assert await stored(zk, 100) == {b"0"}


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
