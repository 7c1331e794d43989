"""Members, the broker and ZooKeeper die and freeze at random for as long as is asked: `make test-long SECONDS=600`."""

from __future__ import annotations

import asyncio
import os
import random
import time
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from consumerd.embedded.processes import DaemonProcess

pytestmark = [pytest.mark.kill, pytest.mark.zookeeper, pytest.mark.long, pytest.mark.asyncio]

SECONDS = float(os.environ.get("CONSUMERD_LONG_SECONDS", "60"))
SEED = int(os.environ.get("CONSUMERD_SEED", str(random.SystemRandom().randrange(1 << 32))))
MOST_MEMBERS = 4


class Torture:
    """The possible next steps; every step leaves at least one running member."""

    def __init__(self, cluster: Any, rng: random.Random) -> None:
        self.cluster = cluster
        self.rng = rng
        self.history: list[str] = []

    @property
    def running(self) -> list[DaemonProcess]:
        return [member for member in self.cluster.members if member.running]

    def note(self, what: str) -> None:
        self.history.append(f"{time.monotonic():.2f} {what}")

    async def step(self) -> None:
        choices = ["freeze", "thaw", "zookeeper"]
        if len(self.running) < MOST_MEMBERS:
            choices += ["join", "join"]
        if len(self.running) > 1:
            choices += ["kill", "stop"]
        await getattr(self, self.rng.choice(choices))()

    async def join(self) -> None:
        self.note("join")
        await self.cluster.member(pause=self.rng.choice([0.0, 0.02, 0.2]))

    async def kill(self) -> None:
        member = self.rng.choice(self.running)
        self.note(f"kill {member.name}")
        member.kill()

    async def stop(self) -> None:
        member = self.rng.choice(self.running)
        self.note(f"stop {member.name}")
        assert await member.stop() == 0, member.child.tail()

    async def freeze(self) -> None:
        """For less or for more than a session lasts."""
        member = self.rng.choice(self.running)
        seconds = self.rng.choice([0.5, 1.5, 3.0, 5.0])
        self.note(f"freeze {member.name} for {seconds}")
        member.pause()
        await asyncio.sleep(seconds)
        member.resume()

    async def thaw(self) -> None:
        """Two at once."""
        frozen = self.rng.sample(self.running, min(2, len(self.running)))
        self.note(f"freeze {[member.name for member in frozen]}")
        for member in frozen:
            member.pause()
        await asyncio.sleep(self.rng.uniform(0.1, 4.0))
        for member in frozen:
            member.resume()

    async def zookeeper(self) -> None:
        seconds = self.rng.choice([0.1, 1.0, 4.0])
        self.note(f"ZooKeeper away for {seconds}")
        self.cluster.zookeeper.kill()
        await asyncio.sleep(seconds)
        await self.cluster.zookeeper.start()


@pytest.mark.timeout(SECONDS * 2 + 180)
async def test_random_faults_lose_nothing(cluster: Any) -> None:
    rng = random.Random(SEED)
    torture = Torture(cluster, rng)
    end = time.monotonic() + SECONDS
    async with cluster.producing():
        await cluster.member()
        while time.monotonic() < end:
            await torture.step()
            await asyncio.sleep(rng.expovariate(1.0))
        await cluster.wait_all_owned(len(torture.running))
    result = await cluster.wait_handled(120.0)
    assert result.sound, (SEED, result, torture.history, cluster.directory)
    assert result.produced == result.distinct
