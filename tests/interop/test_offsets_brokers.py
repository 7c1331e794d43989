"""Committed offsets in Kafka, on real brokers."""

from __future__ import annotations

from typing import Any

import pytest

from consumerd.offsets import CommittedOffset, KafkaOffsetStore, OffsetsUnavailableError
from consumerd.partition import TopicPartition

pytestmark = pytest.mark.interop
PLACE = TopicPartition.numbered("events", 0)
OTHER = TopicPartition.numbered("events", 1)


class Nobody:
    """A member that the coordinator never heard of."""

    session_id = 7
    generation = 3
    member_id = "nobody"
    instance_id = None


@pytest.mark.asyncio
@pytest.mark.parametrize("version", ["0.8.2.2", "0.10.1.1", "3.9.1"])
async def test_what_was_written_is_read_and_strangers_are_refused(
    version: str, kafka: Any, cluster_client: Any
) -> None:
    broker = await kafka(version)
    async with cluster_client(broker) as client:

        async def led() -> object:
            await client.refresh(["events"], create=True)
            return await client.leader("events", 1)

        await client.retrying("create the topic", led)
        await client.retrying("find the coordinator", lambda: client.coordinator("group"))
        store = KafkaOffsetStore(client, "group", metadata="by a test", retention=3600)
        assert await client.retrying("load", lambda: store.load([PLACE, OTHER])) == {}
        result = await store.commit({PLACE: 5, OTHER: 0}, session_id=0)
        assert result.committed == {PLACE, OTHER}
        assert not result.lost
        assert await store.load([PLACE, OTHER]) == {PLACE: 5, OTHER: 0}
        assert await store.read([PLACE]) == {PLACE: CommittedOffset(5, "by a test")}
        if version == "3.9.1":
            assert await store.read(None) == {
                PLACE: CommittedOffset(5, "by a test"),
                OTHER: CommittedOffset(0, "by a test"),
            }

        if version != "0.8.2.2":  # knows no members yet
            stranger = KafkaOffsetStore(client, "group", Nobody())
            result = await stranger.commit({PLACE: 99}, session_id=7)
            assert result.lost == {PLACE}
            assert not result.committed
            # A generation that is over is not even sent.
            assert (await stranger.commit({PLACE: 99}, session_id=6)).lost == {PLACE}
            assert await store.load([PLACE]) == {PLACE: 5}

        await broker.stop()
        with pytest.raises(OffsetsUnavailableError):
            await store.commit({PLACE: 6}, session_id=0)
