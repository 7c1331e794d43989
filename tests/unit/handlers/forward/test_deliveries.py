"""A feed marks what the target has confirmed, and nothing else: a partition that refuses gets the messages again."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any, ClassVar

import pytest

from consumerd.base.clock import SystemClock
from consumerd.base.errors import HandlerFailedError
from consumerd.base.partition import TopicPartition
from consumerd.handlers import Batch, HandlerContext
from consumerd.handlers.counts import TargetCounts
from consumerd.handlers.forward.feed import PartitionFeed
from consumerd.handlers.forward.handler import ForwardHandler
from consumerd.handlers.forward.mapping import BrokerMajorNumbering, TopicNaming
from consumerd.handlers.forward.settings import ForwardPlacing, ForwardSettings
from consumerd.net.client.cluster import ClusterClient
from consumerd.net.client.errors import BrokerRefusedError
from consumerd.net.client.opening import ChannelOpener
from consumerd.net.client.settings import ClientSettings
from consumerd.net.connect import connect
from consumerd.wire.v07 import decode_batch, encode_message_set
from consumerd.wire.v08 import apis
from consumerd.wire.v08.error_codes import ErrorCode
from tests.faults.hostile_kafka import TOPIC, HostileKafka

SOURCE = TopicPartition("t", 0, 0)
MESSAGES = [b"message %d" % number for number in range(12)]
CLOCK = SystemClock()


class RefusingKafka(HostileKafka):
    """Refuses batches with these errors; None takes one."""

    def __init__(self, errors: Iterable[int | None]) -> None:
        super().__init__(random.Random(1))
        self.errors = iter(errors)

    def _produce(self, body: dict[str, Any]) -> dict[str, Any]:
        error = next(self.errors, None)
        if error is None:
            return super()._produce(body)
        return self._produced(body, lambda _: {"error_code": error, "base_offset": -1})

    _answers: ClassVar[Any] = HostileKafka._answers | {apis.PRODUCE.key: _produce}


def client_of(broker: HostileKafka) -> ClusterClient:
    settings = ClientSettings()
    opener = ChannelOpener(connect, settings, CLOCK)
    return ClusterClient([("127.0.0.1", broker.port)], opener, settings, clock=CLOCK, rng=random.Random(1))


@pytest.mark.parametrize("headers", [True, False])
@pytest.mark.parametrize("taken", [0, 1, 2])
async def test_marks_no_message_that_the_target_refuses(headers: bool, taken: int) -> None:
    settings = ForwardSettings(headers=headers, chunk_bytes=900 if headers else 350)
    async with RefusingKafka([None] * taken + [ErrorCode.UNKNOWN]) as broker, client_of(broker) as client:
        batch = Batch(SOURCE, decode_batch(encode_message_set(MESSAGES), 0))
        counts = TargetCounts()
        handled = []
        for _ in range(2):
            feed = PartitionFeed(SOURCE, TOPIC, 1, settings, client, clock=CLOCK, rng=random.Random(1), counts=counts)
            await feed.open()
            try:
                await feed.forward(batch)
            except BrokerRefusedError:
                handled.append(batch.handled)
            finally:
                await feed.abort()
            assert batch.handled == counts.confirmed["t"] == len(broker.log[1])
        (before,) = handled
        assert (before > 0) == (taken > 0)
        assert before < batch.handled == len(MESSAGES)
        assert broker.log == {0: [], 1: MESSAGES}


@pytest.mark.parametrize(
    ("placing", "keyed", "kept"),
    [
        (ForwardPlacing.KEEP, False, True),
        (ForwardPlacing.KEEP, True, True),
        (ForwardPlacing.KEY, False, True),
        (ForwardPlacing.KEY, True, False),
        (ForwardPlacing.ROUND_ROBIN, False, False),
    ],
)
async def test_places_messages_as_the_settings_say(placing: ForwardPlacing, keyed: bool, kept: bool) -> None:
    settings = ForwardSettings(placing=placing, key=bytes if keyed else None)
    async with RefusingKafka([]) as broker, client_of(broker) as client:
        batch = Batch(SOURCE, decode_batch(encode_message_set(MESSAGES), 0))
        feed = PartitionFeed(SOURCE, TOPIC, 1, settings, client, clock=CLOCK, rng=random.Random(1))
        await feed.open()
        try:
            await feed.forward(batch)
        finally:
            await feed.abort()
        assert sorted(broker.log[0] + broker.log[1]) == sorted(MESSAGES)
        assert (broker.log[0] == []) == kept


async def test_names_the_target_that_cannot_be_reached_at_the_start() -> None:
    async with RefusingKafka([]) as broker:
        client = client_of(broker)
    client.settings = ClientSettings(retry_timeout=0.0)
    handler = ForwardHandler(
        lambda clock, rng: client, TopicNaming(), BrokerMajorNumbering(), ForwardSettings(), rng=random.Random(1)
    )
    with pytest.raises(HandlerFailedError, match="cannot forward: no broker of the cluster can be reached"):
        await handler.start(HandlerContext("g", "m", CLOCK))
    await handler.stop()
