"""Requests per second of one ZooKeeper session: `consumerd.net.zk`, stock aiozk and kazoo on one real server, in turns.

Sequential calls measure the latency of a call, pipelined ones its cost, multis are what commits of offsets are made of.
Each case is measured twice: by the clock, and by the processor time of the clients' process, which does not include the
server and what else the machine does (`--cpu`: only this one).
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import uvloop
from aiozk import ZKClient
from kazoo.client import KazooClient

from benchmarks.race import OURS, Measurement, compared, laps, quiet, rates, show
from consumerd.base.clock import SystemClock
from consumerd.base.ports import Check, Operation, SetData
from consumerd.demo.zookeeper import ZooKeeperServer
from consumerd.net.zk.session import Session

DATA = b"123456789"
PER_MULTI = 100


class Ours:
    """`consumerd.net.zk.session.Session`."""

    def __init__(self, session: Session, paths: list[str]) -> None:
        self._zk, self._paths = session, paths

    async def prepare(self) -> None:
        await self._zk.ensure("/o")
        await asyncio.gather(*(self._zk.create(path, b"0") for path in self._paths))

    async def sequential_set(self) -> None:
        for path in self._paths:
            await self._zk.set(path, DATA)

    async def sequential_get(self) -> None:
        for path in self._paths:
            await self._zk.get(path)

    async def pipelined_set(self) -> None:
        await asyncio.gather(*(self._zk.set(path, DATA) for path in self._paths))

    async def pipelined_get(self) -> None:
        await asyncio.gather(*(self._zk.get(path) for path in self._paths))

    def _multis(self) -> list[list[Operation]]:
        starts = range(0, len(self._paths), PER_MULTI)
        return [[SetData(path, DATA) for path in self._paths[start : start + PER_MULTI]] for start in starts]

    async def multi(self) -> None:
        await asyncio.gather(*(self._zk.multi(operations) for operations in self._multis()))

    async def fenced_multi(self) -> None:
        """As a commit: with a check of an owner node for each offset."""
        calls = []
        for operations in self._multis():
            fenced = [part for operation in operations for part in (Check("/o"), operation)]
            calls.append(self._zk.multi(fenced, session_id=self._zk.session_id))
        await asyncio.gather(*calls)


class Stock:
    """aiozk's own client."""

    def __init__(self, client: Any, paths: list[str]) -> None:
        self._zk, self._paths = client, paths

    async def prepare(self) -> None:
        await self._zk.ensure_path("/o")
        await asyncio.gather(*(self._zk.create(path, b"0") for path in self._paths))

    async def sequential_set(self) -> None:
        for path in self._paths:
            await self._zk.set_data(path, DATA, force=True)

    async def sequential_get(self) -> None:
        for path in self._paths:
            await self._zk.get(path)

    async def pipelined_set(self) -> None:
        await asyncio.gather(*(self._zk.set_data(path, DATA, force=True) for path in self._paths))

    async def pipelined_get(self) -> None:
        await asyncio.gather(*(self._zk.get(path) for path in self._paths))

    async def _multi(self, *, fenced: bool) -> None:
        calls = []
        for start in range(0, len(self._paths), PER_MULTI):
            transaction = self._zk.begin_transaction()
            for path in self._paths[start : start + PER_MULTI]:
                if fenced:
                    transaction.check_version("/o", -1)
                transaction.set_data(path, DATA)
            calls.append(transaction.commit())
        await asyncio.gather(*calls)

    async def multi(self) -> None:
        await self._multi(fenced=False)

    async def fenced_multi(self) -> None:
        await self._multi(fenced=True)


class Kazoo:
    """Threads and blocking calls; its `*_async` calls are the pipelined ones."""

    def __init__(self, client: Any, paths: list[str]) -> None:
        self._zk, self._paths = client, paths

    def prepare(self) -> None:
        self._zk.ensure_path("/o")
        for call in [self._zk.create_async(path, b"0") for path in self._paths]:
            call.get()

    def sequential_set(self) -> None:
        for path in self._paths:
            self._zk.set(path, DATA)

    def sequential_get(self) -> None:
        for path in self._paths:
            self._zk.get(path)

    def pipelined_set(self) -> None:
        for call in [self._zk.set_async(path, DATA) for path in self._paths]:
            call.get()

    def pipelined_get(self) -> None:
        for call in [self._zk.get_async(path) for path in self._paths]:
            call.get()

    def _multi(self, *, fenced: bool) -> None:
        calls = []
        for start in range(0, len(self._paths), PER_MULTI):
            transaction = self._zk.transaction()
            for path in self._paths[start : start + PER_MULTI]:
                if fenced:
                    transaction.check("/o", -1)
                transaction.set_data(path, DATA)
            calls.append(transaction.commit_async())
        for call in calls:
            call.get()

    def multi(self) -> None:
        self._multi(fenced=False)

    def fenced_multi(self) -> None:
        self._multi(fenced=True)


CASES = ("sequential_set", "sequential_get", "pipelined_set", "pipelined_get", "multi", "fenced_multi")


def measure(count: int, rounds: int, *, cpu: bool = False) -> list[Measurement]:
    """Run all cases with `count` nodes."""
    clock = time.process_time if cpu else time.perf_counter
    paths = [f"/o/{number}" for number in range(count)]
    results: list[Measurement] = []
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        stack = AsyncExitStack()
        server = ZooKeeperServer(Path(folder))
        try:
            runner.run(stack.enter_async_context(server))
            ours, stock, kazoo = runner.run(_clients(stack, server.connect))
            subjects: dict[str, Any] = {
                OURS: Ours(ours, paths),
                "aiozk": Stock(stock, paths),
                "kazoo": Kazoo(kazoo, paths),
            }

            def run(call: Callable[[], Awaitable[None] | None]) -> None:
                async def awaited(awaitable: Awaitable[None]) -> None:
                    await awaitable

                if (awaitable := call()) is not None:
                    runner.run(awaited(awaitable))

            for subject in subjects.values():
                run(subject.prepare)
            for case in CASES:
                calls = {name: partial(run, getattr(it, case)) for name, it in subjects.items()}
                label = case.replace("_", " ") + (", processor time" if cpu else "")
                results += compared("zookeeper", label, "k/s", rates(laps(calls, rounds, clock), count / 1000))
        finally:
            runner.run(stack.aclose())
    return results


async def _clients(stack: AsyncExitStack, connect: str) -> tuple[Session, Any, Any]:
    session = await stack.enter_async_context(
        Session(f"{connect}/ours", clock=SystemClock(), rng=random.Random(1), session_timeout=10)
    )
    stock = ZKClient(connect, chroot="/stock", session_timeout=10)
    await stock.start()
    stack.push_async_callback(stock.close)
    kazoo = KazooClient(connect, timeout=10, logger=logging.getLogger("benchmarks.kazoo"))
    await asyncio.to_thread(kazoo.start)
    stack.callback(kazoo.close)
    stack.callback(kazoo.stop)
    await asyncio.to_thread(kazoo.ensure_path, "/kazoo")
    kazoo.chroot = "/kazoo"
    return session, stock, kazoo


def main(arguments: list[str]) -> int:
    """Print the figures; there is no promise to break."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks zookeeper", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5, help="the median of so many counts (default: 5)")
    parser.add_argument("--cpu", action="store_true", help="only processor time of the clients")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    options = parser.parse_args(arguments)
    quiet()
    logging.disable(logging.WARNING)
    results = [] if options.cpu else measure(options.nodes, options.rounds)
    results += measure(options.nodes, options.rounds, cpu=True)
    return show(results, {}, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
