"""`consumerd produce`: send the lines of standard input.

Strategy: the dialect follows from the option that names the cluster, or from what is registered in ZooKeeper. Options
that do not exist there are refused, never ignored. `consumerd.cli.produce_lines` sends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from consumerd.cli.clusters import dialect_at, registered_client
from consumerd.cli.numbers import PositiveFloat, PositiveInt
from consumerd.cli.session import ClusterAddress, cluster_options
from consumerd.cli.setting_option import setting_option
from consumerd.wire.registry.dialect import Dialect

if TYPE_CHECKING:
    from consumerd.cli.produce_lines import ProduceOptions
    from consumerd.net.zk.session import Session

EXAMPLES = """\b
Examples:
  tail -F access.log | consumerd produce --bootstrap-server kafka1:9092,kafka2:9092 --topic access --codec zstd
  consumerd produce --bootstrap-server kafka1:9092 --topic orders --key-separator '\\t' < orders.tsv
  consumerd produce -c /etc/consumerd/events.toml --topic events --header source=backfill < lines.txt
  tail -F access.log | consumerd produce --zookeeper zk1:2181/kafka --topic access
  gzip -dc old.gz | consumerd produce --broker 127.0.0.1:9092 --topic events --codec gzip
  consumerd produce --zookeeper zk1:2181 --topic orders --key-separator '\\t' < orders.tsv
  app | consumerd produce --zookeeper zk1:2181 --topic app --async --queue-time 1

Each line is a message, without its newline. It may hold any bytes, and may be empty.

Kafka 0.8 and later (--bootstrap-server, -c, or --zookeeper where such brokers are registered): the key of a line is
sent too, and chooses the partition as in Java clients. Lines are sent while others are read, and brokers since 0.11
discard a batch that is sent twice. On an error the exit code is not 0 and the error names a line: all lines before it
were delivered; it and the lines after it may not have been.

