"""Producers, members of groups and transactions on franz-go's fake cluster, whose protocol nobody here wrote."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Literal, NoReturn

import pytest
import pytest_asyncio

from consumerd import (
    ConsumerConfig,
    ConsumerConnector,
    MessageStream,
    ProducerConfig,
    TopicPartition,
    V08ProducerSettings,
    open_producer,
)
from consumerd.producer.cluster import ClusterProducer
from tests.support.kfake import KfakeMissingError, kfake, kfake_program

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]
#: What `tests/interop/kfake` creates.
TOPIC, PARTITIONS = "events", 2
PLACES = [TopicPartition.numbered(TOPIC, number) for number in range(PARTITIONS)]


@pytest_asyncio.fixture
async def address(missing: Callable[[str], NoReturn]) -> AsyncIterator[str]:
    try:
        program = await asyncio.to_thread(kfake_program)
    except KfakeMissingError as error:
        missing(str(error))
    async with kfake(program) as found:
        yield found


def connector(address: str, **settings: Any) -> ConsumerConnector:
    quick = {"commit_interval": 0.2, "max_wait": 0.1}
    return ConsumerConnector(ConsumerConfig(group="g", bootstrap=[address], **{**quick, **settings}))


async def take(stream: MessageStream, count: int) -> list[bytes | None]:
    """The payloads of the next `count` messages, handled."""
    found: list[bytes | None] = []
    async with asyncio.timeout(60):
        async for message in stream:
            found.append(message.payload)
            stream.ack()
            if len(found) == count:
                break
    return found


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_group_shares_partitions_and_continues_at_its_offsets(
    address: str, protocol: Literal["classic", "consumer"]
) -> None:
    sent = [b"%03d" % number for number in range(1000)]
    async with open_producer(ProducerConfig(bootstrap=[address])) as producer:
        for number, payload in enumerate(sent):
            await producer.send(TOPIC, [payload], key=f"key {number % 20}")
    async with connector(address, protocol=protocol) as one:
        (stream,) = (await one.create_message_streams({TOPIC: 1}))[TOPIC]
        assert sorted(await take(stream, 1000), key=str) == sent
        assert sum((await one.commit_offsets()).values()) == 1000
        async with connector(address, protocol=protocol) as other:
            (theirs,) = (await other.create_message_streams({TOPIC: 1}))[TOPIC]
            readers = [asyncio.create_task(take(each, 1)) for each in (stream, theirs)]
            async with asyncio.timeout(60):
                while {len(one.assignment()), len(other.assignment())} != {1}:
                    await asyncio.sleep(0.05)
            assert sorted([*one.assignment(), *other.assignment()]) == PLACES
            async with open_producer(ProducerConfig(bootstrap=[address])) as producer:
                for place in PLACES:
                    await producer.send(TOPIC, [b"later"], partition=place.partition)
            assert await asyncio.gather(*readers) == [[b"later"], [b"later"]]


async def test_reads_committed_transactions_alone(address: str) -> None:
    config = ProducerConfig(bootstrap=[address], v08=V08ProducerSettings(transactional_id="pump"))
    async with open_producer(config) as producer:
        assert isinstance(producer, ClusterProducer)
        with pytest.raises(ZeroDivisionError):  # noqa: PT012
            async with producer.transaction() as transaction:
                await transaction.send(TOPIC, [b"aborted"], partition=0)
                await producer.flush()
                raise ZeroDivisionError
        async with producer.transaction() as transaction:
            for number in range(10):
                await transaction.send(TOPIC, [b"%d" % number], partition=0)
            await transaction.send(TOPIC, [b"handled"], partition=1)
            await transaction.send_offsets("g", {PLACES[1]: 1})
    async with connector(address, isolation="read_committed") as reader:
        (stream,) = (await reader.create_message_streams({TOPIC: 1}))[TOPIC]
        assert await take(stream, 10) == [b"%d" % number for number in range(10)]
        assert (await reader.committed())[PLACES[1]] == 1
