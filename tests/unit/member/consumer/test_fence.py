"""When messages may be delivered: while the lease lasts, and what happens when it ends."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from typing import cast

import pytest
from structlog.testing import capture_logs

from consumerd.group.coordinated import CoordinatedMember
from consumerd.member.consumer.fence import FIXED_SESSION, Fence, FixedLease, GroupLease
from consumerd.testing import FakeClock


@dataclass
class Member:
    """What a lease asks of a member in a group that a broker coordinates."""

    session_id: int = 7
    lease_until: float = 1010.0


def made(margin: float = 1.0, session_timeout: float = 10.0) -> tuple[Fence, Member, FakeClock]:
    member, clock = Member(), FakeClock(1000.0)
    lease = GroupLease(cast("CoordinatedMember", member), clock, session_timeout)
    return Fence(lease, clock, margin), member, clock


async def test_allows_its_session_until_the_margin_before_the_end_of_the_lease() -> None:
    fence, member, clock = made()
    assert fence.session_id == 7
    assert (fence.allows(7), fence.allows(6)) == (True, False)
    clock.jump(8.9)
    assert fence.allows(7)
    clock.jump(0.1)
    assert not fence.allows(7)
    member.lease_until = 1030.0
    assert fence.allows(7)


async def test_margin_is_at_most_a_quarter_of_the_session_timeout() -> None:
    assert made(margin=1.0, session_timeout=10.0)[0].margin == 1.0
    assert made(margin=5.0, session_timeout=10.0)[0].margin == 2.5


async def test_reports_each_end_of_a_lease_once() -> None:
    fence, member, clock = made()
    expired: list[int] = []
    with capture_logs() as logs:
        watching = asyncio.create_task(fence.watch(expired.append))
        await clock.advance(8.9)
        assert expired == []
        await clock.advance(1.0)
        assert expired == [7]
        await clock.advance(20.0)
        assert expired == [7]
        member.lease_until = clock.now + 5.0
        await clock.advance(1.0)
    told = [(line["event"], line["log_level"], line["session_id"]) for line in logs]
    assert told == [("lease_lost", "warning", "0x7"), ("lease_regained", "info", "0x7")]
    member.lease_until = 0.0
    await clock.advance(1.0)
    assert expired == [7, 7]
    member.session_id = 0  # handlers hold nothing
    await clock.advance(1.0)
    member.session_id = 8
    await clock.advance(1.0)
    assert expired == [7, 7, 8]
    watching.cancel()


async def test_reports_a_lease_that_was_over_from_the_start() -> None:
    fence, member, clock = made()
    member.session_id, member.lease_until = 1, clock.now + fence.margin
    expired: list[int] = []
    watching = asyncio.create_task(fence.watch(expired.append))
    await asyncio.sleep(0)
    assert expired == [1]
    member.lease_until = clock.now + 5.0
    await clock.advance(1.0)
    member.lease_until = 0.0
    await clock.advance(1.0)
    assert expired == [1, 1]
    watching.cancel()


@pytest.mark.parametrize(("left", "sleep"), [(1.0, 0.25), (0.125, 0.125), (0.01, 0.02), (0.0, 0.05), (-1.0, 0.05)])
async def test_looks_again_at_the_end_of_the_lease_or_soon(left: float, sleep: float) -> None:
    fence, member, clock = made()
    fence.hold()
    member.lease_until = clock.now + fence.margin + left
    watching = asyncio.create_task(fence.watch(lambda session_id: None))
    await asyncio.sleep(0)
    assert clock.sleeps == [sleep]
    watching.cancel()


async def test_looks_once_a_second_while_no_handler_holds_a_message() -> None:
    fence, member, clock = made()
    watching = asyncio.create_task(fence.watch(lambda session_id: None))
    await asyncio.sleep(0)
    await clock.advance(3.0)
    assert clock.sleeps == [1.0] * 4
    member.lease_until = clock.now + fence.margin + 1.5
    await clock.advance(1.0)
    assert clock.sleeps[-1] == 0.5  # and at the end of the lease
    watching.cancel()


async def test_looks_soon_once_a_handler_holds_messages_and_seldom_once_it_has_ended() -> None:
    fence, _, clock = made()

    async def awake() -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    watching = asyncio.create_task(fence.watch(lambda session_id: None))
    await awake()
    fence.hold()
    await awake()
    await clock.advance(0.25)
    fence.release()
    await clock.advance(0.25)
    assert clock.sleeps == [1.0, 0.25, 0.25, 1.0]
    for _ in range(3):  # those that return at once wake up nothing
        fence.hold()
        fence.release()
        await awake()
    assert clock.sleeps == [1.0, 0.25, 0.25, 1.0]
    for _ in range(3):  # however many hold messages: the watch wakes up once
        fence.hold()
        await awake()
    assert clock.sleeps == [1.0, 0.25, 0.25, 1.0, 0.25]
    watching.cancel()


async def test_looks_again_at_least_four_times_a_second_while_a_handler_holds_messages() -> None:
    """Timers stop while a machine is suspended, and the lease does not."""
    fence, member, clock = made()
    fence.hold()
    watching = asyncio.create_task(fence.watch(lambda session_id: None))
    await asyncio.sleep(0)
    await clock.advance(1.0)
    assert clock.sleeps == [0.25] * 5
    clock.sleeps.clear()
    member.lease_until = clock.now + 1.1
    await clock.advance(0.25)
    assert min(clock.sleeps) >= 0.02
    watching.cancel()


async def test_all_wait_until_the_lease_is_back_and_the_watch_alone_looks_at_it() -> None:
    fence, member, clock = made()
    watching = asyncio.create_task(fence.watch(lambda session_id: None))
    await clock.advance(10.0)
    waiting = [asyncio.create_task(fence.wait(7)) for _ in range(3)]
    await asyncio.sleep(0)
    looks = len(clock.sleeps)
    await clock.advance(1.0)
    assert len(clock.sleeps) - looks < 30
    assert not any(task.done() for task in waiting)
    member.lease_until = clock.now + 10.0
    await clock.advance(0.2)
    assert all(task.done() for task in waiting)
    watching.cancel()


async def test_waits_where_the_lease_ended_since_the_watch_looked_at_it() -> None:
    fence, member, clock = made()
    watching = asyncio.create_task(fence.watch(lambda session_id: None))
    await asyncio.sleep(0)
    member.lease_until = 0.0  # the watch still sleeps for as long as it was
    waiting = asyncio.create_task(fence.wait(7))
    await clock.advance(0.01)
    assert not waiting.done()
    member.lease_until = clock.now + 3.0
    await clock.advance(0.1)
    assert waiting.done()
    watching.cancel()


async def test_waits_for_a_session_that_the_watch_has_not_seen() -> None:
    fence, member, clock = made()
    waiting = asyncio.create_task(fence.wait(8))
    await clock.advance(1.0)
    assert not waiting.done()
    member.session_id = 8
    await clock.advance(0.1)
    assert waiting.done()


async def test_lease_of_fixed_partitions_never_ends() -> None:
    clock = FakeClock()
    fence = Fence(FixedLease(), clock, 0.5)
    clock.jump(1e9)
    assert fence.allows(FIXED_SESSION)
    assert FixedLease().lease_left() == math.inf
    assert fence.margin == 0.5
