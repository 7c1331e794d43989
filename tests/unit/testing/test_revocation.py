"""Revoking partitions of a working handler, and killing it."""

from __future__ import annotations

import asyncio

import pytest

from consumerd.handlers import Batch
from consumerd.testing import ContractError, HandlerFactory, HarnessError


class Stuck:
    """Marks the first message, then waits. What it does when it is cancelled is up to the test."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.ends: list[str] = []
        self.deaf = False
        self.helper: asyncio.Task[bool] | None = None

    async def handle(self, batch: Batch) -> None:
        batch.mark(1)
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.ends.append("cancelled")
            if not self.deaf:
                raise
            await self.go.wait()
        self.ends.append("returned")


async def test_cancels_at_the_deadline_and_commits_marked_messages(
    consumerd_handler: HandlerFactory,
) -> None:
    async with consumerd_handler(Stuck) as harness:
        work = await harness.begin([b"a", b"b"])
        revocation = await harness.revoke()
        assert revocation.cancelled
        assert revocation.position == harness.committed() == 11
        assert revocation.left_running == ()
        assert harness.handler.ends == ["cancelled"]
        assert harness.position() is None
        with pytest.raises(HarnessError, match="its partition was revoked"):
            await work.result()
        (attempt,) = harness.attempts
        assert isinstance(attempt.error, asyncio.CancelledError)
        assert attempt.handled == 1


async def test_waits_for_the_handler_within_the_grace_period(consumerd_handler: HandlerFactory) -> None:
    async with consumerd_handler(Stuck) as harness:
        work = await harness.begin([b"a", b"b"])
        asyncio.get_running_loop().call_later(0.005, harness.handler.go.set)
        revocation = await harness.revoke(grace=10.0)
        assert not revocation.cancelled
        assert revocation.position == harness.committed() == 22
        assert (await work.result()).next_offset == 22


async def test_drops_queued_batches_at_once(consumerd_handler: HandlerFactory) -> None:
    async with consumerd_handler(Stuck) as harness:
        await harness.begin([b"a"])
        behind = asyncio.create_task(harness.deliver([b"b"]))
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(0.005, harness.handler.go.set)
        revocation = await harness.revoke(grace=10.0)
        assert not revocation.cancelled
        assert revocation.position == 11
        with pytest.raises(HarnessError):
            await behind
        assert harness.handled == [b"a"]


async def test_commits_nothing_after_a_lost_session(consumerd_handler: HandlerFactory) -> None:
    async with consumerd_handler(Stuck) as harness:
        harness.handler.go.set()
        await harness.deliver([b"a"])
        revocation = await harness.revoke(commit=False)
        assert revocation.position == 11
        assert not revocation.cancelled
        assert harness.committed() is None
        assert [delivery.payloads for delivery in await harness.redeliver()] == [(b"a",)]


async def test_rejects_a_handler_that_ignores_cancellation(consumerd_handler: HandlerFactory) -> None:
    async with consumerd_handler(Stuck, patience=0.02) as harness:
        harness.handler.deaf = True
        work = await harness.begin([b"a"])
        with pytest.raises(
            ContractError, match=r"0\.02 s after its cancellation the handler still holds <Handover t/0-0"
        ):
            await harness.revoke()
        harness.handler.go.set()
        await work.result()


async def test_reports_tasks_that_outlive_the_handover(consumerd_handler: HandlerFactory) -> None:
    class Careless(Stuck):
        async def handle(self, batch: Batch) -> None:
            self.helper = asyncio.create_task(self.go.wait(), name="helper")
            await self.helper_shielded()

        async def helper_shielded(self) -> None:
            assert self.helper is not None
            await asyncio.shield(self.helper)

    class Careful(Careless):
        async def helper_shielded(self) -> None:
            assert self.helper is not None
            await self.helper

    for kind, left in ((Careless, ["helper"]), (Careful, [])):
        async with consumerd_handler(kind) as harness:
            await harness.begin([b"a"])
            await asyncio.sleep(0)
            revocation = await harness.revoke()
            assert [task.get_name() for task in revocation.left_running] == left
            harness.handler.go.set()
            await asyncio.wait([harness.handler.helper])


async def test_crash_cancels_all_deliveries(consumerd_handler: HandlerFactory) -> None:
    async with consumerd_handler(Stuck) as harness:
        works = [await harness.begin([b"a"], partition=number) for number in range(3)]
        dead = await harness.crash()
        assert dead.ends == ["cancelled"] * 3
        assert all(work.done for work in works)
        assert harness.committed() is None
        assert not harness.started


async def test_stop_cancels_after_the_grace_period(consumerd_handler: HandlerFactory) -> None:
    harness = consumerd_handler(Stuck)
    await harness.start()
    await harness.begin([b"a", b"b"])
    await harness.stop(grace=0.01)
    assert harness.handler.ends == ["cancelled"]
    assert harness.committed() == 11


async def test_revokes_an_unclaimed_partition(consumerd_handler: HandlerFactory) -> None:
    async with consumerd_handler(Stuck) as harness:
        revocation = await harness.revoke("other")
        assert (revocation.cancelled, revocation.position) == (False, None)
        assert harness.committed("other") is None
