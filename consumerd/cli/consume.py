"""`consumerd consume`: a topic's messages on standard output, as a member of a group, or without one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from consumerd.address import format_address
from consumerd.cli.numbers import PositiveInt
from consumerd.cli.session import cluster_options
from consumerd.cli.setting_option import SettingOption

if TYPE_CHECKING:
    from consumerd.cli.session import ClusterAddress
    from consumerd.config.model import Config

EXAMPLES = """\b
Examples:
  consumerd consume --bootstrap-server kafka1:9092,kafka2:9092 --topic events --exit-at-end > events.txt
  consumerd consume --bootstrap-server kafka1:9092 --topic events --partition 3 --from latest --json | jq .key
  consumerd consume --bootstrap-server kafka1:9092 --group console --topic events --isolation read_committed
  consumerd consume -c /etc/consumerd/events.toml --whitelist 'events-.*' --max-messages 10 --key-separator ': '
  consumerd consume --zookeeper 127.0.0.1:2181/kafka --group console --topic events
  consumerd consume --zookeeper zk1:2181 --group export --topic events --exit-at-end > events.txt
  consumerd consume --zookeeper zk1:2181 --group console --whitelist 'events-.*' --exit-at-end

With --group, printed messages are committed for the group, regularly and when the command ends: a second run
continues after the first, and two runs at the same time share the partitions. Without --group (Kafka 0.8 and later,
with --bootstrap-server or -c) all partitions that exist at the start are read, and nothing is committed.

Of the file of -c, only servers, credentials and TLS are used: the group of a daemon is joined only if --group names it.
"""


@click.command("consume", epilog=EXAMPLES)
@cluster_options()
@click.option("--group", help="Consumer group to join; required with --zookeeper.")
@click.option("--topic", "topics", multiple=True, help="Topic to consume; may be given several times.")
@click.option(
    "--whitelist",
    metavar="REGEX",
    help="Consume all topics that match this regular expression; with --group, new ones too.",
)
@click.option("--blacklist", metavar="REGEX", help="Consume all topics that do not match this regular expression.")
@click.option(
    "--partition",
    "partitions",
    type=click.IntRange(0, (1 << 31) - 1),
    multiple=True,
    help="Without --group: number of a partition to read instead of all; may be given several times.",
)
@click.option(
    "--from",
    "initial",
    cls=SettingOption,
    setting="consumerd.consumer:ConsumerSettings.initial",
    type=click.Choice(["earliest", "latest"]),
    show_default=True,
    help="Where to start; with --group, only in partitions without a committed offset.",
)
@click.option("--max-messages", type=PositiveInt(), help="Stop after this many messages.")
@click.option("--exit-at-end", is_flag=True, help="Stop when all messages that were there at the start are printed.")
@click.option(
    "--isolation",
    cls=SettingOption,
    setting="consumerd.consumer:ConsumerConfig.isolation",
    type=click.Choice(["read_uncommitted", "read_committed"]),
    help=("With --bootstrap-server: print all messages, or only those of committed transactions. [default: {default}]"),
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object per message: identity, key, timestamp, headers."
)
@click.option(
    "--key-separator",
    metavar="TEXT",
    help="Print the key and this text (\\t is a tab) before each payload (Kafka 0.8 and later).",
)
def command(cluster: ClusterAddress, **options: Any) -> None:
    """Print the messages of topics: payloads, one per line, in the order of each partition."""
    _check(cluster, options)
    from consumerd.cli.clusters import require_names  # noqa: PLC0415
    from consumerd.daemon.console import consume, consume_from_brokers, without_group  # noqa: PLC0415
    from consumerd.daemon.logs import configure_logs  # noqa: PLC0415 - heavy imports only for the command that runs
    from consumerd.daemon.loop import run_on_loop  # noqa: PLC0415
    from consumerd.handlers.builtin.console import ConsoleHandler  # noqa: PLC0415

    separator = options["key_separator"]
    handler = ConsoleHandler(
        as_json=options["as_json"],
        key_separator=None if separator is None else separator.replace("\\t", "\t").encode(),
        max_messages=options["max_messages"],
    )
    exit_at_end = options["exit_at_end"]
    config = _config(cluster, options)
    configure_logs("warning", "auto")

    async def main() -> None:
        await require_names(cluster.bootstrap)
        if not cluster.bootstrap:
            await consume(config, handler, exit_at_end=exit_at_end)
        elif options["group"] is not None:
            await consume_from_brokers(config, handler, exit_at_end=exit_at_end)
        else:
            fixed = await without_group(config, options["partitions"])
            await consume_from_brokers(fixed, handler, exit_at_end=exit_at_end)

    run_on_loop(main())


def _check(cluster: ClusterAddress, options: dict[str, Any]) -> None:
    """Raise UsageError for options that contradict each other."""
    if sum(bool(options[name]) for name in ("topics", "whitelist", "blacklist")) != 1:
        raise click.UsageError("Give exactly one of --topic (perhaps several times), --whitelist and --blacklist.")
    if not cluster.bootstrap:
        if options["group"] is None:
            raise click.UsageError("give --group: by ZooKeeper, topics are read by members of a group.")
        if options["isolation"] is not None:
            raise click.UsageError(
                "--isolation goes with --bootstrap-server only: brokers of 0.7 have no transactions."
            )
        if options["key_separator"] is not None:
            raise click.UsageError("--key-separator goes with --bootstrap-server only: brokers of 0.7 have no keys.")
    if options["partitions"] and options["group"] is not None:
        raise click.UsageError("--partition cannot be used with --group: members of a group share the partitions.")
    if options["partitions"] and len(options["topics"]) != 1:
        raise click.UsageError("--partition goes with one --topic.")
    if options["as_json"] and options["key_separator"] is not None:
        raise click.UsageError("--key-separator cannot be used with --json, which includes the key.")


def _config(cluster: ClusterAddress, options: dict[str, Any]) -> Config:
    """The member's configuration. Raises ConfigError."""
    from consumerd.config.model import parse  # noqa: PLC0415

    group: dict[str, Any] = {"id": options["group"] or "console", "topics": dict.fromkeys(options["topics"], 1)}
    group |= {name: options[name] for name in ("whitelist", "blacklist")}
    document: dict[str, Any] = {
        "group": group,
        "fetch": {name: options[name] for name in ("initial", "isolation") if options[name] is not None},
        "handler": {"name": "print"},
    }
    if not cluster.bootstrap:
        servers = {"connect": cluster.connect, "connection_timeout": cluster.timeout}
        config = parse({**document, "zookeeper": servers}, "the command line", environment=False)
        if cluster.config is None:
            return config
        return config.model_copy(
            update={"zookeeper": cluster.config.zookeeper.model_copy(update=servers), "kafka": cluster.config.kafka}
        )
    group["coordination"] = "kafka"
    addresses = tuple(format_address(*address) for address in cluster.bootstrap)
    brokers = {"bootstrap": addresses, "connection_timeout": cluster.timeout}
    config = parse({**document, "kafka": brokers}, "the command line", environment=False)
    if cluster.config is None:
        return config
    return config.model_copy(update={"kafka": cluster.config.kafka.model_copy(update=brokers)})
