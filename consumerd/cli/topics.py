"""`consumerd topics`: list, describe, create and delete topics."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from consumerd.base.partition import TopicPartition
from consumerd.base.ports import ZooKeeper
from consumerd.cli.session import ClusterAddress, broker_timeout_option, cluster_options, connector, json_option
from consumerd.cli.tables import counted, show_rows
from consumerd.cli.topics_change import create, delete

if TYPE_CHECKING:
    from consumerd.net.connect import Connector
    from consumerd.operate.admin.logs import LogRange, LookupFailure
    from consumerd.operate.admin.v08.group_source import GroupSource
    from consumerd.wire.registry.values import RegisteredBroker

EXAMPLES = """\b
Examples:
  consumerd topics list --zookeeper 127.0.0.1:2181/kafka
  consumerd topics list --zookeeper zk1:2181,zk2:2181 | cut -f1
  consumerd topics list --zookeeper zk1:2181 --json | jq .topics
  consumerd topics list --bootstrap-server kafka1:9092,kafka2:9092
"""

DESCRIBE_EXAMPLES = """\b
Examples:
  consumerd topics describe --zookeeper 127.0.0.1:2181/kafka --topic events
  consumerd topics describe --zookeeper 127.0.0.1:2181/kafka --json | jq '.topics.events.bytes'
  consumerd topics describe --bootstrap-server kafka1:9092 --topic events
