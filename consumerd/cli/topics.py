"""`consumerd topics`: list, describe, create and delete topics."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from consumerd.cli.clusters import with_groups
from consumerd.cli.config_option import json_option
from consumerd.cli.session import ClusterAddress, broker_timeout_option, cluster_options
from consumerd.cli.tables import show_rows
from consumerd.cli.topics_change import create, delete
from consumerd.wire.registry.dialect import Dialect

if TYPE_CHECKING:
    from consumerd.operate.admin.group_source import GroupSource

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
    from consumerd.cli.topics_show import show_list  # noqa: PLC0415

    async def read(source: GroupSource) -> tuple[Dialect, Any]:
        return source.dialect, await source.topics()

    dialect, topics = with_groups(cluster, read)
    if dialect is Dialect.V08:
        show_list(topics, as_json=as_json)
    elif as_json:
        click.echo(json.dumps({"topics": topics}, indent=2))
    else:
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
    from consumerd.cli.topics_show import read_topics, show_description  # noqa: PLC0415

    snapshot = with_groups(cluster, lambda source: read_topics(source, topics), broker_timeout=broker_timeout)
    show_description(snapshot, as_json=as_json)


for _command in (create, delete):
    command.add_command(_command)
