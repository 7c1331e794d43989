"""Daemons beside an ensemble of three real servers of which one is cut from the others, but not from its clients."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import structlog

from consumerd.base.clock import SystemClock
from consumerd.base.errors import ConsumerdError
from consumerd.base.java import JavaRuntime
from consumerd.base.partition import TopicPartition
from consumerd.net.zk.session import Session
from tests.kill.conftest import PATIENCE, Cluster
from tests.support.server_network import NoNetworkError, ServerNetwork
from tests.support.zookeeper_partition import PartitionedEnsemble
from tests.support.zookeeper_retry import retry

pytestmark = [pytest.mark.zookeeper, pytest.mark.long]

_TICK_MS = 250
#: Of the members' sessions, in seconds.
_SESSION_TIMEOUT = 2.0
#: Longest time that a partition may have no owner, in seconds.
_OWNERLESS = _SESSION_TIMEOUT + 3.0

log = structlog.get_logger(__name__)


@pytest.fixture
def network() -> Iterator[ServerNetwork]:
    """Skips where namespaces are not allowed, also with CI=true: they take root."""
    with contextlib.ExitStack() as stack:
        try:
            made = stack.enter_context(ServerNetwork(3))
        except NoNetworkError as error:
            pytest.skip(f"{error} (this also skips with CI=true)")
        yield made


class PatientCluster(Cluster):
    """Looks again when the connection that it looks through is lost, as it may be while a leader is elected."""

    async def owners(self) -> dict[TopicPartition, int | None]:
        return await retry(super().owners, deadline=PATIENCE)

    async def committed(self) -> dict[TopicPartition, int]:
        return await retry(super().committed, deadline=PATIENCE)

    async def owners_now(self) -> dict[TopicPartition, int | None]:
        """The session that owns each partition. Raises ConsumerdError while the servers do not answer."""
        return await super().owners()


class Scene:
    """Two members connected to server `victim`, a third one anywhere, and a session at the other two servers."""

    def __init__(self, cluster: PatientCluster, ensemble: PartitionedEnsemble, victim: int) -> None:
        self.cluster = cluster
        self.network = ensemble.network
        self._victim = ensemble.host_server(victim)
        self._others = [number for number in range(3) if number != victim]
        self._majority = [ensemble.host_server(number) for number in self._others]
        self._longest: dict[TopicPartition, float] = {}

    async def start(self) -> None:
        """Start the cluster; only `victim` answers clients, until the members have joined."""
        for number in self._others:
            await asyncio.to_thread(self.network.mute_for_clients, number)
        await self.cluster.start()

    async def join(self, stack: AsyncExitStack) -> None:
        """Start the members. Messages must be there already: a topic without any has no partitions."""
        await asyncio.gather(self.cluster.member(), self.cluster.member())
        await self.cluster.wait_all_owned(2)
        assert set((await self.cluster.owners()).values()) <= await self._victim.sessions()
        await asyncio.to_thread(self.network.heal)
        await self.cluster.member()
        await self.cluster.wait_all_owned(3)
        # What the majority has agreed on counts; the cluster's own session may be at the server that is cut off.
        connect = ",".join(server.connect for server in self._majority)
        self.cluster.session = await stack.enter_async_context(
            Session(f"{connect}/kafka", clock=SystemClock(), rng=random.Random(), session_timeout=10.0)
        )

    async def wait_moved(self) -> None:
        """Return when three members own everything, each of which is connected to a server of the majority."""
        async with asyncio.timeout(PATIENCE):
            while True:
                owners = set((await self.cluster.owners()).values())
                connected = set().union(*[await server.sessions() for server in self._majority])
                if len(owners) == 3 and None not in owners and owners <= connected:
                    return
                await asyncio.sleep(0.05)

    @contextlib.asynccontextmanager
    async def watching_owners(self) -> AsyncIterator[None]:
        """Note the longest time without an owner of each partition in the block."""
        task = asyncio.create_task(self._watch_owners())
        try:
            yield
            assert not task.done(), task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _watch_owners(self) -> None:
        absent: dict[TopicPartition, float] = {}
        while True:
            asked = time.monotonic()
            with contextlib.suppress(ConsumerdError):
                for partition, owner in (await self.cluster.owners_now()).items():
                    if owner is None:
                        since = absent.setdefault(partition, asked)
                        self._longest[partition] = max(self._longest.get(partition, 0.0), time.monotonic() - since)
                    else:
                        absent.pop(partition, None)
            await asyncio.sleep(0.05)

    @property
    def longest_ownerless(self) -> float:
        """The longest time that `watching_owners` has seen a partition without an owner, in seconds."""
        return max(self._longest.values(), default=0.0)


# Seconds that a server goes on without the others: fewer than a session has, then all sessions move; or more, then the
# server answers heartbeats of clients whose sessions may end.
@pytest.mark.parametrize("sync_seconds", [1.0, 4.0])
@pytest.mark.parametrize("direction", ["isolate", "mute"])
@pytest.mark.parametrize("role", ["leader", "follower"])
async def test_members_at_a_server_cut_from_the_others_move_to_the_majority(
    role: str, direction: str, sync_seconds: float, network: ServerNetwork, java: JavaRuntime, tmp_path: Path
) -> None:
    config = {"syncLimit": round(sync_seconds * 1000 / _TICK_MS), "maxSessionTimeout": 60_000}
    async with (
        PartitionedEnsemble(tmp_path / "zookeeper", network, java=java, tick_ms=_TICK_MS, config=config) as ensemble,
        AsyncExitStack() as stack,
    ):
        leader = await ensemble.leader()
        victim = leader if role == "leader" else (leader + 1) % 3
        cluster = PatientCluster(tmp_path, ensemble, stack)
        scene = Scene(cluster, ensemble, victim)
        await scene.start()
        async with cluster.producing():
            await scene.join(stack)
            await cluster.goes_on()
            before = set((await cluster.owners()).values())
            async with scene.watching_owners():
                cut = time.monotonic()
                await asyncio.to_thread(getattr(network, direction), victim)
                await scene.wait_moved()
                moved = time.monotonic() - cut
                await cluster.goes_on()
                goes_on = time.monotonic() - cut
                kept = before.intersection((await cluster.owners()).values())
                await asyncio.to_thread(network.heal)
                await cluster.goes_on()
                await cluster.wait_all_owned(3)
        result = await cluster.wait_handled()
        log.info(
            "members_moved", role=role, direction=direction, sync_seconds=sync_seconds, moved=round(moved, 2),
            goes_on=round(goes_on, 2), sessions_kept=len(kept), ownerless=round(scene.longest_ownerless, 2),
            duplicated=result.duplicated, handled=result.handled,
        )  # fmt: skip
        assert result.sound, result
        assert result.produced == result.distinct > 500
        assert scene.longest_ownerless <= _OWNERLESS
