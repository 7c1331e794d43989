"""`consumerd consume`: a topic's messages on standard output, as a member of a group, or without one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from consumerd.base.address import format_address
from consumerd.base.errors import HandlerLoadError
from consumerd.base.settings.moments import ENDS, is_start
from consumerd.cli.clusters import require_names
from consumerd.cli.config_option import json_option
from consumerd.cli.decoder_options import decoder_options, decoder_table
from consumerd.cli.numbers import PositiveInt
from consumerd.cli.offsets_input import parse_target, parse_time
from consumerd.cli.session import ClusterAddress, cluster_options
from consumerd.cli.setting_option import fetch_isolation_option, setting_option

if TYPE_CHECKING:
    from consumerd.handlers.builtin.console import Field
    from consumerd.handlers.decoding.api import Decoder
    from consumerd.operate.admin.changes import OffsetTarget
    from consumerd.service.config.model import Config

EXAMPLES = """\b
Examples:
  consumerd consume --bootstrap-server kafka1:9092,kafka2:9092 --topic events --exit-at-end > events.txt
  consumerd consume --bootstrap-server kafka1:9092 --topic events --from -10 --exit-at-end --format '%p %o %T %k %s\\n'
  consumerd consume --bootstrap-server kafka1:9092 --topic events --from-time 2026-11-21T12:00 --max-messages 100
  consumerd consume --bootstrap-server kafka1:9092 --topic events --partition 3 --from latest --json | jq .key
  consumerd consume -c /etc/consumerd/events.toml --topic events --max-messages 5 --json --decoder schema_registry \\
      --decoder-option 'url="https://registry:8081"' | jq .value
  consumerd consume --bootstrap-server kafka1:9092 --group console --topic events --isolation read_committed
  consumerd consume -c /etc/consumerd/events.toml --whitelist 'events-.*' --max-messages 10 --key-separator ': '
  consumerd consume --zookeeper 127.0.0.1:2181/kafka --group console --topic events
  consumerd consume --zookeeper zk1:2181 --group export --topic events --exit-at-end > events.txt
  consumerd consume --zookeeper zk1:2181 --group console --whitelist 'events-.*' --exit-at-end

With --group, printed messages are committed for the group, regularly and when the command ends: a second run
continues after the first, and two runs at the same time share the partitions. Without --group (Kafka 0.8 and later,
with --bootstrap-server or -c) all partitions that exist at the start are read, and nothing is committed.

Of the file of -c, only servers, credentials, TLS and, with --json, the decoder are used: the group of a daemon is
joined only if --group names it.
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
@setting_option(
    "--from",
    "initial",
    setting="consumerd.base.settings.processing:FetchSection.initial",
    metavar="WHERE",
    show_default=True,
    help="Where to start: earliest, latest, a time, or a duration before now, such as 7d; without --group also an "
    "offset, or -N for the last N messages of each partition. With --group, only in partitions without a committed "
    "offset.",
)
@click.option(
    "--from-time",
    metavar="TIME",
    help="Without --group: start with the first message of that time or later, in ISO 8601 (UTC unless it has an "
    "offset) or milliseconds since 1970.",
)
@click.option("--max-messages", type=PositiveInt(), help="Stop after this many messages.")
@click.option("--exit-at-end", is_flag=True, help="Stop when all messages that were there at the start are printed.")
@fetch_isolation_option("With --bootstrap-server: print all messages, or only those of committed transactions.")
@json_option("Print one JSON object per message: identity, key, timestamp, headers.")
@decoder_options(
    "With --json: add the value that this decoder makes of each payload: text, json, avro, schema_registry, or another "
    "plugin; bytes adds none. [default: that of [handler] in --config]"
)
@click.option(
    "--key-separator",
    metavar="TEXT",
    help="Print the key and this text (\\t is a tab) before each payload (Kafka 0.8 and later).",
)
@click.option(
    "--format",
    "form",
    metavar="FORMAT",
    help="Print this for each message, as kcat: %s payload, %k key, %S and %K their sizes, %t topic, %p partition, %o "
    "offset, %T timestamp, %h headers; \\n and \\t as in C. No line end is added.",
)
def command(cluster: ClusterAddress, **options: Any) -> None:
    """Print the messages of topics: payloads, one per line, in the order of each partition."""
    target, form = _check(cluster, options)
    from consumerd.handlers.builtin.console import ConsoleHandler  # noqa: PLC0415
    from consumerd.service.daemon.console import consume, find_starts, without_group  # noqa: PLC0415
    from consumerd.service.daemon.logs import configure_logs  # noqa: PLC0415 - heavy imports only for the command that runs
    from consumerd.service.daemon.loop import run_on_loop  # noqa: PLC0415

    separator = options["key_separator"]
    make_handler = partial(
        ConsoleHandler,
        as_json=options["as_json"],
        key_separator=None if separator is None else separator.replace("\\t", "\t").encode(),
        form=form,
        max_messages=options["max_messages"],
    )
    exit_at_end = options["exit_at_end"]
    config = _config(cluster, options)
    configure_logs("warning", "auto")
    decoder = _decoder(config, is_given=options["decoder"] is not None)

    async def main() -> None:
        await require_names(cluster.bootstrap)
        if not cluster.bootstrap or options["group"] is not None:
            await consume(config, make_handler(), exit_at_end=exit_at_end, decoder=decoder)
        else:
            fixed = await without_group(config, options["partitions"])
            starts = None if target is None else await find_starts(fixed, target)
            await consume(fixed, make_handler(starts=starts), exit_at_end=exit_at_end, decoder=decoder)

    run_on_loop(main())


