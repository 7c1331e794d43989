"""`consumerd topics create` and `delete`: topics of Kafka 0.8 and later."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from consumerd.base.errors import BrokerError
from consumerd.cli.backups import say_dry_run
from consumerd.cli.clusters import with_groups
from consumerd.cli.config_option import json_option
from consumerd.cli.numbers import PositiveInt
from consumerd.cli.session import ClusterAddress, cluster_options
from consumerd.cli.tables import show_rows
from consumerd.wire.registry.dialect import Dialect

if TYPE_CHECKING:
    from consumerd.operate.admin.group_source import GroupSource

CREATE_EXAMPLES = """\b
Examples:
  consumerd topics create --bootstrap-server kafka1:9092 --topic events --partitions 6 --replication-factor 3
  consumerd topics create --bootstrap-server kafka1:9092 --topic state --partitions 1 --replication-factor 3
    --config cleanup.policy=compact --config min.insync.replicas=2
  consumerd topics create -c /etc/consumerd/events.toml --topic pairs --replica-assignment 1:2,2:3,3:1
  consumerd topics create --zookeeper zk1:2181/kafka09 --topic events --partitions 6 --replication-factor 2
"""

DELETE_EXAMPLES = """\b
Examples:
  consumerd topics delete --bootstrap-server kafka1:9092 --topic events
  consumerd topics delete --bootstrap-server kafka1:9092 --topic events --execute
  consumerd topics delete --zookeeper zk1:2181/kafka09 --topic events --execute
"""


def _settings(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> dict[str, str]:
    settings = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not (key and equals):
            raise click.BadParameter(f"{text!r} is not of the form KEY=VALUE (a daemon's configuration goes with -c).")
        settings[key] = value
    return settings


def _assignment(_: click.Context, __: click.Parameter, text: str | None) -> dict[int, tuple[int, ...]] | None:
    if text is None:
        return None
    try:
        return {number: tuple(map(int, ids.split(":"))) for number, ids in enumerate(text.split(","))}
    except ValueError:
        raise click.BadParameter(f"{text!r} is not of the form BROKER:BROKER,BROKER:BROKER,...") from None


@click.command("create", epilog=CREATE_EXAMPLES)
@cluster_options(flags=("-c", "--configuration"))
@click.option("--topic", required=True, help="Name of the topic.")
@click.option("--partitions", type=PositiveInt(100_000), help="Number of partitions. [default: the brokers' default]")
@click.option(
    "--replication-factor",
    type=PositiveInt(32767),
    help="Number of replicas of each partition. [default: the brokers' default]",
)
@click.option(
    "--replica-assignment",
    "assignment",
    callback=_assignment,
    metavar="BROKER:BROKER,...",
    help="Broker ids for each partition, the preferred leader first; instead of --partitions and --replication-factor.",
)
@click.option(
    "--config",
    "settings",
    multiple=True,
    callback=_settings,
    metavar="KEY=VALUE",
    help="Setting of the topic, such as retention.ms=86400000; may be given several times.",
)
@click.option("--dry-run", is_flag=True, help="Only check whether the topic could be created (Kafka 0.10.2 and later).")
@json_option('One JSON object: {"topic": ..., "created": ...}.')
def create(
    cluster: ClusterAddress,
    topic: str,
    partitions: int | None,
    replication_factor: int | None,
    assignment: dict[int, tuple[int, ...]] | None,
    settings: dict[str, str],
    dry_run: bool,
    as_json: bool,
) -> None:
    """Create a topic.

    With --bootstrap-server (Kafka 0.10.1 and later) a broker creates the topic; brokers since 2.4 have defaults for
    what is not given. With --zookeeper (0.8 to 0.10) the topic is written to ZooKeeper, as kafka-topics does. Kafka 0.7
    creates a topic when it receives the first message.
    """
    from consumerd.operate.admin.v08.topic_nodes import TopicPlan  # noqa: PLC0415

    if assignment is not None and (partitions is not None or replication_factor is not None):
        raise click.UsageError("give either --replica-assignment, or --partitions and --replication-factor")
    plan = TopicPlan(topic, partitions, replication_factor, assignment, settings)

    async def work(source: GroupSource) -> list[int]:
        changes = await source.topic_changes()
        return await changes.create(plan, timeout=cluster.timeout, check_only=dry_run)

    waiting = with_groups(cluster, work, hint=Dialect.V08, broker_timeout=2 * cluster.timeout)
    if as_json:
        click.echo(json.dumps({"topic": topic, "created": not dry_run, "without_leader": waiting}, indent=2))
    else:
        click.echo(f"topic {topic}: {'could be created' if dry_run else 'created'}")
    if waiting:
        click.echo(f"consumerd: partitions {waiting} have no leader yet: see `consumerd topics describe`", err=True)


@click.command("delete", epilog=DELETE_EXAMPLES)
@cluster_options()
@click.option("--topic", "topics", multiple=True, required=True, help="Topic to delete; may be given several times.")
@click.option(
    "--execute", is_flag=True, help="Delete the topics. Without this option, only show what would be deleted."
)
@json_option('One JSON object: {"topics": {topic: {"partitions": ..., "messages": ...}}, "executed": ...}.')
def delete(cluster: ClusterAddress, topics: tuple[str, ...], execute: bool, as_json: bool) -> None:
    """Delete topics with all that they hold.

    With --bootstrap-server (Kafka 0.10.1 and later) a broker deletes the topics; with --zookeeper (0.8 to 0.10) they
    are marked for deletion in ZooKeeper, as kafka-topics does. Brokers before 1.0 delete topics only if their
    delete.topic.enable is true. In a pipe: topic, partitions, messages.
    """
    with_groups(
        cluster,
        lambda source: _delete(source, topics, cluster.timeout, execute=execute, as_json=as_json),
        broker_timeout=2 * cluster.timeout,
    )
    if not execute:
        say_dry_run("deleted")


async def _delete(
    source: GroupSource, topics: tuple[str, ...], timeout: float, *, execute: bool, as_json: bool
) -> None:
    from consumerd.cli.topics_show import read_topics  # noqa: PLC0415
    from consumerd.operate.admin.logs import LogRange  # noqa: PLC0415

    changes = await source.topic_changes()
    snapshot = await read_topics(source, topics)
    wanted = snapshot.topics if execute else ()
    marked = [topic for topic in wanted if not await changes.delete(topic, timeout=timeout)]
    sizes: dict[str, int] = dict.fromkeys(snapshot.topics, 0)
    for partition, found in snapshot.ranges.items():
        sizes[partition.topic] += found.size if isinstance(found, LogRange) else 0
    if as_json:
        document = {
            topic: {"partitions": len(partitions), "messages": sizes[topic]}
            for topic, partitions in snapshot.topics.items()
        }
        click.echo(json.dumps({"topics": document, "executed": execute, "marked": marked}, indent=2))
    else:
        rows = [(topic, len(partitions), sizes[topic]) for topic, partitions in snapshot.topics.items()]
        title = "marked" if marked else "deleted" if execute else "would be deleted"
        show_rows(["topic", ">partitions", ">messages"], rows, title=title)
    if marked:
        raise BrokerError(
            f"{', '.join(marked)}: marked for deletion, but not deleted after {timeout:g} s: brokers delete topics "
            "only if their delete.topic.enable is true and all replicas are alive"
        )
