"""`consumerd migrate verify`: compare a new cluster with an old one."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from consumerd.base.errors import ExitCode
from consumerd.cli.archive_work import layout_option
from consumerd.cli.clusters import dialect_at, make_client
from consumerd.cli.config_option import file_option, json_option, servers_option
from consumerd.cli.mirror_v08 import rename_option, to_config_option, to_servers_option, topic_naming
from consumerd.cli.numbers import PositiveInt, zookeeper_option
from consumerd.cli.session import (
    bootstrap_servers,
    broker_timeout_option,
    connector,
    run_tool,
    timeout_option,
    with_session,
)
from consumerd.cli.setting_option import fetch_isolation_option
from consumerd.cli.tables import counted, printable, show_rows
from consumerd.operate.migrate.findings import ComparisonReport, MessageCounts, PartitionReport
from consumerd.operate.migrate.message_source import MessageSource
from consumerd.wire.registry.dialect import Dialect

if TYPE_CHECKING:
    from consumerd.handlers.forward.target_log import TargetLog
    from consumerd.net.client.cluster import ClusterClient
    from consumerd.net.zk.session import Session

EXAMPLES = """\b
Examples:
  consumerd migrate verify --from-zookeeper old:2181/kafka --topic events --to-bootstrap-server new:9092
  consumerd migrate verify --from-zookeeper old:2181 --group leave --to-bootstrap-server new:9092 --allow-duplicates
  consumerd migrate verify --from-directory /archive --layout 'broker-{broker}/{topic}-{partition}' --rename a=b \\
      --to-bootstrap-server new:9092
  consumerd migrate verify ... --json | jq '.partitions[].ranges[] | select(.missing > 0)'

