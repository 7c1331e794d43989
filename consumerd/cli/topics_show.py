"""The output of `consumerd topics list` and `describe`."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import click

from consumerd.base.errors import NotFoundError
from consumerd.base.partition import TopicPartition
from consumerd.cli.tables import counted, show_rows
from consumerd.group.assignment import partitions_of
from consumerd.net.cluster.view_v08 import V08Topics
from consumerd.operate.admin.group_source import GroupSource
from consumerd.operate.admin.logs import LogRange, LookupFailure
from consumerd.wire.registry.dialect import Dialect


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


class TopicSnapshot(NamedTuple):
    """Brokers by id, topics, and the range of each partition."""

    brokers: dict[int, str]
    topics: Mapping[str, Mapping[int, Any]]
    ranges: dict[TopicPartition, LogRange | LookupFailure]
    #: The unit of offsets.
    unit: str

    @property
    def columns(self) -> list[str]:
        """The columns of `place`."""
        return ["broker"] if self.unit == "byte" else ["leader", "replicas", "in sync"]

    def place(self, partition: TopicPartition) -> list[str]:
        """The partition's broker; since 0.8 its leader, its replicas, and those in sync."""
        if self.unit == "byte":
            return [self.brokers.get(partition.broker, "")]
        state = self.topics[partition.topic][partition.partition]
        leader = "none" if state.leader is None else f"{state.leader} {self.brokers.get(state.leader, '')}".strip()
        return [leader, ",".join(map(str, state.replicas)), ",".join(map(str, state.isr))]


async def read_topics(source: GroupSource, topics: Sequence[str]) -> TopicSnapshot:
    """The topics, or those named. Raises NotFoundError for one that does not exist."""
    found: Mapping[str, Mapping[int, Any]] = await source.topics(topics or None)
    for topic in topics:
        if topic not in found:
            raise NotFoundError(f"there is no topic {topic!r}; see `consumerd topics list`")
    brokers = await source.addresses()
    if source.dialect is Dialect.V07:
        unit = "byte"
        partitions = [each for topic, counts in found.items() for each in partitions_of(topic, counts)]
    else:
        unit = "message"
        partitions = [TopicPartition.numbered(topic, number) for topic, states in found.items() for number in states]
    return TopicSnapshot(brokers, found, await source.logs.ranges(partitions), unit)


def show_description(snapshot: TopicSnapshot, *, as_json: bool) -> None:
    """Print every partition with its brokers and its range."""
    if as_json:
        click.echo(json.dumps(_as_json(snapshot), indent=2))
        return
    sizes = [size for found in snapshot.ranges.values() if (size := _cells(found)[2]) is not None]
    at_least = "at least " if len(sizes) < len(snapshot.ranges) else ""
    facts = (counted(len(snapshot.topics), "topic"), counted(len(snapshot.ranges), "partition"))
    show_rows(
        ["partition", *snapshot.columns, ">earliest", ">latest", f">{snapshot.unit}s", "remark"],
        ((partition, *snapshot.place(partition), *_cells(found)) for partition, found in snapshot.ranges.items()),
        title=", ".join([*facts, f"{at_least}{counted(sum(sizes), snapshot.unit)}"]),
    )


def _cells(found: LogRange | LookupFailure) -> tuple[int | None, int | None, int | None, str]:
    return (*found, found.size, "") if isinstance(found, LogRange) else (None, None, None, found.reason)


def _as_json(snapshot: TopicSnapshot) -> dict[str, object]:
    topics: dict[str, dict[str, Any]] = {topic: {"partitions": {}} for topic in snapshot.topics}
    sizes: defaultdict[str, list[int | None]] = defaultdict(list)
    for partition, found in snapshot.ranges.items():
        earliest, latest, size, remark = _cells(found)
        shown: dict[str, object] = {}
        if snapshot.unit == "message":
            state = snapshot.topics[partition.topic][partition.partition]
            shown = {"leader": state.leader, "replicas": list(state.replicas), "in_sync": list(state.isr)}
        shown |= {"earliest": earliest, "latest": latest, f"{snapshot.unit}s": size, "remark": remark or None}
        topics[partition.topic]["partitions"][partition.name] = shown
        sizes[partition.topic].append(size)
    if snapshot.unit == "byte":
        for topic, document in topics.items():
            document["bytes"] = None if None in sizes[topic] else sum(filter(None, sizes[topic]))
    return {"brokers": {str(number): address for number, address in snapshot.brokers.items()}, "topics": topics}
