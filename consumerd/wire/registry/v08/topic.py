"""The nodes of a topic of Kafka 0.8 and later: the replicas of its partitions, their leaders, and its settings.

Ring 0. Topic nodes of versions 1 to 3 are read (3, since 2.8, adds the topic's id and replicas under way); version 1
is written, which every broker of these reads. The JVM writes partitions in the order of a hash map, we in that of their
numbers; readers do not depend on the order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from consumerd.wire.registry.text import decimal
from consumerd.wire.registry.v08.json import broker_list, member_of, object_of, quoted, whole
from consumerd.wire.registry.values import MAX_PARTITIONS

#: Topics of the brokers' own; old consumers leave them out of their filters (`exclude.internal.topics`).
INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})
#: The leader of a partition that has none.
NO_LEADER = -1


class PartitionState(NamedTuple):
    """The leader of a partition (or `NO_LEADER`), its epoch, and the replicas in sync."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    controller_epoch: int
    version: int


def parse_topic_assignment(data: bytes | str | None) -> dict[int, tuple[int, ...]]:
    """Read partition number -> broker ids of its replicas, the preferred leader first; in the order of the numbers.

    Raises RegistryError, also for a node that Kafka 0.7 wrote, which has no data.
    """
    what = "the assignment of a topic"
    partitions = member_of(object_of(data, what), "partitions", what)
    found = {
        decimal(number, "the number of a partition", least=0, most=MAX_PARTITIONS): broker_list(
            replicas, f"the replicas of partition {number[:20]}"
        )
        for number, replicas in partitions.items()
    }
    return dict(sorted(found.items()))


def format_topic_assignment(partitions: Mapping[int, Sequence[int]]) -> str:
    """`{"version":1,"partitions":{"0":[1,2]}}`. Raises RegistryError for numbers that no partition or broker has."""
    entries = ",".join(
        f'"{whole(number, "the number of a partition", most=MAX_PARTITIONS)}":'
        f"[{','.join(str(whole(broker, 'a broker id')) for broker in replicas)}]"
        for number, replicas in sorted(partitions.items())
    )
    return f'{{"version":1,"partitions":{{{entries}}}}}'


def parse_partition_state(data: bytes | str | None) -> PartitionState:
    """Read a node that `partition_state_path` names. Raises RegistryError."""
    what = "the state of a partition"
    found = object_of(data, what)
    return PartitionState(
        leader=whole(found.get("leader"), "the leader of a partition", least=NO_LEADER),
        leader_epoch=whole(found.get("leader_epoch"), "the epoch of a leader"),
        isr=broker_list(found.get("isr"), "the replicas in sync"),
        controller_epoch=whole(found.get("controller_epoch"), "the epoch of a controller"),
        version=whole(found.get("version"), f"the version of {what}", least=1),
    )


def format_topic_config(config: Mapping[str, str]) -> str:
    """`{"version":1,"config":{"retention.ms":"1000"}}`."""
    entries = ",".join(f"{quoted(key)}:{quoted(value)}" for key, value in config.items())
    return f'{{"version":1,"config":{{{entries}}}}}'