The exit code is 0 if the target has every message of the source, unchanged, once and in order, and 11 otherwise.
Differences that --allow-duplicates and --allow-foreign ignore are still counted.
"""
#: Short, so that a table fits; JSON has the whole words: duplicated, out_of_order.
_COLUMNS = [">source", ">there", ">missing", ">changed", ">again", ">late", ">foreign"]


@click.command("verify", epilog=EXAMPLES)
@zookeeper_option("--from-zookeeper", "ZooKeeper of a source cluster of Kafka 0.7.")
@click.option(
    "--from-directory",
    "directories",
    multiple=True,
    type=str,
    metavar="PATH",
    help="Archive of segment files as the source, of 0.7 or of 0.8 and later; may be given several times.",
)
@servers_option(
    "--from-bootstrap-server",
    "from_servers",
    about="Brokers of a source cluster of Kafka 0.8 or later; requires --topic.",
)
@file_option(
    "--from-config",
    about="Configuration file of a daemon whose [kafka] is used for the source: TLS, SASL, client_id.",
)
@layout_option("Pattern of the archive's folders, as for `consumerd log verify`.")
@click.option("--broker-id", type=click.IntRange(0, (1 << 31) - 1), help="Id of the broker whose archive of 0.7 it is.")
@click.option("--topic", "topics", multiple=True, help="Only this topic; may be given several times.")
@click.option("--group", help="Compare only up to what this group of the 0.7 cluster has committed.")
@to_servers_option("Brokers of the new cluster", required=True)
@to_config_option
@fetch_isolation_option("Read all messages of 0.8 and later, or only those of committed transactions.")
@rename_option()
@click.option("--topic-template", default="{topic}", show_default=True, help="Name of all other topics on the target.")
@click.option("--source", "cluster", metavar="NAME", help="Name of the source in the headers, if it has one.")
@click.option(
    "--range",
    "range_messages",
    type=PositiveInt(),
    default=10_000,
    show_default=True,
    help="Number of messages per range compared by checksums.",
)
@click.option(
    "--examples",
    type=click.IntRange(0),
    default=10,
    show_default=True,
    help="Number of messages to show of each kind of difference.",
)
@click.option("--ranges", "all_ranges", is_flag=True, help="Show every range, not only those that differ.")
@click.option("--allow-duplicates", is_flag=True, help="Ignore duplicated messages for the exit code.")
@click.option("--allow-foreign", is_flag=True, help="Ignore messages that are not from the source for the exit code.")
@timeout_option("ZooKeeper")
@broker_timeout_option
@json_option(
    'One JSON object: {"clean": ..., "totals": ..., "partitions": [...], "strangers": ..., "examples": [...]}.'
)
def command(**options: Any) -> int:
    """Compare every message of an old cluster, or of an archive, with what was forwarded to a new one.

    Messages are found by the headers that `consumerd mirror` and the handler `forward` write. In a pipe the first field
    of a line is `partition`, `range`, `strangers`, `example` or `total`.
    """
    report = _report(options)
    allowed = {"duplicates": options["allow_duplicates"], "foreign": options["allow_foreign"]}
    if options["as_json"]:
        click.echo(json.dumps(report.as_json(**allowed), indent=2))
    else:
        _show(report, all_ranges=options["all_ranges"])
    return ExitCode.OK if report.is_clean(**allowed) else ExitCode.CHECK_FAILED


def _report(options: dict[str, Any]) -> ComparisonReport:
    from consumerd.operate.migrate.archive_source import StoredArchiveSource, archive_source  # noqa: PLC0415
    from consumerd.operate.migrate.cluster_source import ClusterSource  # noqa: PLC0415

    zookeeper, directories = options["from_zookeeper"], options["directories"]
    servers = options["from_servers"]
    if (zookeeper is not None) + bool(directories) + bool(servers) != 1:
        raise click.UsageError("give one of --from-zookeeper, --from-directory and --from-bootstrap-server.")
    if options["group"] is not None and zookeeper is None:
        raise click.UsageError("--group requires --from-zookeeper.")
    if servers and not options["topics"]:
        raise click.UsageError("--from-bootstrap-server requires --topic.")
    naming = topic_naming(options["renames"], options["topic_template"])
    topics = options["topics"]
    if servers:
        return run_tool(_compare_clusters(naming, options))
    if zookeeper is None:
        bootstrap_servers(options["to_servers"], "--to-bootstrap-server")
        committed = options["isolation"] == "read_committed"
        archive = archive_source(
            directories, topics, layout=options["layout"], broker=options["broker_id"], committed=committed
        )
        report = run_tool(_compare(archive, naming, options))
        for note in archive.notes if isinstance(archive, StoredArchiveSource) else ():
            click.echo(f"consumerd: {printable(note)}", err=True)
        return report

    async def from_cluster(session: Session) -> ComparisonReport:
        from consumerd.wire.registry.errors import DialectError  # noqa: PLC0415

        if await dialect_at(session) is Dialect.V08:
            raise DialectError(
                f"the brokers in ZooKeeper at {zookeeper} are of Kafka 0.8 or later: give one of their addresses by "
                "--from-bootstrap-server, and --topic."
            )
        connect = connector(options["broker_timeout"])
        return await _compare(ClusterSource(session, connect, topics, group=options["group"]), naming, options)

    return with_session(zookeeper, options["timeout"], from_cluster)


async def _compare_clusters(naming: Any, options: dict[str, Any]) -> ComparisonReport:
    from consumerd.operate.migrate.cluster_source import V08ClusterSource  # noqa: PLC0415

    async with _client("from", options) as client:
        return await _compare(V08ClusterSource(_log(client, options), options["topics"]), naming, options)


async def _compare(source: MessageSource, naming: Any, options: dict[str, Any]) -> ComparisonReport:
    from consumerd.operate.migrate.verify import Comparison  # noqa: PLC0415

    async with _client("to", options) as client:
        await client.any_channel()  # before the source is read, which may take hours
        return await Comparison(
            source,
            _log(client, options),
            naming,
            cluster=options["cluster"],
            range_messages=options["range_messages"],
            examples=options["examples"],
            progress=_show_progress if sys.stderr.isatty() else lambda _: None,
        ).run()


def _log(client: ClusterClient, options: dict[str, Any]) -> TargetLog:
    from consumerd.handlers.forward.target_log import TargetLog  # noqa: PLC0415

    return TargetLog(client, read_committed=options["isolation"] == "read_committed")


def _show_progress(what: str) -> None:
    click.echo(f"{what} ...", err=True)


def _client(side: str, options: dict[str, Any]) -> ClusterClient:
    """Return a client of the cluster on one side, `from` or `to`."""
    from consumerd.service.config.model import load  # noqa: PLC0415

    config = None if options[f"{side}_config"] is None else load(options[f"{side}_config"])
    timeout = options["broker_timeout"]
    addresses = bootstrap_servers(options[f"{side}_servers"], f"--{side}-bootstrap-server")
    return make_client(addresses, config, timeout, 4 * timeout)


def _show(report: ComparisonReport, *, all_ranges: bool) -> None:
    totals = report.totals
    show_rows(
        ["partition", "target", *_COLUMNS, ">outside"],
        ((each.partition, _places(each), *_cells(each.counts), each.outside) for each in report.partitions),
        title=", ".join([counted(len(report.partitions), "partition"), counted(totals.source, "message")]),
        kind="partition",
    )
    show_rows(
        ["range of", ">start", ">end", *_COLUMNS],
        (
            (partition.partition, each.range.start, each.range.end, *_cells(each.counts))
            for partition in report.partitions
            for each in partition.ranges
            if all_ranges or not each.counts.is_clean()
        ),
        kind="range",
    )
    show_rows(["on the target", ">foreign"], sorted(report.strangers.items()), kind="strangers")
    unreadable = [("unreadable", problem) for each in report.partitions for problem in each.unreadable]
    examples = [(each.kind, each.message) for each in report.examples]
    show_rows(["trouble", "message"], unreadable + examples, kind="example")
    show_rows([">partitions", *_COLUMNS], [[len(report.partitions), *_cells(totals)]], kind="total")


def _cells(counts: MessageCounts) -> tuple[int, ...]:
    return tuple(counts.as_json().values())


def _places(report: PartitionReport) -> str:
    return f"{report.topic}/{','.join(map(str, report.places))}" if report.places else report.topic
