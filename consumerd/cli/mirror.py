"""`consumerd mirror`: one cluster's topics to another cluster."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from consumerd.base.errors import ConfigError
from consumerd.cli.config_option import config_option, servers_option
from consumerd.cli.mirror_v08 import (
    kafka_target_options,
    key_option,
    partitions_option,
    target_section,
    topic_naming,
)
from consumerd.cli.numbers import PositiveFloat, PositiveInt, zookeeper_option
from consumerd.cli.session import SERVER_TIMEOUT, bootstrap_servers, server_list
from consumerd.cli.setting_option import fetch_isolation_option, setting_option

if TYPE_CHECKING:
    from consumerd.service.config.model import Config
    from consumerd.service.daemon.forward_mirror import ForwardTarget
    from consumerd.service.daemon.mirroring import MirrorTarget

EXAMPLES = """\b
Examples:
  consumerd mirror --from-zookeeper old:2181 --group move --whitelist 'events|orders' --to-zookeeper new:2181/kafka
  consumerd mirror --from-zookeeper zk1:2181 --group copy --topic events --to-broker 10.0.0.7:9092 --codec gzip --verify
  consumerd mirror --from-zookeeper zk1:2181 --group once --blacklist 'test-.*' --to-zookeeper zk2:2181 --exit-at-end
  consumerd mirror -c source.toml --to-zookeeper zk2:2181/kafka
  consumerd mirror --from-zookeeper old:2181 --group leave --topic events --to-bootstrap-server new:9092 --partitions 12
  consumerd mirror --from-bootstrap-server kafka1:9092 --group copy --topic events --to-bootstrap-server new:9092

