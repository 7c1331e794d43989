"""Byte budgets: lines, parents, overdrafts, cancellation."""

from __future__ import annotations

import asyncio

import pytest

from consumerd.fetch import ByteBudget

pytestmark = pytest.mark.asyncio


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_reserving_waits_in_line() -> None:
    budget = ByteBudget(100)
    first = await budget.reserve(60)
    order: list[str] = []

    async def take(name: str, amount: int) -> None:
        reservation = await budget.reserve(amount)
        order.append(name)
        reservation.release()

    async with asyncio.TaskGroup() as group:
        group.create_task(take("large", 90))
        await settle()
        group.create_task(take("small", 10))  # would fit, but the large one came first
        await settle()
        assert order == []
        assert budget.waiting == 2
        first.release()
    assert order == ["large", "small"]
    assert budget.used == 0
    assert budget.waiting == 0


async def test_more_than_everything_is_granted_alone() -> None:
    budget = ByteBudget(100)
    small = await budget.reserve(1)
    task = asyncio.create_task(budget.reserve(1000))
    await settle()
    assert not task.done()
    small.release()
    huge = await task
    assert budget.used == 1000
    huge.release()


async def test_a_partition_waits_for_its_own_budget_without_blocking_the_common_line() -> None:
    common = ByteBudget(100)
    tight, other = ByteBudget(10, common), ByteBudget(50, common)
    held = await tight.reserve(10)
    waiting = asyncio.create_task(tight.reserve(5))
    await settle()
    assert not waiting.done()
    (await other.reserve(50)).release()
    held.release()
    (await waiting).release()
    assert (tight.used, other.used, common.used) == (0, 0, 0)


async def test_a_cancelled_waiter_leaves_the_line() -> None:
    common = ByteBudget(100)
    child = ByteBudget(1000, common)
    held = await common.reserve(90)
    first = asyncio.create_task(child.reserve(50))
    second = asyncio.create_task(child.reserve(10))
    await settle()
    assert not second.done()
    first.cancel()
    await settle()
    assert second.done()  # the place in front is free
    assert child.used == 10
    second.result().release()
    held.release()
    assert (child.used, common.used) == (0, 0)


async def test_a_waiter_cancelled_in_the_moment_of_its_grant_gives_back() -> None:
    budget = ByteBudget(100)
    held = await budget.reserve(100)
    task = asyncio.create_task(budget.reserve(100))
    await settle()
    held.release()  # granted now, but the task has not run yet
    task.cancel()
    await settle()
    assert task.cancelled()
    assert budget.used == 0


async def test_the_gate_opens_when_others_are_within_the_limit() -> None:
    budget = ByteBudget(100)
    mine = await budget.reserve(50)
    theirs = await budget.reserve(50)
    await budget.solvent(mine)
    theirs.resize(130)  # decoded to more than was reserved
    assert budget.used == 180
    gate = asyncio.create_task(budget.solvent(mine))
    await settle()
    assert not gate.done()
    theirs.resize(101)
    await settle()
    assert not gate.done()
    theirs.resize(100)
    await gate
    mine.resize(500)
    await budget.solvent(mine)  # one's own overdraft is no reason to wait
    mine.release()
    mine.release()
    theirs.release()
    assert budget.used == 0


async def test_the_gate_of_the_parent_counts() -> None:
    common = ByteBudget(100)
    child = ByteBudget(1000, common)
    mine = await child.reserve(10)
    other = common.charge(200)
    gate = asyncio.create_task(child.solvent(mine))
    await settle()
    assert not gate.done()
    other.release()
    await gate
    cancelled = asyncio.create_task(child.solvent(mine))
    other = common.charge(200)
    await settle()
    cancelled.cancel()
    await settle()
    assert cancelled.cancelled()
    other.release()
    mine.release()


async def test_a_budget_must_be_positive() -> None:
    with pytest.raises(ValueError, match="positive"):
        ByteBudget(0)
