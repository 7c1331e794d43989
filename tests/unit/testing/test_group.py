"""Groups in memory as users of the plugin see them; tests/unit/member/consumer goes through all of a member's life."""

from __future__ import annotations

import asyncio

import pytest

from consumerd.base.errors import HandlerFailedError, HandlerLoadError
from consumerd.handlers import Batch, HandlerContext, Message, RetryPolicy, message_handler
from consumerd.testing import Codec, HarnessError, MemoryGroup


class Sink:
    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.stopped = False

    async def handle(self, batch: Batch) -> None:
        self.seen += batch

    async def stop(self) -> None:
        self.stopped = True


async def test_members_share_partitions_and_take_over(consumerd_group: MemoryGroup) -> None:
    async with consumerd_group as group:
        group.topic("events", 3)
        a = await group.member(Sink)
        b = await group.member(Sink)
        assert (a.name, b.name) == ("a", "b")
        await group.until(lambda: (len(a.owned), len(b.owned)) == (2, 1))
        assert [group.owner("events", number) for number in range(3)] == ["a", "a", "b"]
        end = group.produce("events", [b"one", b"two"], partition=2, codec=Codec.GZIP)
        await group.until_committed()
        assert group.committed("events", 2) == end
        assert group.committed("unknown") is None
        assert b.handler.seen == [b"one", b"two"]

        await b.stop()
        assert b.handler.stopped
        await group.until(lambda: len(a.owned) == 3)
        await a.stop()
        assert group.owner("events", 0) is None
        assert repr(a) == "a (gone)"


async def test_killed_member_commits_nothing_more(consumerd_group: MemoryGroup) -> None:
    async with consumerd_group as group:
        group.produce("events", [b"one"])
        a = await group.member(Sink, commit_interval=60.0)
        await group.until(lambda: a.handler.seen == [b"one"])
        await a.kill()
        assert group.owner("events") is None
        b = await group.member(Sink)
        await group.until_committed()
        assert b.handler.seen == [b"one"]


async def test_expired_member_rejoins(consumerd_group: MemoryGroup) -> None:
    async with consumerd_group as group:
        group.topic("events")
        member = await group.member(Sink, topics={"events": 1})
        await group.until(lambda: group.owner("events") == "a")
        before = member.zk.session_id
        group.expire(member)
        group.produce("events", [b"one"])
        await group.until_committed()
        assert member.zk.session_id != before
        assert member.handler.seen == [b"one"]


async def test_member_consumes_its_topics(consumerd_group: MemoryGroup) -> None:
    async with consumerd_group as group:
        for topic in ("events", "noise"):
            group.topic(topic)
        a = await group.member(Sink, topics={"events": 1})
        b = await group.member(Sink, name="all")
        await group.until(lambda: group.owner("noise") == "all")
        assert "noise" not in {partition.topic for partition in a.owned}
        assert b.name == "all"


async def test_applies_the_failure_policy(consumerd_group: MemoryGroup) -> None:
    @message_handler
    async def picky(message: Message) -> None:
        if message.payload == b"bad":
            raise ValueError("bad")

    async with consumerd_group as group:
        group.produce("events", [b"good", b"bad"])
        member = await group.member(picky, policy=RetryPolicy(max_attempts=2, initial_backoff=0.001))
        with pytest.raises(HandlerFailedError, match="failed 2 times"):
            await member.ended()
        assert "stopped by HandlerFailedError" in repr(member)
        assert group.committed("events") == 14
        other = await group.member(picky, policy=RetryPolicy(max_attempts=1, on_failure="dead_letter"))
        await group.until_committed()
        assert [letter.message.payload for letter in group.dead_letters] == [b"bad"]
        await other.stop()


async def test_raises_an_unexpected_failure_at_the_end_of_the_block(consumerd_group: MemoryGroup) -> None:
    async def bad(batch: Batch) -> None:
        raise ValueError("bad")

    async def careless_test() -> None:
        async with consumerd_group as group:
            group.produce("events", [b"one"])
            member = await group.member(bad, policy=RetryPolicy(max_attempts=1))
            await group.until(member.task.done)

    with pytest.raises(HandlerFailedError):
        await careless_test()


async def test_reports_a_member_that_cannot_start(consumerd_group: MemoryGroup) -> None:
    class Broken(Sink):
        async def start(self, context: HandlerContext) -> None:
            raise OSError("no database")

    async with consumerd_group as group:
        with pytest.raises(HandlerFailedError, match=r"cannot be started: .*no database"):
            await group.member(Broken)
        with pytest.raises(HandlerLoadError, match="no option"):
            await group.member(Sink, {"sni": 1})


async def test_timeout_describes_the_members(consumerd_group: MemoryGroup) -> None:
    async with consumerd_group as group:
        with pytest.raises(TimeoutError, match=r"the condition was not met within 0\.02 s; members: none"):
            await group.until(lambda: False, 0.02)
        group.topic("events")
        member = await group.member(Sink)
        await group.until(lambda: len(member.owned) == 1)
        with pytest.raises(TimeoutError, match=r"members: \[a \(at work on events/0-0\)\]"):
            await group.until(lambda: False, 0.02)


async def test_ends_all_members_with_the_block(consumerd_group: MemoryGroup) -> None:
    async with consumerd_group as group:
        group.topic("events")
        member = await group.member(Sink)
    assert member.task.done()
    assert member.handler.stopped
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert not group.broker.connections
    with pytest.raises(HarnessError, match="async with"):
        await group.member(Sink)
