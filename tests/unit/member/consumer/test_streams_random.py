"""Random use of streams while members join, leave and lose sessions: no loss, and only expected messages repeat.

If all members leave gracefully, and none pauses within a compressed message, nothing is repeated.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import AsyncExitStack, suppress
from typing import Any

import pytest

from consumerd import ConsumerConfig, ConsumerConnector, ConsumerTimeoutError, Message, MessageStream, TopicPartition
from consumerd.wire.v07 import Codec

PARTITIONS = 3
ALL = [TopicPartition("t", 0, number) for number in range(PARTITIONS)]
CODECS = [Codec.NONE, Codec.GZIP, Codec.SNAPPY]


class Member:
    """A connector whose streams are used at random, and what it counts as handled."""

    def __init__(self, group: Any, name: str, rng: random.Random, *, rough: bool) -> None:
        self.group = group
        self.name = name
        self.rng = rng
        self.rough = rough
        self.handled: list[Message] = []
        self.stack = AsyncExitStack()
        self.tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        self.zk = await self.stack.enter_async_context(self.group.zookeeper.session(session_timeout=6.0))
        config = ConsumerConfig(
            group="g", consumer_id=self.name, idle_backoff=0.005, commit_interval=0.01, consumer_timeout=0.02,
            fetch_size=self.rng.choice((200, 2000)),
        )  # fmt: skip
        self.connector = ConsumerConnector(config, zk=self.zk, connect=self.group.broker.connect, rng=self.rng)
        streams = (await self.connector.create_message_streams({"t": 2}))["t"]
        self.tasks = [asyncio.create_task(self.consume(stream)) for stream in streams]

    async def consume(self, stream: MessageStream) -> None:
        while True:
            with suppress(ConsumerTimeoutError):
                if self.rng.random() < 0.2:
                    async for batch in stream.batches():
                        messages = list(batch.messages())
                        await self.pause(messages[0].partition)
                        self.handled += messages
                        if self.rng.random() < 0.3:
                            stream.ack()
                            break
                else:
                    async for message in stream:
                        await self.pause(message.partition)
                        self.handled.append(message)
                        if self.rng.random() < 0.02:
                            stream.ack()
                            break
                if self.connector._closed:
                    return

    async def pause(self, partition: TopicPartition) -> None:
        for _ in range(self.rng.choice((0, 0, 0, 0, 1, 3))):
            await asyncio.sleep(0)
        if self.rng.random() < 0.01:
            await asyncio.sleep(0.01)
        if self.rough and self.rng.random() < 0.02 and self.owns(partition):
            self.connector.pause(partition)
            asyncio.get_running_loop().call_later(self.rng.random() / 50, self.resume, partition)

    def resume(self, partition: TopicPartition) -> None:
        if self.owns(partition):
            self.connector.resume(partition)

    def owns(self, partition: TopicPartition) -> bool:
        return not self.connector._closed and partition in self.connector.assignment()

    async def stop(self) -> None:
        await self.connector.shutdown()
        async with asyncio.timeout(60):
            await asyncio.gather(*self.tasks)
        await self.stack.aclose()


async def play(group: Any, rng: random.Random, *, rough: bool) -> tuple[set[bytes], list[Member]]:
    group.topic("t", PARTITIONS)
    produced: set[bytes] = set()

    def produce(sets: int) -> None:
        for _ in range(sets):
            some = [b"%d" % (len(produced) + index) for index in range(rng.randrange(1, 12))]
            produced.update(some)
            group.broker.append("t", rng.randrange(PARTITIONS), *some, codec=rng.choice(CODECS))

    produce(100)
    members = [Member(group, "a", rng, rough=rough)]
    await members[0].start()
    present = list(members)
    for step in range(6):
        produce(60)
        await asyncio.sleep(rng.random() / 20)
        if rough and rng.random() < 0.5:
            group.zookeeper.expire(rng.choice(present).zk)
        if len(present) > 1 and rng.random() < 0.5:
            await present.pop(rng.randrange(len(present))).stop()
        else:
            member = Member(group, f"b{step}", rng, rough=rough)
            members.append(member)
            present.append(member)
            await member.start()
    await group.until(lambda: all(group.offset(tp) == len(group.broker.logs[tp[0], tp[2]]) for tp in ALL), 20)
    for member in present:
        await member.stop()
    return produced, members


@pytest.mark.parametrize("seed", range(8))
async def test_graceful_changes_repeat_nothing(group: Any, seed: int) -> None:
    produced, members = await play(group, random.Random(seed), rough=False)
    times = Counter(message.payload for member in members for message in member.handled)
    assert set(times) == produced
    assert set(times.values()) == {1}


@pytest.mark.parametrize("seed", range(8))
async def test_rough_changes_lose_nothing(group: Any, seed: int) -> None:
    produced, members = await play(group, random.Random(100 + seed), rough=True)
    assert {message.payload for member in members for message in member.handled} == produced
