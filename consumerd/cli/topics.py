"""`consumerd topics`: what brokers registered."""

from __future__ import annotations

import json

import click

from consumerd.cli.session import with_session, zookeeper_options
from consumerd.cli.tables import show_rows

EXAMPLES = """\b
Examples:
  consumerd topics list --zookeeper 127.0.0.1:2181/kafka
  consumerd topics list --zookeeper zk1:2181,zk2:2181 | cut -f1
  consumerd topics list --zookeeper zk1:2181 --json | jq .topics
"""


@click.group("topics", epilog=EXAMPLES)
def command() -> None:
    """See the topics that brokers registered."""


@command.command("list", epilog=EXAMPLES)
@zookeeper_options()
@click.option("--json", "as_json", is_flag=True, help='One object: {"topics": {topic: {broker: partitions}}}.')
def list_topics(zookeeper: str, timeout: float, as_json: bool) -> None:
    """List topics with the numbers of partitions that their live brokers have.

    In a pipe: topic, partitions of all brokers together, broker:partitions,... with tabs in between. A topic without a
    live broker has 0 partitions.
    """
    from consumerd.cluster import ClusterView  # noqa: PLC0415 - heavy imports only for the command that runs

    topics = with_session(zookeeper, timeout, lambda session: ClusterView(session).read_topics())
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