Name a target of Kafka 0.7 with --to-zookeeper or --to-broker, a later one with --to-bootstrap-server. The mirror is a
member of the group: two of them share the partitions. A batch is committed when the target has stored it. Nothing is
lost when the mirror is stopped, killed or disconnected; what was sent but not committed is sent again, unless --resume
target continues after what the target has, or --exactly-once writes it in transactions. Each source partition goes to
one partition of the target, in order; docs/tools.md says which, and how `consumerd migrate verify` compares the two.
"""

_OF_KAFKA_TARGETS = {
    "renames": "--rename",
    "partitions": "--partitions",
    "replication_factor": "--replication-factor",
    "key": "--key",
    "no_headers": "--no-headers",
    "resume": "--resume",
    "exactly_once": "--exactly-once",
    "round_robin": "--round-robin",
    "to_config": "--to-config",
    "isolation": "--isolation",
}
_SAID_BY_CONFIG = {
    "from_zookeeper": "--from-zookeeper",
    "from_servers": "--from-bootstrap-server",
    "group": "--group",
    "topics": "--topic",
    "whitelist": "--whitelist",
    "blacklist": "--blacklist",
    "initial": "--from",
    "isolation": "--isolation",
    "health_listen": "--health-listen",
    "metrics": "--metrics",
}


@click.command("mirror", epilog=EXAMPLES)
@zookeeper_option("--from-zookeeper", "ZooKeeper of the source cluster, where its brokers and the group register.")
@servers_option(
    "--from-bootstrap-server",
    "from_servers",
    about="Brokers of a source cluster of Kafka 0.9 or later, which coordinate the group.",
)
@click.option("--group", help="Consumer group to join on the source.")
@click.option("--topic", "topics", multiple=True, help="Topic to mirror; may be given several times.")
@click.option(
    "--whitelist", metavar="REGEX", help="Mirror all topics that match this regular expression, new ones too."
)
@click.option("--blacklist", metavar="REGEX", help="Mirror all topics that do not match this regular expression.")
@config_option(
    "Configuration file of a daemon that names source, group and topics instead; its [handler] is not used.",
    required=False,
)
@zookeeper_option("--to-zookeeper", "ZooKeeper of a target cluster of Kafka 0.7.")
@click.option(
    "--to-broker",
    "brokers",
    multiple=True,
    metavar="HOST:PORT",
    help="Broker of a target cluster of Kafka 0.7; may be given several times.",
)
@kafka_target_options
@setting_option(
    "--codec",
    setting="consumerd.producer:ProducerSettings.codec",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    show_default=True,
    help="Compression codec; lz4 and zstd require --to-bootstrap-server.",
)
@setting_option(
    "--from",
    "initial",
    setting="consumerd.base.settings.processing:FetchSection.initial",
    type=click.Choice(["earliest", "latest"]),
    help="Where to start in partitions without a committed offset.  [default: {default}]",
)
@fetch_isolation_option(
    "With --to-bootstrap-server: copy all messages of the source (0.11 and later), or only those of committed "
    "transactions."
)
@click.option(
    "--any-partition", is_flag=True, help="Let each batch go to any partition: balances better, but loses the order."
)
@click.option("--verify", is_flag=True, help="Read sent messages back from the target before they are committed.")
@setting_option(
    "--verify-timeout",
    setting="consumerd.producer:ProducerSettings.verify_timeout",
    type=PositiveFloat(),
    show_default=True,
    metavar="SECONDS",
    help="With --verify: time to wait until sent messages can be read.",
)
@setting_option(
    "--max-message-bytes",
    setting="consumerd.producer:ProducerSettings.max_message_bytes",
    type=PositiveInt(100 * 1024 * 1024),
    show_default=True,
    help="Largest message in bytes that the target accepts (max.message.size); larger ones are dropped silently.",
)
@click.option(
    "--health-listen",
    metavar="HOST:PORT",
    help="Address of an HTTP server for /healthz, /readyz and, on a loopback address, the status page (requires the "
    "extra http).  [default: none]",
)
@click.option(
    "--metrics",
    is_flag=True,
    help="With --health-listen: serve /metrics for Prometheus, too (requires the extra metrics).",
)
@click.option("--exit-at-end", is_flag=True, help="Stop when all messages that were there at the start are mirrored.")
def command(**options: Any) -> None:
    """Copy topics from one cluster to another, as a member of a group."""
    from consumerd.service.daemon.signals import process_signals  # noqa: PLC0415 - only for the command that runs

    with process_signals() as signals:  # before all that takes time
        from consumerd.service.daemon.logs import configure_logs  # noqa: PLC0415
        from consumerd.service.daemon.loop import run_on_loop  # noqa: PLC0415
        from consumerd.service.daemon.mirroring import mirror  # noqa: PLC0415

        target = _kafka_target(options) if options["to_servers"] else _target(options)
        config = _config(options)
        configure_logs(config.log.level, config.log.format)
        run = mirror(config, target, exit_at_end=options["exit_at_end"])
        sent = run_on_loop(run, config.daemon.loop, signals=signals, budget=config.fetch.budget)
    if sys.stderr.isatty():
        click.echo(f"{sent:,} messages mirrored", err=True)


def _config(options: dict[str, Any]) -> Config:
    """The member's configuration, from a file or the command line. Raises ConfigError, UsageError."""
    from consumerd.service.config.model import load, parse  # noqa: PLC0415

    if options["path"] is not None:
        for name, option in _SAID_BY_CONFIG.items():
            if options[name]:
                raise click.UsageError(f"{option} and --config contradict each other: give one of them.")
        config = load(options["path"])
        if config.subscriptions:
            raise ConfigError("a mirror has one subscription, that of [group]: run one mirror for each of the others.")
        return config
    if (options["from_zookeeper"] is None) == (not options["from_servers"]) or options["group"] is None:
        raise click.UsageError("give one of --from-zookeeper and --from-bootstrap-server, and --group; or --config.")
    if sum(bool(options[name]) for name in ("topics", "whitelist", "blacklist")) != 1:
        raise click.UsageError("give exactly one of --topic (perhaps several times), --whitelist and --blacklist.")
    group: dict[str, Any] = {"id": options["group"]}
    if options["topics"]:
        group["topics"] = dict.fromkeys(options["topics"], 1)
    for name in ("whitelist", "blacklist"):
        if options[name]:
            group[name] = options[name]
    document: dict[str, Any] = {"group": group}
    document |= _health(options)
    document["fetch"] = {name: options[name] for name in ("initial", "isolation") if options[name]}
    if options["from_servers"]:
        group["coordination"] = "kafka"
        document["kafka"] = {
            "bootstrap": server_list(options["from_servers"], "--from-bootstrap-server"),
            "connection_timeout": SERVER_TIMEOUT,
        }
    else:
        document["zookeeper"] = {"connect": options["from_zookeeper"], "connection_timeout": SERVER_TIMEOUT}
    return parse(document, "the command line", environment=False)


