"""Cancelling a member at any moment: handlers end, nothing is left running, and ZooKeeper drops the rest."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest


async def consuming(group: Any, *, hold: bool = False) -> Any:
    """A member of three partitions that has handled something (or, with `hold`, has it in its hands)."""
    group.topic("t", 3)
    for number in range(3):
        group.broker.append("t", number, b"one", b"two")
    member = await group.member(commit_interval=0.003)
    if hold:
        member.handler.hold()
        await group.until(lambda: member.handler.holding == 3)
    else:
        await group.until(lambda: len(member.handler.seen) == 6)
    return member


async def cancel_after(group: Any, member: Any, turns: int) -> None:
    """Let `turns` turns of the loop pass, cancel, and look at what is left."""
    for _ in range(turns):
        await asyncio.sleep(0)
    await member.cancel()
    others = [other.task for other in group.members if other is not member]
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert member.handler.holding == 0
    assert member.handler.stops == 1 or member.handler.starts == 0
    assert not group.broker.connections
    if not member.task.cancelled():
        member.task.result()  # it had ended by itself
    for other in group.members:
        group.zookeeper.reconnect(other.zk)  # or the server would have to wait for its expiry
        await other.zk.close()
    ephemerals = [path for path in group.zookeeper.dump() if group.zookeeper.tree.stat(path).ephemeral_owner]
    assert ephemerals == []


@pytest.mark.parametrize("turns", [*range(40), *range(40, 200, 7)])
async def test_cancellation_while_joining(group: Any, turns: int) -> None:
    group.topic("t", 3)
    for number in range(3):
        group.broker.append("t", number, b"one")
    await cancel_after(group, await group.member(commit_interval=0.001), turns)


@pytest.mark.parametrize("turns", range(40))
async def test_cancellation_while_leaving(group: Any, turns: int) -> None:
    member = await consuming(group)
    member.consumer.request_stop()
    await cancel_after(group, member, turns)


@pytest.mark.parametrize("turns", range(0, 40, 3))
async def test_cancellation_while_leaving_with_batch_in_hand(group: Any, turns: int) -> None:
    member = await consuming(group, hold=True)
    member.consumer.request_stop()
    await cancel_after(group, member, turns)


@pytest.mark.parametrize("turns", range(40))
async def test_cancellation_after_session_expired(group: Any, turns: int) -> None:
    member = await consuming(group, hold=bool(turns % 2))
    group.zookeeper.expire(member.zk)
    await cancel_after(group, member, turns)


@pytest.mark.parametrize("turns", range(0, 60, 3))
async def test_cancellation_while_peer_joins(group: Any, turns: int) -> None:
    member = await consuming(group)
    await group.member("b")
    await cancel_after(group, member, turns)


@pytest.mark.parametrize("turns", range(0, 30, 3))
async def test_cancellation_after_connection_loss(group: Any, turns: int) -> None:
    member = await consuming(group, hold=bool(turns % 2))
    group.zookeeper.disconnect(member.zk)
    await cancel_after(group, member, turns)
