"""`consumerd produce`: send the lines of standard input.

Strategy: which cluster it is shows by the option that names it, or by what is registered in ZooKeeper; how lines go is
said by the modules for either kind. Options that mean nothing there are refused, never ignored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from consumerd.cli.numbers import PositiveFloat, PositiveInt
from consumerd.cli.produce_options import MAX_LINE_BYTES, Options
from consumerd.cli.session import cluster_options
from consumerd.cli.setting_option import SettingOption

if TYPE_CHECKING:
    from consumerd.cli.session import ClusterAddress
    from consumerd.zk import Session

EXAMPLES = """\b
Examples:
  tail -F access.log | consumerd produce --bootstrap-server kafka1:9092,kafka2:9092 --topic access --codec zstd
  consumerd produce --bootstrap-server kafka1:9092 --topic orders --key-separator '\\t' < orders.tsv
  consumerd produce -c /etc/consumerd/events.toml --topic events --header source=backfill < lines.txt
  tail -F access.log | consumerd produce --zookeeper zk1:2181/kafka --topic access
  gzip -dc old.gz | consumerd produce --broker 127.0.0.1:9092 --topic events --codec gzip
  consumerd produce --zookeeper zk1:2181 --topic orders --key-separator '\\t' < orders.tsv
  app | consumerd produce --zookeeper zk1:2181 --topic app --async --queue-time 1

Each line is a message, without its newline: any bytes, empty lines too.

To brokers of Kafka 0.8 and later (--bootstrap-server, -c, or --zookeeper where they are registered) the key of a line
is sent, too, and chooses the partition as in Java clients. Lines are sent while others are read; brokers since 0.11
recognise a batch that is sent again. With an error the exit code is not 0: the line that it names may not be there,
nor those after it, and all before it are.