def _check(
    cluster: ClusterAddress, options: dict[str, Any]
) -> tuple[OffsetTarget | None, Sequence[bytes | Field] | None]:
    """Return where to start, if it is neither earliest nor latest, and the format.

    Raises UsageError for options that contradict each other, or are invalid.
    """
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
    if options["form"] is not None and (options["as_json"] or options["key_separator"] is not None):
        raise click.UsageError("--format cannot be used with --json or --key-separator.")
    if not options["as_json"] and options["decoder"] is not None:
        raise click.UsageError("--decoder goes with --json, which shows the values.")
    return _target(cluster, options), _form(options["form"])


def _target(cluster: ClusterAddress, options: dict[str, Any]) -> OffsetTarget | None:
    if options["from_time"] is not None:
        target = parse_time(options["from_time"], "--from-time")
        options["initial"] = "earliest"
    elif options["initial"] in ENDS or (options["group"] is not None and is_start(options["initial"])):
        return None
    elif options["initial"].startswith("+"):
        raise click.BadParameter("must be earliest, latest, an offset or -N.", param_hint="--from")
    else:
        target = parse_target(options["initial"], "--from")
        options["initial"] = "earliest"
    if not cluster.bootstrap or options["group"] is not None:
        raise click.UsageError(
            "--from-time, and --from with an offset or -N, are for --bootstrap-server without --group: a group "
            "continues where it committed; see `consumerd offsets reset`."
        )
    return target


def _form(text: str | None) -> Sequence[bytes | Field] | None:
    from consumerd.handlers.builtin.console import parse_form  # noqa: PLC0415

    try:
        return None if text is None else parse_form(text)
    except ValueError as error:
        raise click.BadParameter(f"{error}.", param_hint="--format") from None


def _decoder(config: Config, *, is_given: bool) -> Decoder | None:
    """The decoder of the values. `is_given`: by an option. Raises HandlerLoadError."""
    from consumerd.service.config.build_handlers import build_decoder  # noqa: PLC0415

    try:
        return build_decoder(config.handler)
    except HandlerLoadError as error:
        if is_given:
            raise
        raise HandlerLoadError(f"{error} To print messages without its values, give --decoder bytes.") from error


def _config(cluster: ClusterAddress, options: dict[str, Any]) -> Config:
    """The member's configuration. Raises ConfigError."""
    from consumerd.service.config.model import parse  # noqa: PLC0415

    group: dict[str, Any] = {"id": options["group"] or "console", "topics": dict.fromkeys(options["topics"], 1)}
    group |= {name: options[name] for name in ("whitelist", "blacklist")}
    document: dict[str, Any] = {
        "group": group,
        "fetch": {name: options[name] for name in ("initial", "isolation") if options[name] is not None},
        "handler": {"name": "print", **decoder_table(options["decoder"], options["decoder_options"])},
    }
    given: dict[str, Any] = {}
    if cluster.config is not None and options["as_json"] and options["decoder"] is None:
        given = {key: getattr(cluster.config.handler, key) for key in ("decoder", "decoder_options")}
    if not cluster.bootstrap:
        servers = {"connect": cluster.connect, "connection_timeout": cluster.timeout}
        config = parse({**document, "zookeeper": servers}, "the command line", environment=False)
        if cluster.config is None:
            return config
        return config.replace(
            zookeeper=cluster.config.zookeeper.replace(**servers),
            kafka=cluster.config.kafka,
            handler=config.handler.replace(**given),
        )
    group["coordination"] = "kafka"
    addresses = tuple(format_address(*address) for address in cluster.bootstrap)
    brokers = {"bootstrap": addresses, "connection_timeout": cluster.timeout}
    config = parse({**document, "kafka": brokers}, "the command line", environment=False)
    if cluster.config is None:
        return config
    kafka = cluster.config.kafka.replace(**brokers)
    return config.replace(kafka=kafka, handler=config.handler.replace(**given))
