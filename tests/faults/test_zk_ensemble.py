"""A session on three real servers, which stop one after the other, and one of which only accepts connections."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from consumerd.base.clock import SystemClock
from consumerd.base.java import JavaRuntime
from consumerd.base.ports import Check, Operation, SessionEvent, SessionState, SetData
from consumerd.net.zk.errors import ConnectionLost, NotConnected
from consumerd.net.zk.session import Session
from tests.support.slow_disk import SlowDisk, library_or_skip
from tests.support.zookeeper_ensemble import ZooKeeperEnsemble
from tests.support.zookeeper_retry import retry


def _on_a_loop_of_its_own(main: Coroutine[object, object, None]) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, main).result()


#: Seconds that each sync of a slow disk takes longer.
SLOW = 0.2


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ensemble")


@pytest.fixture(scope="module")
def disks(directory: Path) -> list[SlowDisk]:
    library = library_or_skip(directory)
    folders = [directory / str(number) for number in (1, 2, 3)]
    for folder in folders:
        folder.mkdir()
    return [SlowDisk(library, folder.with_suffix(".control"), folder) for folder in folders]


@pytest.fixture(scope="module")
def ensemble(java: JavaRuntime, directory: Path, disks: list[SlowDisk]) -> Iterator[ZooKeeperEnsemble]:
    servers = ZooKeeperEnsemble(directory, java=java, tick_ms=500, disks=disks)
    _on_a_loop_of_its_own(servers.start())
    yield servers
    for index in range(len(servers.servers)):
        servers.kill(index)


@pytest.mark.zookeeper
async def test_lease_ends_while_a_follower_without_a_leader_still_answers(ensemble: ZooKeeperEnsemble) -> None:
    """The leader is frozen: its followers keep their clients for `syncLimit` ticks, longer than the session lives."""
    leader = await ensemble.leader()
    follower = next(server for index, server in enumerate(ensemble.servers) if index != leader)
    async with Session(follower.connect, clock=SystemClock(), rng=random.Random(1), session_timeout=1.5) as session:
        events: asyncio.Queue[SessionEvent] = asyncio.Queue()
        session.subscribe(lambda event, session_id: events.put_nowait(event))
        ensemble.servers[leader].pause()
        frozen = time.monotonic()
        try:
            async with asyncio.timeout(60):
                while await events.get() is not SessionEvent.SUSPENDED:
                    pass
            lease_end = time.monotonic() + session.lease_left()
            assert lease_end - frozen < 1.5  # with the session, however late this process looks
            await asyncio.sleep(max(0.0, session.lease_left()))
            assert session.lease_left() <= 0
            assert await follower.mode() == "follower"
        finally:
            ensemble.servers[leader].resume()
        async with asyncio.timeout(60):
            while session.state is not SessionState.CONNECTED:
                await events.get()
        assert session.lease_left() > 0


@pytest.mark.zookeeper
async def test_keeps_session_while_each_write_waits_for_slow_disks(
    ensemble: ZooKeeperEnsemble, disks: list[SlowDisk]
) -> None:
    await ensemble.leader()
    async with Session(ensemble.connect, clock=SystemClock(), rng=random.Random(4), session_timeout=10) as session:
        events: list[SessionEvent] = []
        await session.create("/slow", b"")
        session.subscribe(lambda event, session_id: events.append(event))
        for disk in disks:
            disk.seconds = SLOW
        try:
            started = time.monotonic()
            await session.multi([SetData("/slow", b"1"), SetData("/slow", b"2")])
            assert time.monotonic() - started >= SLOW
            await asyncio.gather(*(session.set("/slow", b"%d" % number) for number in range(20)))
        finally:
            for disk in disks:
                disk.seconds = 0.0
        assert (await session.get("/slow"))[0] == b"19"
        assert session.lease_left() > 0
        assert events == []


@pytest.mark.zookeeper
async def test_keeps_session_and_commits_through_a_rolling_restart(ensemble: ZooKeeperEnsemble) -> None:
    await ensemble.leader()
    nodes = [f"/offsets/{number}" for number in range(50)]
    connect = ensemble.connect + "/rolling"
    async with Session(connect, clock=SystemClock(), rng=random.Random(5), session_timeout=10) as session:
        first = session.session_id
        await session.create_ephemeral("/member", b"", wait=0)
        await session.ensure("/offsets")
        for node in nodes:
            await session.create(node, b"")
        commits: list[int] = []

        async def commit() -> None:
            data = b"%d" % len(commits)
            operations: list[Operation] = [Check("/member"), *(SetData(node, data) for node in nodes)]
            await session.multi(operations, session_id=first)

        async def load() -> None:
            while True:
                await retry(commit, deadline=60)
                commits.append(1)
                await asyncio.sleep(0.02)

        loading = asyncio.create_task(load())
        leader = await ensemble.leader()
        order = [leader, *(index for index in range(3) if index != leader)]
        for index in order:
            ensemble.kill(index)
            seen = len(commits)
            async with asyncio.timeout(60):
                while len(commits) < seen + 5:
                    assert not loading.done()
                    await asyncio.sleep(0.02)
            await ensemble.start()
        assert not loading.done()
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)
        assert session.session_id == first
        await retry(lambda: session.get("/"), deadline=60)
        stat = await session.exists("/member")
        assert stat is not None
        assert stat.ephemeral_owner == first
        data = {(await session.get(node))[0] for node in nodes}
        assert len(data) == 1  # all of one commit or of the next: multis are whole


@pytest.mark.zookeeper
async def test_calls_time_out_without_a_quorum_and_succeed_with_it(ensemble: ZooKeeperEnsemble) -> None:
    async with Session(
        ensemble.connect, clock=SystemClock(), rng=random.Random(3), session_timeout=10, wait_connected=0.5
    ) as session:
        first = session.session_id
        for index in (0, 1):
            ensemble.kill(index)
        with pytest.raises((NotConnected, ConnectionLost)):
            await retry(lambda: session.set("/zookeeper/quota", b""), deadline=1.5)
        await ensemble.start()
        await retry(lambda: session.get("/"), deadline=60)
        assert session.session_id == first
