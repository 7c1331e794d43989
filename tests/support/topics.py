"""Topics of real brokers that are created, deleted and created again."""

from __future__ import annotations

import time
from typing import Final

from confluent_kafka import KafkaError, TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import KafkaException, NewTopic

from consumerd.net.client.cluster import ClusterClient

#: librdkafka prints ids in base64, Kafka's own tools in the alphabet for URLs.
_URL_SAFE: Final = str.maketrans("+/", "-_")


async def create_and_lead(client: ClusterClient, topic: str = "events", partitions: int = 1) -> None:
    """Have the brokers create a topic as for a client that asks for it, until its first partitions have leaders."""

    async def led() -> None:
        await client.refresh([topic], create=True)
        for number in range(partitions):
            await client.leader(topic, number)

    await client.retrying("create the topic", led)


def create_topic(address: str, name: str) -> None:
    """Create a topic of one partition, once a deleted one of that name is gone."""
    admin, end = AdminClient({"bootstrap.servers": address}), time.monotonic() + 60
    while True:
        try:
            admin.create_topics([NewTopic(name, 1, 1)])[name].result(60)
            return
        except KafkaException:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


def recreate_topic(address: str, name: str) -> None:
    """Delete a topic, and create another one of its name."""
    admin = AdminClient({"bootstrap.servers": address})  # it has to live as long as its request
    admin.delete_topics([name], operation_timeout=30)[name].result(60)
    create_topic(address, name)


def topic_id(address: str, name: str) -> str:
    """The id of a topic on brokers since 3.1, as Kafka's tools print it."""
    admin = AdminClient({"bootstrap.servers": address})
    end = time.monotonic() + 60
    while True:
        try:
            found = admin.describe_topics(TopicCollection([name]))[name].result(60)
        except KafkaException as error:  # a topic that was just created is not known to the broker at once
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART or time.monotonic() > end:
                raise
            time.sleep(0.2)
        else:
            return str(found.topic_id).translate(_URL_SAFE)
