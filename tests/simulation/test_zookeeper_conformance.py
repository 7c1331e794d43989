"""The simulated ZooKeeper and a real one, asked the same: what each says is the same, numbers of Stat included."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiozk import protocol

from consumerd.base.clock import SystemClock
from consumerd.base.errors import ZooKeeperError
from consumerd.base.ports import Check, Create, Delete, SetData
from consumerd.demo.zookeeper import ZooKeeperServer
from consumerd.net.zk.errors import MultiFailed
from consumerd.net.zk.session import Session
from tests.simulation.daemon import ProcessClock
from tests.simulation.kernel import Kernel
from tests.simulation.network import Line, Network
from tests.simulation.process import ProcessLoop
from tests.simulation.zookeeper import SimulatedZooKeeper

SEEDS = range(8)


class Asker:
    """Asks at random, and writes down what comes back. Zxids and times are compared by their order only."""

    def __init__(self, zk: Session, seed: int) -> None:
        self.zk = zk
        self.rng = random.Random(seed)
        self.log: list[Any] = []
        self.paths = ["/a", "/b", "/a/x", "/a/y", "/a/x/1", "/b/z"]
        for path in ["/", *self.paths]:
            zk.watch(path, lambda path=path: self.log.append(("changed", path)))  # type: ignore[misc]

    async def ask(self, times: int) -> list[Any]:
        """So many calls."""
        for _ in range(times):
            await self._note(self.rng.choice([self._write, self._write, self._multi, self._look, self._watch]))
        await self.zk.exists("/")  # all expected events have arrived
        return list(self.log)  # without the session's end, which deletes its nodes in no particular order

    async def _note(self, call: Callable[[], Awaitable[Any]]) -> None:
        try:
            self.log.append(await call())
        except MultiFailed as error:
            self.log.append(("multi failed", error.index, type(error.cause).__name__))
        except ZooKeeperError as error:
            self.log.append(type(error).__name__)

    def _path(self) -> str:
        return self.rng.choice(self.paths)

    async def _write(self) -> Any:
        kind, path, version = self.rng.randrange(4), self._path(), self.rng.choice([-1, 0, 1])
        if kind == 0:
            await self.zk.delete(path, version=version)
            return "deleted"
        if kind == 1:
            return ("set", (await self.zk.set(path, b"s", version=version)).version)
        await self.zk.create(path, self.rng.choice([None, b"", b"c"]), ephemeral=kind == 3)
        return "created"

    async def _multi(self) -> Any:
        operations = []
        for _ in range(self.rng.randrange(1, 5)):
            path, version = self._path(), self.rng.choice([-1, 0, 1])
            kind = self.rng.randrange(5)
            operations.append(
                Create(path, b"m", ephemeral=kind == 1)
                if kind < 2
                else Delete(path, version)
                if kind == 2
                else SetData(path, b"multi", version)
                if kind == 3
                else Check(path, version)
            )
        await self.zk.multi(operations)
        return ("multi", operations)

    async def _look(self) -> Any:
        """The Stats of all nodes; zxids by their order in all of them."""
        connection = await self.zk._lifecycle.connection()
        found = []
        for path in self.paths:
            if await self.zk.exists(path) is not None:
                answer = await connection.request(protocol.GetChildren2Request(path=self.zk._full(path), watch=False))
                data, _ = await self.zk.get(path)
                found.append((path, data, sorted(answer.children), answer.stat))
        zxids = sorted(
            {
                zxid
                for *_, stat in found
                for zxid in (stat.created_zxid, stat.last_modified_zxid, stat.last_modified_children)
            }
        )
        return [
            (
                path,
                data,
                children,
                stat.version,
                stat.child_version,
                stat.acl_version,
                stat.ephemeral_owner == self.zk.session_id,
                stat.ephemeral_owner == 0,
                stat.data_length,
                stat.num_children,
                zxids.index(stat.created_zxid),
                zxids.index(stat.last_modified_zxid),
                zxids.index(stat.last_modified_children),
            )
            for path, data, children, stat in found
        ]

    async def _watch(self) -> Any:
        path, kind = self.rng.choice(["/", *self.paths]), self.rng.randrange(3)
        if kind == 0:
            return ("children", await self.zk.children(path, watch=True))
        if kind == 1:
            return ("data", (await self.zk.get(path, watch=True))[0])
        return ("exists", (await self.zk.exists(path, watch=True)) is not None)


def simulated(seed: int, times: int) -> list[Any]:
    kernel = Kernel()
    network = Network(kernel, random.Random(seed))
    SimulatedZooKeeper(kernel, network, line=Line())
    loop = ProcessLoop(kernel, network, "client")

    async def work() -> list[Any]:
        async with Session("zookeeper:2181/root", clock=ProcessClock(loop), rng=random.Random(1)) as zk:
            return await Asker(zk, seed).ask(times)

    log = loop.play(work())
    loop.unwind()
    return log


@pytest.mark.parametrize("seed", SEEDS)
def test_real_server_responds_alike(seed: int, zk_root: str, zookeeper: ZooKeeperServer) -> None:
    async def work() -> list[Any]:
        async with Session(f"{zk_root}/{seed}", clock=SystemClock(), rng=random.Random(1)) as zk:
            return await Asker(zk, seed).ask(200)

    expected = asyncio.run(work())
    assert simulated(seed, 200) == expected
