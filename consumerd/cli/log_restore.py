"""`consumerd log export --to-bootstrap-server`: an archive replayed into a cluster."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from consumerd.base.clock import SystemClock
from consumerd.base.errors import ExitCode
from consumerd.cli.archive_work import progress, show_findings, stopping
from consumerd.cli.config_option import together
from consumerd.cli.mirror_v08 import (
    partitions_option,
    rename_option,
    replication_option,
    target_section,
    to_config_option,
    to_servers_option,
    topic_naming,
)
from consumerd.cli.tables import printable, show_rows

if TYPE_CHECKING:
    from consumerd.base.settings.servers import KafkaSection
    from consumerd.handlers.forward.handler import ForwardHandler
    from consumerd.net.client.cluster import ClusterClient
    from consumerd.operate.migrate.archived_topics import ArchivedPartition
    from consumerd.operate.migrate.restore import RestoreReport
    from consumerd.storage.archives.cluster_metadata import ClusterTopics
    from consumerd.storage.archives.pool import StopFlag
    from consumerd.storage.archives.sources import SegmentSource
    from consumerd.wire.v08.records import RecordCodec

#: Raw bytes of a message; the target's limit is for what is stored, and judged there.
_LARGEST_MESSAGE = 64 << 20

#: The options of a target cluster, as parameters of their names.
restore_options = together(
    to_servers_option("Replay the messages into this cluster (2.5 and later) instead of writing files"),
    to_config_option,
    rename_option(" Other topics keep their names."),
    click.option(
        "--partitions",
        multiple=True,
        metavar="TOPIC=N",
        help="Create a topic with N partitions, where the archive does not have the last ones; by its name on the "
        "cluster, and may be given several times.  [default: as many as the archive has]",
    ),
    replication_option,
    click.option("--source", metavar="NAME", help="Name of the archive, to replay several ones into the same cluster."),
    click.option(
        "--verify", is_flag=True, help="Then compare each message on the cluster with the archive; exit code 11."
    ),
)
#: Parameters that are for the cluster alone, and for files alone.
RESTORE_PARAMETERS = ("to_servers", "to_config", "renames", "partitions", "replication_factor", "source", "verify")
_OF_FILES = (
    "file_format",
    "payload",
    "from_offset",
    "to_offset",
    "resync",
    "broker_id",
    "workers",
    "max_expansion",
    "isolation",
)


def refuse_given(parameters: Iterable[str], what: str) -> None:
    """Raise UsageError for the first of `parameters` of the command that is on the command line: it is for `what`."""
    context = click.get_current_context()
    for name in parameters:
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            (flag,) = [each.opts[0] for each in context.command.params if each.name == name]
            raise click.UsageError(f"{flag} is for {what}.")


def check_target(options: Mapping[str, Any], output: Path | None) -> None:
    """Raise UsageError unless either files or a cluster is named, and the options are of that."""
    to_cluster = bool(options["to_servers"])
    if to_cluster == (output is not None):
        raise click.UsageError("give either --output, a folder for files, or --to-bootstrap-server, a cluster.")
    if to_cluster:
        refuse_given(_OF_FILES, "files")
    else:
        refuse_given(RESTORE_PARAMETERS, "a cluster (--to-bootstrap-server)")
    if to_cluster and options["on_corrupt"] == "keep":
        raise click.UsageError("--on-corrupt keep is for files: fail or skip what cannot be read.")


def restore(paths: Sequence[str], *, as_json: bool, allow_torn_tail: bool, **options: Any) -> int:
    """Replay the archive, and show the result."""
    from consumerd.cli.session import run_tool  # noqa: PLC0415 - with asyncio, which no other command of `log` needs
    from consumerd.operate.migrate.archived_topics import require_sound  # noqa: PLC0415
    from consumerd.storage.archives.copies import existing_topics  # noqa: PLC0415
    from consumerd.storage.archives.pool import StopFlag  # noqa: PLC0415
    from consumerd.storage.archives.sources import find_sources  # noqa: PLC0415
    from consumerd.storage.log.archive_items import FlawKind  # noqa: PLC0415
    from consumerd.storage.log.archive_names import ArchiveLayout  # noqa: PLC0415

    section = target_section(options["to_servers"], options["to_config"])
    run_tool(check_reached(section))
    stop = StopFlag()
    with stopping(stop):
        sources = find_sources(paths)
        existing = existing_topics(sources, ArchiveLayout(options["layout"]))
        archived = scan_archive(sources, options["topics"], existing, layout=options["layout"])
        if options["on_corrupt"] == "fail":
            require_sound(archived)
        report = run_tool(_restore(archived, existing, section, stop, options))
    if as_json:
        click.echo(json.dumps(_as_json(report)))
    else:
        _show(report)
    findings = [finding for each in archived for finding in each.findings]
    sound = all(each.kind is FlawKind.TORN and allow_torn_tail for each in findings)
    return ExitCode.OK if sound and not report.differences else ExitCode.CHECK_FAILED


def scan_archive(
    sources: Sequence[SegmentSource],
    topics: Collection[str],
    existing: ClusterTopics | None,
    *,
    layout: str,
    all_there: bool = True,
) -> list[ArchivedPartition]:
    """`find_archived`, with its progress."""
    from consumerd.operate.migrate.archived_topics import find_archived  # noqa: PLC0415

    with progress("reading") as shown:
        shown.begin(sum(source.size or 0 for source in sources), None)

        def scanned(copy: ArchivedPartition) -> None:
            shown.advance(copy.bytes)
            shown.segment(copy.messages)

        return find_archived(sources, topics, layout=layout, all_there=all_there, existing=existing, scanned=scanned)


async def check_reached(section: KafkaSection) -> None:
    """Raise NoBrokerReachedError where the cluster does not answer. To read the archive first may take hours."""
    from consumerd.cli.clusters import require_names  # noqa: PLC0415
    from consumerd.service.config.build_v08 import build_bootstrap  # noqa: PLC0415

    await require_names(build_bootstrap(section))
    async with open_target(section) as client:
        await client.any_channel()


def open_target(section: KafkaSection) -> ClusterClient:
    """A client of the cluster, for `async with`."""
    import random  # noqa: PLC0415

    from consumerd.service.daemon.forwarding import target_client  # noqa: PLC0415

    return target_client(section)(SystemClock(), random.SystemRandom())


async def _restore(
    archived: Sequence[ArchivedPartition],
    existing: ClusterTopics | None,
    section: KafkaSection,
    stop: StopFlag,
    options: Mapping[str, Any],
) -> RestoreReport:
    import random  # noqa: PLC0415

    from consumerd.handlers.forward.mapping import BrokerMajorNumbering  # noqa: PLC0415
    from consumerd.operate.migrate.restore import Restore, restore_settings  # noqa: PLC0415
    from consumerd.service.daemon.forwarding import make_forward_handler, target_client  # noqa: PLC0415
    from consumerd.wire.v08.records import RecordCodec  # noqa: PLC0415

    naming = topic_naming(options["renames"])
    counts = partitions_option(options["partitions"])
    if isinstance(counts, int):
        raise click.UsageError("--partitions must be TOPIC=N: each topic has as many as it had.")

    def make_handler(codec: RecordCodec) -> ForwardHandler:
        settings = restore_settings(codec, source=options["source"], max_message_bytes=_LARGEST_MESSAGE)
        return make_forward_handler(section, naming, BrokerMajorNumbering(), settings)

    codec = options["compress"]
    clock, rng = SystemClock(), random.SystemRandom()
    async with target_client(section)(clock, rng) as client:
        run = Restore(
            archived,
            client,
            make_handler,
            naming,
            clock=clock,
            rng=rng,
            codec=None if codec is None else RecordCodec[codec.upper()],
            counts=counts,
            replicas=options["replication_factor"],
            existing=existing,
        )
        with progress("replaying") as shown:
            return await run.run(verify=options["verify"], progress=shown, stop=stop)


def _as_json(report: RestoreReport) -> dict[str, Any]:
    partitions = [
        {
            "partition": str(each.archived.partition),
            "target": each.topic,
            "folder": each.archived.folder,
            "messages": each.archived.messages,
            "sent": each.sent,
            "aborted": each.archived.aborted,
            "unfinished": each.archived.unfinished,
            "verified": None if not (each.digest or each.difference) else not each.difference,
            "digest": each.digest or None,
            "difference": each.difference or None,
        }
        for each in report.partitions
    ]
    findings = [finding.as_json() for each in report.partitions for finding in each.archived.findings]
    return {"partitions": partitions, "created": report.created, "notes": report.notes, "problems": findings}


def _show(report: RestoreReport) -> None:
    show_rows(
        ["partition", "target", ">messages", ">sent", ">aborted", ">unfinished", "verified", "difference"],
        (
            (
                str(each.archived.partition),
                each.topic,
                each.archived.messages,
                each.sent,
                each.archived.aborted,
                each.archived.unfinished,
                "NO" if each.difference else each.digest,
                each.difference,
            )
            for each in report.partitions
        ),
        kind="partition",
    )
    show_findings([finding for each in report.partitions for finding in each.archived.findings])
    totals = [sum(each.archived.messages for each in report.partitions), sum(each.sent for each in report.partitions)]
    columns = [">partitions", ">messages", ">sent", ">differences"]
    show_rows(columns, [[len(report.partitions), *totals, report.differences]], kind="total")
    for sentence in report.notes:
        click.echo(f"consumerd: {printable(sentence)}", err=True)
