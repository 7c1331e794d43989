"""The harness in tests that are not async."""

from __future__ import annotations

import asyncio

from consumerd.handlers import Batch, HandlerContext
from consumerd.testing import CoroutineRunner, HandlerFactory


def test_runs_on_one_loop_between_calls(consumerd_handler: HandlerFactory, consumerd_run: CoroutineRunner) -> None:
    class Busy:
        def __init__(self) -> None:
            self.calls: list[str] = []

        async def start(self, context: HandlerContext) -> None:
            self.task = asyncio.create_task(self.work())

        async def work(self) -> None:
            await asyncio.sleep(0)
            self.calls.append("work")

        async def handle(self, batch: Batch) -> None:
            await self.task
            self.calls += [payload.decode() for payload in batch]

        async def stop(self) -> None:
            self.calls.append("stop")

    harness = consumerd_handler(Busy)
    consumerd_run(harness.start())
    consumerd_run(harness.deliver([b"a"]))
    consumerd_run(harness.stop())
    assert harness.handler.calls == ["work", "a", "stop"]
    assert harness.committed() == 11
