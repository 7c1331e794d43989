"""The output of `consumerd topics list` and `describe` for Kafka 0.8 and later."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from consumerd.base.errors import NotFoundError
from consumerd.base.partition import TopicPartition
from consumerd.cli.tables import counted, show_rows
from consumerd.operate.admin.logs import LogRange, LookupFailure

if TYPE_CHECKING:
    from consumerd.net.cluster.view_v08 import PartitionView, V08Topics
    from consumerd.operate.admin.v08.group_source import GroupSource


class TopicSnapshot(NamedTuple):
    """Brokers by id, topics, and the leaders' range of each partition."""

    brokers: dict[int, str]
    topics: V08Topics
    ranges: dict[TopicPartition, LogRange | LookupFailure]


async def read_topics(source: GroupSource, topics: Sequence[str]) -> TopicSnapshot:
    """The topics, or those named. Raises NotFoundError for one that does not exist."""
    found = await source.topics(topics or None)
    for topic in topics:
        if topic not in found:
            raise NotFoundError(f"there is no topic {topic!r}; see `consumerd topics list`")
    partitions = [TopicPartition.numbered(topic, number) for topic, numbers in found.items() for number in numbers]
    return TopicSnapshot(await source.addresses(), found, await source.logs.ranges(partitions))


def show_list(topics: V08Topics, *, as_json: bool) -> None:
    """Print topics with their numbers of partitions and replicas, and the partitions without a leader."""
    rows = [
        (
            topic,
            len(partitions),
            max((len(each.replicas) for each in partitions.values()), default=0),
            sum(each.leader is None for each in partitions.values()),
        )
        for topic, partitions in topics.items()
    ]
    if as_json:
        document = {
            topic: {"partitions": partitions, "replicas": replicas, "without_leader": alone}
            for topic, partitions, replicas, alone in rows
        }
        click.echo(json.dumps({"topics": document}, indent=2))
        return
    show_rows(["topic", ">partitions", ">replicas", ">without leader"], rows)


def show_description(snapshot: TopicSnapshot, *, as_json: bool) -> None:
    """Print every partition with its leader, replicas and range."""
    if as_json:
        click.echo(json.dumps(_as_json(snapshot), indent=2))
        return
    sizes = [found.size for found in snapshot.ranges.values() if isinstance(found, LogRange)]
    at_least = "at least " if len(sizes) < len(snapshot.ranges) else ""
    rows = []
    for partition, found in snapshot.ranges.items():
        state = snapshot.topics[partition.topic][partition.partition]
        rows.append((partition, _leader(snapshot, state), _ids(state.replicas), _ids(state.isr), *_cells(found)))
    show_rows(
        ["partition", "leader", "replicas", "in sync", ">earliest", ">latest", ">messages", "remark"],
        rows,
        title=", ".join(
            [
                counted(len(snapshot.topics), "topic"),
                counted(len(snapshot.ranges), "partition"),
                f"{at_least}{counted(sum(sizes), 'message')}",
            ]
        ),
    )


def _leader(snapshot: TopicSnapshot, state: PartitionView) -> str:
    if state.leader is None:
        return "none"
    return f"{state.leader} {snapshot.brokers.get(state.leader, '')}".strip()


def _ids(brokers: Sequence[int]) -> str:
    return ",".join(map(str, brokers))


def _cells(found: LogRange | LookupFailure) -> tuple[object, ...]:
    return (*found, found.size, "") if isinstance(found, LogRange) else (None, None, None, found.reason)


def _as_json(snapshot: TopicSnapshot) -> dict[str, object]:
    topics = {}
    for topic, states in snapshot.topics.items():
        partitions = {}
        for number, state in states.items():
            earliest, latest, size, remark = _cells(snapshot.ranges[TopicPartition.numbered(topic, number)])
            partitions[str(number)] = {
                "leader": state.leader,
                "replicas": list(state.replicas),
                "in_sync": list(state.isr),
                "earliest": earliest,
                "latest": latest,
                "messages": size,
                "remark": remark or None,
            }
        topics[topic] = {"partitions": partitions}
    return {"brokers": {str(number): address for number, address in snapshot.brokers.items()}, "topics": topics}
