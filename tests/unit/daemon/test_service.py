"""How a running member ends: in order, at the deadline, by a second signal; and what the process then says."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pytest

from consumerd.daemon.service import StopForcedError, _Service
from consumerd.errors import ConsumerdError, HandlerFailedError, ZooKeeperError

pytestmark = pytest.mark.asyncio


class Member:
    """As much of a consumer as the service looks at. It ends when asked to, unless it is `stubborn`."""

    def __init__(self, *, stubborn: bool = False) -> None:
        self.ready = asyncio.Event()
        self.stopping = asyncio.Event()
        self.failure: ConsumerdError | None = None
        self.assigned: list[Any] = []
        self.cancelled = False
        self._stubborn = stubborn

    def request_stop(self, failure: ConsumerdError | None = None) -> None:
        self.failure = self.failure or failure
        self.stopping.set()

    async def run(self) -> None:
        self.ready.set()
        try:
            await (asyncio.Event() if self._stubborn else self.stopping).wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        if self.failure is not None:
            raise self.failure


class Session:
    def __init__(self) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def wait_closed(self) -> None:
        await self.ended


def service(member: Member, session: Session | None = None, stop_timeout: float = 0.05) -> asyncio.Task[None]:
    made = _Service(member, session or Session(), stop_timeout)  # type: ignore[arg-type]
    return asyncio.create_task(made.run())


async def test_a_signal_stops_in_order() -> None:
    member = Member()
    task = service(member)
    await member.ready.wait()
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(task, 5)
    assert not member.cancelled


async def test_the_deadline_forces() -> None:
    member = Member(stubborn=True)
    task = service(member)
    await member.ready.wait()
    os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(StopForcedError, match=r"no end within 0\.05 s"):
        await asyncio.wait_for(task, 5)
    assert member.cancelled


async def test_a_second_signal_forces() -> None:
    member = Member(stubborn=True)
    task = service(member, stop_timeout=60)
    await member.ready.wait()
    os.kill(os.getpid(), signal.SIGTERM)
    await member.stopping.wait()
    os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(StopForcedError, match="second signal, SIGTERM"):
        await asyncio.wait_for(task, 5)


async def test_a_failure_that_cannot_leave_in_order_meets_the_deadline_and_is_what_is_told() -> None:
    member = Member(stubborn=True)
    task = service(member)
    await member.ready.wait()
    member.request_stop(HandlerFailedError("no more"))
    with pytest.raises(HandlerFailedError, match="no more"):
        await asyncio.wait_for(task, 5)
    assert member.cancelled


async def test_a_session_that_ended_for_good_stops_the_member() -> None:
    member, session = Member(), Session()
    task = service(member, session)
    session.ended.set_exception(ZooKeeperError("refused"))
    with pytest.raises(ZooKeeperError, match="refused"):
        await asyncio.wait_for(task, 5)


async def test_a_defect_comes_out() -> None:
    class Broken(Member):
        async def run(self) -> None:
            raise ZeroDivisionError

    with pytest.raises(ExceptionGroup) as caught:
        await asyncio.wait_for(service(Broken()), 5)
    assert caught.group_contains(ZeroDivisionError)
