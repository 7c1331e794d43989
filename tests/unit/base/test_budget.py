"""Byte budgets: lines, parents, overdrafts, cancellation."""

from __future__ import annotations

import asyncio

import pytest

from consumerd.base.budget import ByteBudget
from tests.support.waiting import turns


async def test_grants_reservations_in_order() -> None:
    budget = ByteBudget(1000)
    first = await budget.reserve(960)
    order: list[str] = []

    async def take(name: str, amount: int) -> None:
        reservation = await budget.reserve(amount)
        order.append(name)
        reservation.release()

    async with asyncio.TaskGroup() as group:
        group.create_task(take("large", 62))
        await turns(5)
        group.create_task(take("small", 30))  # would fit, but the large one came first
        await turns(5)
        assert order == []
        assert len(budget._line) == 2
        first.release()
    assert order == ["large", "small"]
    assert budget.used == 0
    assert not budget._line


async def test_large_reservation_waits_for_solvency_only() -> None:
    """It exceeds the limit by itself alone; small ones fit or wait, and so does the next large one."""
    budget = ByteBudget(160)
    held = await budget.reserve(100)
    large = await budget.reserve(1000)
    assert budget.used == 1100
    second = asyncio.create_task(budget.reserve(11))
    await turns(5)
    assert not second.done()
    large.resize(61)
    await turns(5)
    assert not second.done()
    large.resize(60)
    (await second).release()
    held.resize(151)
    large.release()
    small = asyncio.create_task(budget.reserve(10))  # a sixteenth is not large
    await turns(5)
    assert not small.done()
    held.release()
    (await small).release()


async def test_partition_budget_does_not_block_common_line() -> None:
    common = ByteBudget(10_000)
    tight, other = ByteBudget(160, common), ByteBudget(5000, common)
    held = await tight.reserve(155)
    waiting = asyncio.create_task(tight.reserve(10))
    await turns(5)
    assert not waiting.done()
    (await other.reserve(5000)).release()
    held.release()
    (await waiting).release()
    assert (tight.used, other.used, common.used) == (0, 0, 0)


async def test_removes_cancelled_waiter_from_line() -> None:
    common = ByteBudget(1000)
    child = ByteBudget(10_000, common)
    held = await common.reserve(950)
    first = asyncio.create_task(child.reserve(60))
    second = asyncio.create_task(child.reserve(10))
    await turns(5)
    assert not second.done()
    first.cancel()
    await turns(5)
    assert first.cancelled()
    assert second.done()  # the place in front is free
    assert child.used == 10
    second.result().release()
    held.release()
    assert (child.used, common.used) == (0, 0)


async def test_releases_grant_of_waiter_cancelled_meanwhile() -> None:
    budget = ByteBudget(100)
    held = await budget.reserve(101)
    task = asyncio.create_task(budget.reserve(100))
    await turns(5)
    held.release()  # granted now, but the task has not run yet
    task.cancel()
    await turns(5)
    assert task.cancelled()
    assert budget.used == 0


async def test_solvent_waits_until_others_are_within_limit() -> None:
    budget = ByteBudget(100)
    mine = await budget.reserve(50)
    theirs = await budget.reserve(50)
    await budget.solvent(mine)
    theirs.resize(130)  # decoded to more than was reserved
    assert budget.used == 180
    gate = asyncio.create_task(budget.solvent(mine))
    await turns(5)
    assert not gate.done()
    theirs.resize(102)
    theirs.resize(101)
    await turns(5)
    assert not gate.done()
    theirs.resize(100)
    await gate
    mine.resize(500)
    await budget.solvent(mine)  # a partition does not wait because of its own overdraft
    mine.release()
    mine.release()
    theirs.release()
    assert budget.used == 0
    assert not budget._gate


async def test_solvent_waits_for_parent_budget() -> None:
    common = ByteBudget(100)
    child = ByteBudget(1000, common)
    mine = await child.reserve(10)
    other = common.charge(200)
    gate = asyncio.create_task(child.solvent(mine))
    await turns(5)
    assert not gate.done()
    other.release()
    await gate
    cancelled = asyncio.create_task(child.solvent(mine))
    other = common.charge(200)
    await turns(5)
    cancelled.cancel()
    await turns(5)
    assert cancelled.cancelled()
    other.release()
    mine.release()


async def test_solvent_looks_at_the_partition_again_after_it_waited_for_the_common_budget() -> None:
    common = ByteBudget(100)
    child = ByteBudget(50, common)
    mine, other = await child.reserve(10), common.charge(200)
    gate = asyncio.create_task(child.solvent(mine))
    await turns(5)
    beside = child.charge(60)
    other.release()
    await turns(5)
    assert not gate.done()
    beside.release()
    await gate
    mine.release()
    assert (child.used, common.used) == (0, 0)


async def test_rejects_non_positive_limit() -> None:
    assert ByteBudget(1).limit == 1
    with pytest.raises(ValueError, match="positive"):
        ByteBudget(0)


async def test_grow_takes_free_bytes_but_not_before_waiters() -> None:
    parent = ByteBudget(100)
    budget = ByteBudget(80, parent)
    held = await budget.reserve(10)
    assert held.grow(60, 60) == 60
    assert (held.amount, budget.used, parent.used) == (70, 70, 70)
    assert held.grow(11, 20) == 0
    beside = parent.charge(25)
    assert held.grow(6, 6) == 0
    assert (held.amount, budget.used, parent.used) == (70, 70, 95)
    assert held.grow(2, 8) == 5
    assert (held.amount, budget.used, parent.used) == (75, 75, 100)
    assert held.grow(1, 8) == 0
    held.resize(70)
    beside.release()
    waiting = asyncio.create_task(budget.reserve(5))
    first = asyncio.create_task(budget.reserve(5))
    behind = asyncio.create_task(budget.reserve(4))
    await turns(5)
    assert held.grow(1, 1) == 0
    held.release()
    for task in (waiting, first, behind):
        (await task).release()
    assert (budget.used, parent.used) == (0, 0)
