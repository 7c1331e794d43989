"""Scenes of a group in ZooKeeper, for any brokers: every way to join and to leave, and to be late."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from consumerd.base.partition import TopicPartition

if TYPE_CHECKING:
    import pytest

    from tests.interop.zk_group import ZooKeeperGroup


async def come_and_go(group: ZooKeeperGroup, streams: int) -> None:
    """Every way to join and to leave, of ours and of the JVM's, each at other places of the order of ids.

    In the end `b` and `x` of ours and `q` of the JVM's are members.
    """
    await group.join_ours("m")
    await group.settled("m")
    await group.join_jvm("d", streams)
    await group.settled("d", "m")
    await group.join_ours("x")
    await group.settled("d", "m", "x")
    await group.leave("m")
    await group.settled("d", "x")
    await group.join_ours("a")
    await group.settled("a", "d", "x")
    await group.leave("d")
    await group.settled("a", "x")
    await group.join_jvm("q", streams)
    await group.settled("a", "q", "x")
    await group.kill("a")
    await group.settled("q", "x")
    await group.join_ours("b")
    await group.settled("b", "q", "x")


async def give_up_slowly(
    group: ZooKeeperGroup, moving: TopicPartition, directory: Path, monkeypatch: pytest.MonkeyPatch, *, obeys: bool
) -> None:
    """A handler of `a` that keeps `moving`, which the JVM's member is to have when another joins.

    One that obeys is cancelled after 4 s, in time for the JVM's look after 6 s. One that does not keeps its partition
    until it has ended; by then the JVM has given up, and has to be woken by a nudge.
    """
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).with_name("handlers")), prepend=os.pathsep)
    hold = directory / "hold"
    options = {"directory": str(directory / "records"), "hold": str(hold), "obeys": obeys}
    async with group.producing():
        slow = await group.join_ours("a", handler={"name": "holding:HoldingHandler", "options": options})
        jvm = await group.join_jvm("j")
        await group.settled("a", "j")
        assert moving in group.owned("a")
        hold.touch()
        await group.until(hold.with_name(f"hold.{moving.name}").exists, "batch in hand")
        await group.join_ours("z")
        if obeys:
            await group.assigned("a", "j", "z")
            hold.unlink()
        else:
            await jvm.wait_for_line(lambda line: "can't rebalance after 4 retries" in line, 120)
            assert moving in group.owned("a")  # its handler has not ended
            assert group.owned("j") == set()
            hold.unlink()
            await slow.wait_for_event("group_nudged", 120)
        await group.settled("a", "j", "z")
        assert moving in group.owned("j")
    await group.account()
    logged = [event["event"] for event in slow.events()]
    assert "drain_deadline_passed" in logged
    assert logged.count("group_nudged") == (0 if obeys else 1)
    assert ("can't rebalance" in jvm.output()) is not obeys