"""


@click.group("topics", epilog=EXAMPLES)
def command() -> None:
    """Show, create and delete the topics of a cluster."""


@command.command("list", epilog=EXAMPLES)
@cluster_options()
@json_option('One JSON object: {"topics": {topic: {broker: partitions}}}; since 0.8 with partitions and replicas.')
def list_topics(cluster: ClusterAddress, as_json: bool) -> None:
    """List topics with the numbers of partitions that their live brokers have.

    In a pipe: topic, partitions of all brokers together, broker:partitions,... with tabs in between. A topic without a
    live broker has 0 partitions. Of clusters of Kafka 0.8 and later: topic, partitions, replicas of each, partitions
    without a leader.
    """
    from consumerd.cli.clusters import run_by_kind  # noqa: PLC0415 - heavy imports only for the command that runs
    from consumerd.cli.topics_v08 import show_list  # noqa: PLC0415
    from consumerd.net.cluster.view import ClusterView  # noqa: PLC0415

    async def v07(session: ZooKeeper) -> None:
        _show_list(await ClusterView(session).read_topics(), as_json=as_json)

    async def v08(source: GroupSource) -> None:
        show_list(await source.topics(), as_json=as_json)

    run_by_kind(cluster, v07, v08)


def _show_list(topics: dict[str, dict[int, int]], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"topics": topics}, indent=2))
        return
    show_rows(
        ["topic", ">partitions", "broker:partitions"],
        (
            (topic, sum(brokers.values()), ",".join(f"{broker}:{count}" for broker, count in brokers.items()))
            for topic, brokers in topics.items()
        ),
    )


@command.command("describe", epilog=DESCRIBE_EXAMPLES)
@cluster_options()
@click.option("--topic", "topics", multiple=True, help="Only this topic; may be given several times.")
@broker_timeout_option
@json_option('One JSON object: {"brokers": ..., "topics": {topic: {"bytes": ..., "partitions": ...}}}.')
def describe(cluster: ClusterAddress, topics: tuple[str, ...], broker_timeout: float, as_json: bool) -> None:
    """Show every partition with its broker, its earliest and latest offset, and what is in between.

    The latest offset is where the next message will be written; unflushed messages do not count. A broker that does not
    answer is a remark, not an error. In a pipe: topic/broker-partition, address, earliest, latest, bytes, remark. Of
    Kafka 0.8 and later: topic/partition, leader with its address, replicas, those in sync, earliest, latest, messages,
    remark.
    """
    from consumerd.cli.clusters import run_by_kind  # noqa: PLC0415
    from consumerd.cli.topics_v08 import read_topics, show_description  # noqa: PLC0415

    async def v07(session: ZooKeeper) -> None:
        _show_description(await _read_topics(session, topics, connector(broker_timeout)), as_json=as_json)

    async def v08(source: GroupSource) -> None:
        show_description(await read_topics(source, topics), as_json=as_json)

    run_by_kind(cluster, v07, v08, broker_timeout=broker_timeout)


def _show_description(snapshot: _TopicSnapshot, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(_as_json(snapshot), indent=2))
        return
    known, at_least = sum(_size(found) or 0 for found in snapshot.ranges.values()), ""
    if any(_size(found) is None for found in snapshot.ranges.values()):
        at_least = "at least "
    show_rows(
        ["partition", "broker", ">earliest", ">latest", ">bytes", "remark"],
        (
            (partition, _address(snapshot.brokers.get(partition.broker)), *_cells(found))
            for partition, found in snapshot.ranges.items()
        ),
        title=", ".join(
            [
                counted(len(snapshot.topics), "topic"),
                counted(len(snapshot.ranges), "partition"),
                f"{at_least}{counted(known, 'byte')}",
            ]
        ),
    )


class _TopicSnapshot(NamedTuple):
    brokers: dict[int, RegisteredBroker]
    topics: dict[str, dict[int, int]]
    ranges: dict[TopicPartition, LogRange | LookupFailure]


async def _read_topics(zk: ZooKeeper, topics: Sequence[str], connect: Connector) -> _TopicSnapshot:
    """The topics, or those named. Raises NotFoundError for one that is not registered."""
    from consumerd.base.errors import NotFoundError  # noqa: PLC0415
    from consumerd.group.assignment import partitions_of  # noqa: PLC0415
    from consumerd.net.cluster.view import ClusterView  # noqa: PLC0415
    from consumerd.operate.admin.logs import BrokerLogs  # noqa: PLC0415

    cluster = ClusterView(zk)
    found = await cluster.read_topics(topics or None)
    for topic in topics:
        if topic not in found:
            raise NotFoundError(f"no broker has registered the topic {topic!r}; see `consumerd topics list`")
    brokers = await cluster.read_brokers()
    partitions = [partition for topic, counts in found.items() for partition in partitions_of(topic, counts)]
    return _TopicSnapshot(brokers, found, await BrokerLogs(brokers, connect).ranges(partitions))


def _address(broker: RegisteredBroker | None) -> str:
    return "" if broker is None else f"{broker.host}:{broker.port}"


def _size(found: LogRange | LookupFailure) -> int | None:
    from consumerd.operate.admin.logs import LogRange  # noqa: PLC0415

    return found.size if isinstance(found, LogRange) else None


def _cells(found: LogRange | LookupFailure) -> tuple[object, ...]:
    from consumerd.operate.admin.logs import LogRange  # noqa: PLC0415

    return (*found, found.size, "") if isinstance(found, LogRange) else (None, None, None, found.reason)


def _as_json(snapshot: _TopicSnapshot) -> dict[str, object]:
    topics: dict[str, dict[str, object]] = {}
    for topic in snapshot.topics:
        of_topic = {partition: found for partition, found in snapshot.ranges.items() if partition.topic == topic}
        partitions = {}
        for partition, found in of_topic.items():
            earliest, latest, size, remark = _cells(found)
            partitions[partition.name] = {
                "earliest": earliest,
                "latest": latest,
                "bytes": size,
                "remark": remark or None,
            }
        sizes = [_size(found) for found in of_topic.values()]
        topics[topic] = {
            "bytes": None if None in sizes else sum(filter(None, sizes)),
            "partitions": partitions,
        }
    return {
        "brokers": {str(number): _address(broker) for number, broker in snapshot.brokers.items()},
        "topics": topics,
    }


for _command in (create, delete):
    command.add_command(_command)
