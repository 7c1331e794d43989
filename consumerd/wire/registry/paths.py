"""The paths of Kafka in ZooKeeper: one function per kind of node.

Ring 0. Paths are relative to the chroot (spec 001 "ZooKeeper Directories"; golden notes, 4). All parents are
persistent with null data. Names that come from users are checked here, because a `/` in a group id would otherwise
name a node of some other group; each function raises NameRefusedError for a name that no node can have. Brokers,
members, owners and offsets of 0.8 and later have the paths of 0.7; owner and offset nodes are then named as
`TopicPartition.numbered` says.
"""

from __future__ import annotations

import re

from consumerd.base.partition import TopicPartition
from consumerd.wire.registry.errors import NameRefusedError, shown

CONSUMERS = "/consumers"
BROKER_IDS = "/brokers/ids"
BROKER_TOPICS = "/brokers/topics"
#: Since 0.8.
TOPIC_CONFIGS = "/config/topics"
DELETE_TOPICS = "/admin/delete_topics"


#: Characters that ZooKeeper refuses in a path (PathUtils.validatePath), the separator included. It looks at UTF-16
#: units, so it takes those above U+FFFF for two surrogates.
_FORBIDDEN = re.compile("[/\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\U0010ffff]")


def check_name(kind: str, name: str) -> str:
    """Return `name` if it can be one element of a path; `kind` ("group", "topic", ...) is for the error's sentence."""
    if not name:
        raise NameRefusedError(f"the {kind} is empty: give it a name")
    if name in (".", ".."):
        raise NameRefusedError(f"{name!r} cannot be a {kind}: ZooKeeper reserves it")
    bad = _FORBIDDEN.search(name)
    if bad is not None:
        raise NameRefusedError(
            f"the {kind} {shown(name)} holds {bad.group()!r}, which no ZooKeeper node can have in its name"
        )
    return name


def broker_ids_path() -> str:
    """The parent of the live brokers."""
    return BROKER_IDS


def broker_path(broker: int) -> str:
    """Ephemeral: the broker's address."""
    return f"{BROKER_IDS}/{broker:d}"


def topics_path() -> str:
    """The parent of the topics."""
    return BROKER_TOPICS


def topic_path(topic: str) -> str:
    """The parent of the brokers that hold `topic`."""
    return f"{BROKER_TOPICS}/{check_name('topic', topic)}"


def topic_broker_path(topic: str, broker: int) -> str:
    """Ephemeral: the number of the broker's partitions of `topic`."""
    return f"{topic_path(topic)}/{broker:d}"


def consumers_path() -> str:
    """The parent of the groups."""
    return CONSUMERS


def group_path(group: str) -> str:
    """The parent of all nodes of `group`."""
    return f"{CONSUMERS}/{check_name('group', group)}"


def ids_path(group: str) -> str:
    """The parent of the group's live members."""
    return f"{group_path(group)}/ids"


def id_path(group: str, consumer_id: str) -> str:
    """Ephemeral: the member's subscription."""
    return f"{ids_path(group)}/{check_name('consumer id', consumer_id)}"


def owners_root(group: str) -> str:
    """The parent of the topics that the group ever owned."""
    return f"{group_path(group)}/owners"


def owners_path(group: str, topic: str) -> str:
    """The parent of the owned partitions of `topic`."""
    return f"{owners_root(group)}/{check_name('topic', topic)}"


def owner_path(group: str, partition: TopicPartition) -> str:
    """Ephemeral: the member and stream that own the partition."""
    return f"{owners_path(group, partition.topic)}/{partition.name}"


def offsets_root(group: str) -> str:
    """The parent of the topics for which the group ever committed."""
    return f"{group_path(group)}/offsets"


def offsets_path(group: str, topic: str) -> str:
    """The parent of the committed partitions of `topic`."""
    return f"{offsets_root(group)}/{check_name('topic', topic)}"


def offset_path(group: str, partition: TopicPartition) -> str:
    """Persistent: the offset of the first message that was not handled."""
    return f"{offsets_path(group, partition.topic)}/{partition.name}"


# Of Kafka 0.8 and later alone.


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
