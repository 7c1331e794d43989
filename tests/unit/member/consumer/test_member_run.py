"""The run of a member in a task of its own: how it ends, and what is kept of its failure."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from consumerd.base.errors import ConsumerdError, ZooKeeperError
from consumerd.member.consumer.consumer import GroupConsumer
from consumerd.member.consumer.member_run import MemberRun
from consumerd.net.zk.session import Session as ZooKeeperSession
from tests.support.waiting import turns


class Consumer:
    """A member that leaves when asked to, or hangs."""

    def __init__(self, *, hangs: bool = False) -> None:
        self.ready, self.stopping, self.left = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.failure: ConsumerdError | None = None
        self.defect: Exception | None = None
        self.hangs = hangs

    def request_stop(self, failure: ConsumerdError | None = None) -> None:
        self.failure = self.failure or failure
        self.stopping.set()
        if not self.hangs:
            self.left.set()

    async def run(self) -> None:
        await self.left.wait()
        if self.defect is not None:
            raise self.defect
        if self.failure is not None:
            raise self.failure


class Session:
    """A session that ends when asked to. A caller of `wait_closed` takes some turns to be cancelled."""

    def __init__(self) -> None:
        self.failure: ConsumerdError | None = None
        self.closed = asyncio.Event()
        self.waiters = 0

    async def wait_closed(self) -> None:
        self.waiters += 1
        try:
            await self.closed.wait()
        finally:
            await turns(10)
            self.waiters -= 1
        if self.failure is not None:
            raise self.failure


class Setup:
    """A run that has begun."""

    def __init__(self, *, hangs: bool = False, with_session: bool = True, stop_timeout: float = 60.0) -> None:
        self.ends: list[BaseException | None] = []
        self.waiters_at_end = 0
        self.consumer, self.session = Consumer(hangs=hangs), Session()
        self.run = MemberRun(
            cast("GroupConsumer", self.consumer),
            cast("ZooKeeperSession", self.session) if with_session else None,
            stop_timeout=stop_timeout,
            ended=self.end,
        )

    def end(self, failure: BaseException | None) -> None:
        self.ends.append(failure)
        self.waiters_at_end = self.session.waiters


@pytest.mark.parametrize("with_session", [True, False])
async def test_leaves_in_order(with_session: bool) -> None:
    setup = Setup(with_session=with_session)
    await turns(10)
    assert setup.ends == []
    assert setup.run.failure is None
    assert setup.session.waiters == int(with_session)
    await setup.run.leave()
    assert setup.ends == [None]
    assert setup.run.failure is None
    assert setup.waiters_at_end == 0  # its watchers have ended before


@pytest.mark.parametrize("defect", [False, True])
async def test_keeps_the_failure_of_the_member(defect: bool) -> None:
    """A defect comes out of its run, without a reason to stop."""
    setup = Setup()
    if defect:
        failure: Exception = KeyError("a defect")
        setup.consumer.defect = failure
        setup.consumer.request_stop()
    else:
        failure = ConsumerdError("a handler failed")
        setup.consumer.request_stop(failure)
    await setup.run.wait_ready()
    assert setup.ends == [failure]
    assert setup.run.failure is failure
    await turns(10)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_ready_member_does_not_have_to_end() -> None:
    setup = Setup()
    waiting = asyncio.create_task(setup.run.wait_ready())
    await turns(10)
    assert not waiting.done()
    setup.consumer.ready.set()
    await waiting
    assert setup.ends == []
    await setup.run.leave()


async def test_session_that_ended_for_good_stops_the_member() -> None:
    setup = Setup()
    setup.session.failure = ZooKeeperError("the credentials were refused")
    setup.session.closed.set()
    await setup.run.wait_ready()
    assert setup.ends == [setup.session.failure]


async def test_closed_session_alone_does_not_stop_the_member() -> None:
    setup = Setup()
    setup.session.closed.set()
    await turns(10)
    await turns(10)
    assert not setup.consumer.stopping.is_set()
    await setup.run.leave()


async def test_limits_the_time_of_leaving_only() -> None:
    running = Setup(with_session=False, stop_timeout=0.0)
    await turns(10)
    assert running.ends == []
    await running.run.leave()
    slow = Setup(hangs=True)
    failure = ConsumerdError("a handler failed")
    slow.consumer.request_stop(failure)
    await turns(10)
    assert slow.ends == []
    slow.consumer.left.set()
    await slow.run.wait_ready()
    assert slow.ends == [failure]


async def test_member_that_does_not_leave_is_cancelled_and_its_failure_kept() -> None:
    setup = Setup(hangs=True, stop_timeout=0.01)
    failure = ConsumerdError("the disk is full")
    setup.consumer.request_stop(failure)
    async with asyncio.timeout(60):
        await setup.run.wait_ready()
    assert setup.ends == [failure]


async def test_cancelled_leave_ends_the_member_at_once() -> None:
    setup = Setup(hangs=True)
    leaving = asyncio.create_task(setup.run.leave())
    await asyncio.sleep(0)
    leaving.cancel()
    async with asyncio.timeout(60):
        with pytest.raises(asyncio.CancelledError):
            await leaving
    assert setup.ends == [None]