Kafka 0.7: the key is not sent. A batch is sent again if its connection broke before the broker received it, so messages
may be duplicated, but none is lost. On an error the exit code is not 0, and the lines after the batch that failed were
not sent. With --async, lines wait in a queue until a batch is full or the oldest has waited for the queue time; a batch
that fails is dropped and reported at the end, and those after it are sent. --verify reads back what was sent: brokers
return only flushed messages, so a batch may take seconds.
"""

#: Options of one kind of cluster alone, and what to do on the other kind.
_OF_V07 = {
    "magic": ("--magic", "the format follows from their version"),
    "batch_size": ("--batch-size", "give --batch-bytes"),
    "queued": ("--async", "lines are always sent in the background"),
    "queue_time": ("--queue-time", "give --linger"),
    "queue_size": ("--queue-size", "the buffer holds 32 MiB of lines"),
    "verify": ("--verify", "brokers acknowledge what they store, see --acks"),
    "verify_timeout": ("--verify-timeout", "brokers acknowledge what they store, see --acks"),
}
_OF_V08 = {
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
    "--broker",
    "brokers",
    multiple=True,
    metavar="HOST:PORT",
    help="Address of a Kafka 0.7 broker; may be given several times.",
)
@click.option("--topic", required=True, help="The topic to send to.")
@click.option(
    "--partition",
    type=click.IntRange(-1, (1 << 31) - 1),
    help="Number of the partition to send to; in Kafka 0.7 of a partition on each broker, where -1 lets the broker "
    "choose. [default: chosen by the key, or any]",
)
@setting_option(
    "--codec",
    setting="consumerd.producer:ProducerSettings.codec",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    show_default=True,
    help="Compression codec; lz4 requires Kafka 0.8.2 or later, zstd 2.1 or later.",
)
@click.option(
    "--key-separator",
    metavar="TEXT",
    help="Text between key and message in each line (\\t is a tab). The key chooses the partition as in Java "
    "clients. It is not sent to Kafka 0.7, and has no effect with --broker.",
)
@setting_option(
    "--max-message-bytes",
    setting="consumerd.producer:ProducerSettings.max_message_bytes",
    type=PositiveInt(100 * 1024 * 1024),
    help="Maximum size of a line in bytes; a longer one is an error. [default: the brokers' limit; for Kafka 0.7: "
    "{default}]",
)
@setting_option(
    "--acks",
    setting="consumerd.producer:V08ProducerSettings.acks",
    words=lambda acks: "all" if acks < 0 else acks,
    type=click.Choice(["0", "1", "all"]),
    help="Replicas that must acknowledge a batch: 0 (none), 1 (the leader) or all in-sync ones (Kafka 0.8 and "
    "later). [default: {default}]",
)
@setting_option(
    "--batch-bytes",
    setting="consumerd.producer:V08ProducerSettings.batch_bytes",
    type=PositiveInt(32 << 20),
    help="Maximum size of a batch in bytes (Kafka 0.8 and later). [default: {default}]",
)
@setting_option(
    "--linger",
    setting="consumerd.producer:V08ProducerSettings.linger",
    type=click.FloatRange(0),
    metavar="SECONDS",
    help="Time that a line waits for others to fill a batch (Kafka 0.8 and later). [default: {default}]",
)
@setting_option(
    "--delivery-timeout",
    setting="consumerd.producer:V08ProducerSettings.delivery_timeout",
    type=PositiveFloat(),
    metavar="SECONDS",
    help="Time limit for the delivery of a batch, retries included (Kafka 0.8 and later). [default: {default}]",
)
@click.option(
    "--round-robin",
    is_flag=True,
    help="Send lines without a key to the partitions in turn, line by line (Kafka 0.8 and later). [default: batch "
    "by batch]",
)
@click.option(
    "--header",
    "headers",
    multiple=True,
    callback=_headers,
    metavar="KEY=VALUE",
    help="Header to add to every message (Kafka 0.11 and later); may be given several times.",
)
@setting_option(
    "--magic",
    setting="consumerd.producer:ProducerSettings.magic",
    type=click.IntRange(0, 1),
    help="Version of the message format, where 0 is that of Kafka 0.6 (Kafka 0.7 only). [default: {default}]",
)
@setting_option(
    "--batch-size",
    setting="consumerd.producer:QueueSettings.batch_size",
    type=PositiveInt(),
    help="Maximum number of messages in a batch (Kafka 0.7 only). [default: {default}]",
)
@click.option("--async", "queued", is_flag=True, help="Send in the background, through a queue (Kafka 0.7 only).")
@setting_option(
    "--queue-time",
    setting="consumerd.producer:QueueSettings.queue_time",
    type=click.FloatRange(0),
    metavar="SECONDS",
    help=("With --async: time that a line waits for others to fill a batch (Kafka 0.7 only). [default: {default}]"),
)
@setting_option(
    "--queue-size",
    setting="consumerd.producer:QueueSettings.queue_size",
    type=PositiveInt(),
    help="With --async: maximum number of lines in the queue (Kafka 0.7 only). [default: {default}]",
)
@click.option(
    "--verify", is_flag=True, help="Read back what was sent, and fail if any of it is missing (Kafka 0.7 only)."
)
@setting_option(
    "--verify-timeout",
    setting="consumerd.producer:ProducerSettings.verify_timeout",
    type=PositiveFloat(),
    metavar="SECONDS",
    help="With --verify: time to wait until sent messages can be read (Kafka 0.7 only). [default: {default}]",
)
def command(cluster: ClusterAddress | None, **options: Any) -> None:
    """Send the lines of standard input to a topic."""
    from consumerd.cli import produce_lines as lines  # noqa: PLC0415 - heavy imports only for the command that runs
    from consumerd.service.daemon.logs import configure_logs  # noqa: PLC0415
    from consumerd.service.daemon.loop import run_on_loop  # noqa: PLC0415

    given = lines.ProduceOptions(**options)
    if bool(given.brokers) == (cluster is not None):
        raise click.UsageError("give either --broker or --zookeeper, or --bootstrap-server.")
    if given.key_separator == "":
        raise click.BadParameter("it is empty.", param_hint="--key-separator")
    if not given.queued and (given.queue_time is not None or given.queue_size is not None):
        raise click.UsageError("--queue-time and --queue-size belong to --async.")
    configure_logs("warning", "auto")
    if cluster is None:
        require_v07(given)
        run_on_loop(lines.produce_to_brokers(given))
    elif cluster.bootstrap:
        require_v08(given)
        run_on_loop(lines.produce_to_cluster(cluster, given))
    else:
        cluster.run(lambda session: _by_zookeeper(session, cluster, given))


async def _by_zookeeper(session: Session, cluster: ClusterAddress, options: ProduceOptions) -> None:
    """Send to the brokers that are registered; of 0.7 if there are none."""
    from consumerd.cli import produce_lines as lines  # noqa: PLC0415

    if await dialect_at(session) is not Dialect.V08:
        require_v07(options)
        await lines.produce_by_zookeeper(session, options)
        return
    require_v08(options)
    async with await registered_client(session, cluster) as client:
        await lines.produce_v08(client, options)


def _is_given(options: ProduceOptions, name: str) -> bool:
    value = getattr(options, name)
    return not (value is None or value is False or value == ())


def require_v07(options: ProduceOptions) -> None:
    """Raise UsageError for options that Kafka 0.7 does not have."""
    for name, option in _OF_V08.items():
        if _is_given(options, name):
            raise click.UsageError(f"{option} is for brokers of Kafka 0.8 and later: give --bootstrap-server.")
    if options.codec in ("lz4", "zstd"):
        raise click.UsageError(f"brokers of 0.7 do not support --codec {options.codec}: use none, gzip or snappy.")


def require_v08(options: ProduceOptions) -> None:
    """Raise UsageError for options that only Kafka 0.7 has."""
    for name, (option, instead) in _OF_V07.items():
        if _is_given(options, name):
            raise click.UsageError(f"{option} is for brokers of Kafka 0.7, and these are of 0.8 or later: {instead}.")
    if options.partition is not None and options.round_robin:
        raise click.UsageError("--partition and --round-robin contradict each other: give one of them.")
    if options.partition == -1:
        raise click.UsageError("--partition -1 is for brokers of Kafka 0.7: omit it, and lines go to any partition.")
