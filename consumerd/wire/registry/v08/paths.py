"""The paths of Kafka 0.8 and later in ZooKeeper, as far as they differ from 0.7.

Ring 0. Brokers, members, owners and offsets have the paths of 0.7 (`consumerd.wire.registry.paths`); the names of owner
and offset nodes are those of `TopicPartition.numbered`. Functions raise RegistryError for a name that no node can have.
"""

from __future__ import annotations

from consumerd.wire.registry.paths import check_name, topic_path

TOPIC_CONFIGS = "/config/topics"
DELETE_TOPICS = "/admin/delete_topics"


def partitions_path(topic: str) -> str:
    """The parent of the topic's partitions, which the controller creates."""
    return f"{topic_path(topic)}/partitions"


def partition_path(topic: str, partition: int) -> str:
    """Return the path of a partition's node, which exists from its creation on."""
    return f"{partitions_path(topic)}/{partition}"


def partition_state_path(topic: str, partition: int) -> str:
    """Persistent: the leader of the partition, and the replicas in sync."""
    return f"{partitions_path(topic)}/{partition:d}/state"


def topic_config_path(topic: str) -> str:
    """Persistent: the settings in which the topic differs from its brokers' defaults."""
    return f"{TOPIC_CONFIGS}/{check_name('topic', topic)}"


def delete_topic_path(topic: str) -> str:
    """Persistent, without data: the controller is asked to delete the topic."""
    return f"{DELETE_TOPICS}/{check_name('topic', topic)}"