def _health(options: dict[str, Any]) -> dict[str, Any]:
    if options["health_listen"]:
        return {"health": {"listen": options["health_listen"], "metrics": options["metrics"]}}
    if options["metrics"]:
        raise click.UsageError("--metrics needs --health-listen: give an address such as 127.0.0.1:8080.")
    return {}


def _target(options: dict[str, Any]) -> MirrorTarget:
    from consumerd.producer import ProducerSettings  # noqa: PLC0415
    from consumerd.service.daemon.mirroring import MirrorTarget  # noqa: PLC0415
    from consumerd.wire.v07 import Codec  # noqa: PLC0415

    if bool(options["brokers"]) == (options["to_zookeeper"] is not None):
        raise click.UsageError("give one of --to-zookeeper, --to-broker and --to-bootstrap-server.")
    if options["from_servers"]:
        raise click.UsageError(
            "--from-bootstrap-server goes with --to-bootstrap-server only: brokers of 0.7 have no keys."
        )
    if options["codec"] in ("lz4", "zstd"):
        raise click.UsageError(f"brokers of 0.7 do not support --codec {options['codec']}: use none, gzip or snappy.")
    for name, option in _OF_KAFKA_TARGETS.items():
        if options[name]:
            raise click.UsageError(f"{option} goes with --to-bootstrap-server only.")
    settings = ProducerSettings(
        codec=Codec[options["codec"].upper()],
        max_message_bytes=options["max_message_bytes"],
        verify=options["verify"],
        verify_timeout=options["verify_timeout"],
    )
    brokers = bootstrap_servers(options["brokers"], "--to-broker")
    return MirrorTarget(options["to_zookeeper"], brokers, not options["any_partition"], settings)


def _kafka_target(options: dict[str, Any]) -> ForwardTarget:
    from consumerd.handlers.forward.keys import key_extractor  # noqa: PLC0415
    from consumerd.handlers.forward.settings import ForwardPlacing, ForwardResume, ForwardSettings  # noqa: PLC0415
    from consumerd.service.daemon.forward_mirror import ForwardTarget  # noqa: PLC0415
    from consumerd.wire.v08.records import RecordCodec  # noqa: PLC0415

    if options["brokers"] or options["to_zookeeper"] is not None:
        raise click.UsageError("give one of --to-zookeeper, --to-broker and --to-bootstrap-server.")
    if options["verify"]:
        raise click.UsageError("--verify is for brokers of 0.7; here all replicas acknowledge what is sent.")
    placings = {
        "any_partition": ForwardPlacing.ANY,
        "round_robin": ForwardPlacing.ROUND_ROBIN,
        "key": ForwardPlacing.KEY,
    }
    said = [name for name in placings if options[name]]
    if len(said) > 1:
        first, second = (f"--{name.replace('_', '-')}" for name in said[:2])
        raise click.UsageError(f"{first} and {second} contradict each other: give one of them.")
    key = key_option(options["key"])
    partitions = partitions_option(options["partitions"])
    try:
        settings = ForwardSettings(
            placing=placings[said[0]] if said else ForwardPlacing.KEEP,
            key=key_extractor(key) if key else None,
            headers=not options["no_headers"],
            codec=RecordCodec[options["codec"].upper()],
            max_message_bytes=options["max_message_bytes"],
            resume=ForwardResume(options["resume"] or ForwardResume.COMMITTED),
            exactly_once=options["exactly_once"],
            partitions=partitions,
            replication_factor=options["replication_factor"],
        )
    except ValueError as error:
        raise click.UsageError(f"{error}.") from error
    naming = topic_naming(options["renames"])
    return ForwardTarget(target_section(options["to_servers"], options["to_config"]), naming, settings)