To brokers of Kafka 0.7 the key is not sent. A batch counts as sent when the broker has taken it; one whose connection
broke before is sent again, so a message may come twice, but none is lost. With an error the exit code is not 0, and
the lines after the batch that failed were not sent. With --async lines wait in a queue, while others are read, until a
batch is full or the oldest has waited for the queue time; a batch that fails is given up and told at the end, and those
after it are sent. --verify reads back what was sent: brokers show what they have flushed, so a batch may take seconds.
"""

#: Options of one kind of cluster alone, and what to do on the other kind.
_OF_V07 = {
    "magic": ("--magic", "they say themselves which format they want"),
    "batch_size": ("--batch-size", "give --batch-bytes"),
    "queued": ("--async", "here lines are always sent in the background"),
    "queue_time": ("--queue-time", "give --linger"),
    "queue_size": ("--queue-size", "lines that wait have 32 MiB"),
    "verify": ("--verify", "these confirm what they take, see --acks"),
    "verify_timeout": ("--verify-timeout", "these confirm what they take, see --acks"),
}
_OF_KAFKA = {
    "acks": "--acks",
    "batch_bytes": "--batch-bytes",
    "linger": "--linger",
    "headers": "--header",
    "delivery_timeout": "--delivery-timeout",
    "round_robin": "--round-robin",
}


def _headers(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> tuple[tuple[str, bytes], ...]:
    headers = []
    for text in texts:
        key, equals, value = text.partition("=")
        if not (key and equals):
            raise click.BadParameter(f"{text!r} is not of the form KEY=VALUE.")
        headers.append((key, value.encode(errors="surrogateescape")))
    return tuple(headers)


@click.command("produce", epilog=EXAMPLES)
@cluster_options(required=False)
@click.option(
    "--broker", "brokers", multiple=True, metavar="HOST:PORT", help="A broker of 0.7; may be given several times."
)
@click.option("--topic", required=True, help="The topic to send to.")
@click.option(
    "--partition",
    type=click.IntRange(-1, (1 << 31) - 1),
    help="The partition's number (0.7: on a broker; -1 lets the broker choose). [default: by key, or any]",
)
@click.option(
    "--codec",
    cls=SettingOption,
    setting="consumerd.producer:ProducerSettings.codec",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    show_default=True,
    help="lz4 since 0.8.2, zstd since 2.1.",
)
@click.option(
    "--key-separator",
    metavar="TEXT",
    help="What stands between key and message in each line (\\t is a tab). The key chooses the partition as in Java "
    "clients; to 0.7 it is not sent, and with --broker it has no influence.",
)
@click.option(
    "--max-message-bytes",
    cls=SettingOption,
    setting="consumerd.producer:ProducerSettings.max_message_bytes",
    type=PositiveInt(MAX_LINE_BYTES),
    help="Refuse longer lines. [default: as the brokers say; 0.7, where they do not: {default}]",
)
@click.option(
    "--acks",
    cls=SettingOption,
    setting="consumerd.producer:V08ProducerSettings.acks",
    words=lambda acks: "all" if acks < 0 else acks,
    type=click.Choice(["0", "1", "all"]),
    help="Since 0.8: who confirms. [default: {default}]",
)
@click.option(
    "--batch-bytes",
    cls=SettingOption,
    setting="consumerd.producer:V08ProducerSettings.batch_bytes",
    type=PositiveInt(32 << 20),
    help="Since 0.8: of a batch. [default: {default}]",
)
@click.option(
    "--linger",
    cls=SettingOption,
    setting="consumerd.producer:V08ProducerSettings.linger",
    type=click.FloatRange(0),
    metavar="SECONDS",
    help="Since 0.8: how long a line waits for others to make up a batch. [default: {default}]",
)
@click.option(
    "--delivery-timeout",
    cls=SettingOption,
    setting="consumerd.producer:V08ProducerSettings.delivery_timeout",
    type=PositiveFloat(),
    metavar="SECONDS",
    help="Since 0.8: how long a batch is tried. [default: {default}]",
)
@click.option(
    "--round-robin",
    is_flag=True,
    help="Since 0.8: lines without a key go to one partition after the other. [default: a batch to each]",
)
@click.option(
    "--header",
    "headers",
    multiple=True,
    callback=_headers,
    metavar="KEY=VALUE",
    help="Since 0.11: a header of every message; may be given several times.",
)
@click.option(
    "--magic",
    cls=SettingOption,
    setting="consumerd.producer:ProducerSettings.magic",
    type=click.IntRange(0, 1),
    help="0.7: message format, 0 is that of Kafka 0.6. [default: {default}]",
)
@click.option(
    "--batch-size",
    cls=SettingOption,
    setting="consumerd.producer:QueueSettings.batch_size",
    type=PositiveInt(),
    help="0.7: messages in one batch at most. [default: {default}]",
)
@click.option("--async", "queued", is_flag=True, help="0.7: send in the background, through a queue.")
@click.option(
    "--queue-time",
    cls=SettingOption,
    setting="consumerd.producer:QueueSettings.queue_time",
    type=click.FloatRange(0),
    metavar="SECONDS",
    help="0.7, with --async: how long a line waits for others to make up a batch. [default: {default}]",
)
@click.option(
    "--queue-size",
    cls=SettingOption,
    setting="consumerd.producer:QueueSettings.queue_size",
    type=PositiveInt(),
    help="0.7, with --async: lines that wait at most. [default: {default}]",
)
@click.option("--verify", is_flag=True, help="0.7: read back what was sent, and fail where it is not there.")
@click.option(
    "--verify-timeout",
    cls=SettingOption,
    setting="consumerd.producer:ProducerSettings.verify_timeout",
    type=PositiveFloat(),
    metavar="SECONDS",
    help="0.7, with --verify: how long to look. [default: {default}]",
)
def command(cluster: ClusterAddress | None, **options: Any) -> None:
    """Send the lines of standard input to a topic."""
    from consumerd.daemon.logs import configure_logs  # noqa: PLC0415 - heavy imports only for the command that runs

    given = Options(**options)
    if bool(given.brokers) == (cluster is not None):
        raise click.UsageError("give either --broker or --zookeeper, or --bootstrap-server.")
    if given.key_separator == "":
        raise click.BadParameter("it is empty.", param_hint="--key-separator")
    if not given.queued and (given.queue_time is not None or given.queue_size is not None):
        raise click.UsageError("--queue-time and --queue-size belong to --async.")
    configure_logs("warning", "auto")
    if cluster is None:
        from consumerd.cli.produce_v07 import produce_to_brokers  # noqa: PLC0415

        require_v07(given)
        produce_to_brokers(given)
    elif cluster.bootstrap:
        from consumerd.cli.produce_v08 import produce_to_cluster  # noqa: PLC0415

        require_kafka(given)
        produce_to_cluster(cluster, given)
    else:
        cluster.run(lambda session: _by_zookeeper(session, cluster, given))


async def _by_zookeeper(session: Session, cluster: ClusterAddress, options: Options) -> None:
    """To whatever brokers are registered; 0.7 where none is."""
    from consumerd.cli.clusters import dialect_at, registered_client  # noqa: PLC0415
    from consumerd.registry import Dialect  # noqa: PLC0415

    if await dialect_at(session) is Dialect.V08:
        from consumerd.cli.produce_v08 import produce  # noqa: PLC0415

        require_kafka(options)
        async with await registered_client(session, cluster) as client:
            await produce(client, options)
        return
    from consumerd.cli.produce_v07 import produce_by_zookeeper  # noqa: PLC0415

    require_v07(options)
    await produce_by_zookeeper(session, options)


def _said(options: Options, name: str) -> bool:
    value = getattr(options, name)
    return not (value is None or value is False or value == ())


def require_v07(options: Options) -> None:
    """Raise UsageError for what brokers of 0.7 do not have."""
    for name, option in _OF_KAFKA.items():
        if _said(options, name):
            raise click.UsageError(f"{option} is for brokers of Kafka 0.8 and later: give --bootstrap-server.")
    if options.codec in ("lz4", "zstd"):
        raise click.UsageError(f"--codec {options.codec}: brokers of 0.7 know none, gzip and snappy alone.")


def require_kafka(options: Options) -> None:
    """Raise UsageError for what only brokers of 0.7 have."""
    for name, (option, instead) in _OF_V07.items():
        if _said(options, name):
            raise click.UsageError(f"{option} is for brokers of Kafka 0.7, and these are of 0.8 or later: {instead}.")
    if options.partition is not None and options.round_robin:
        raise click.UsageError("--partition and --round-robin do not go together: give one of both.")
    if options.partition == -1:
        raise click.UsageError("--partition -1 is for brokers of Kafka 0.7: leave it out, and lines go anywhere.")
