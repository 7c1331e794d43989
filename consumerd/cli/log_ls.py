"""`consumerd log ls`: what an archive holds, at a glance."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from consumerd.cli.archive_work import show_findings, show_totals
from consumerd.cli.config_option import json_option
from consumerd.cli.tables import show_rows, utc_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from consumerd.storage.archives.cluster_metadata import ClusterTopics
    from consumerd.storage.archives.findings import ArchiveFinding
    from consumerd.storage.archives.listing import ListedPartition
    from consumerd.storage.segments.cluster_metadata import ExistingTopic

EXAMPLES = """\b
Examples:
  consumerd log ls /var/lib/kafka
  consumerd log ls /disk1/kafka /disk2/kafka
  consumerd log ls s3://backup/broker-1.tar.gz s3://backup/broker-2.tar.gz
  consumerd log ls --html archive.html /archive
  consumerd log ls --json /archive | jq 'select(.findings != [])'
"""


@click.command("ls", epilog=EXAMPLES)
@json_option("Print a JSON object per partition, and a last one with totals.")
@click.option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write a page with a timeline to FILE, too: for a browser without a network, and for printing.",
)
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
def command(as_json: bool, html: Path | None, paths: tuple[str, ...]) -> None:
    """Show the partitions in an archive of any Kafka, without reading everything.

    PATH is a directory, a tar, or a URL of one. Only names, indexes, and the first and last batches of segments are
    read, so this is quick, and most damage stays unseen: `log verify` finds it. Compressed tars and segments are read
    from beginning to end. Findings do not change the exit code, which is 0.
    """
    from consumerd.storage.archives.copies import compare_all  # noqa: PLC0415 - `--help` needs no archive
    from consumerd.storage.archives.errors import NoSourceError  # noqa: PLC0415 - `--help` needs no archive
    from consumerd.storage.archives.listing import ListedPartition, list_partitions  # noqa: PLC0415

    partitions: list[ListedPartition] = []
    unread: list[ArchiveFinding] = []
    for found in list_partitions(paths):
        if isinstance(found, ListedPartition):
            partitions.append(found)
        else:
            unread.append(found)
    if not partitions and not unread:
        raise NoSourceError(
            f"{' '.join(paths)} holds no segments; name directories with .kafka files (0.7) or .log files named by "
            "their offset (0.8 and later)"
        )
    partitions.sort(key=lambda each: (each.topic is None, each.topic or "", each.partition or 0, each.folder))
    cluster = compare_all(partitions)
    if cluster is not None:
        unread += cluster.findings
    if html is not None:
        _write_page(html, paths, partitions, unread)
    if as_json:
        _show_json(partitions, unread, cluster)
    else:
        _show_rows(partitions, unread, cluster)


def _write_page(
    file: Path, paths: Sequence[str], partitions: Sequence[ListedPartition], unread: Sequence[ArchiveFinding]
) -> None:
    from consumerd.cli.log_page import archive_page  # noqa: PLC0415
    from consumerd.storage.archives.errors import WriteFailedError  # noqa: PLC0415

    page = archive_page(paths, partitions, _findings(partitions, unread), _totals(partitions, unread))
    try:
        file.write_text(page, "utf-8", "replace")
    except OSError as error:
        raise WriteFailedError(f"{file} cannot be written: {error.strerror}; name another file") from error


def _findings(partitions: Sequence[ListedPartition], unread: Sequence[ArchiveFinding]) -> list[ArchiveFinding]:
    return [*(finding for each in partitions for finding in each.findings), *unread]


def _settings(topic: ExistingTopic) -> str:
    return " ".join(f"{name}={value}" for name, value in sorted(topic.configuration.items()))


def _totals(partitions: Sequence[ListedPartition], unread: Sequence[ArchiveFinding]) -> dict[str, int]:
    return {
        "topics": len({each.topic for each in partitions if each.topic is not None}),
        "partitions": len({(each.topic, each.partition) for each in partitions if each.topic is not None}),
        "folders": len(partitions),
        "segments": sum(each.segments for each in partitions),
        "bytes": sum(each.bytes for each in partitions),
        "findings": sum(finding.count for finding in _findings(partitions, unread)),
    }


def _show_json(
    partitions: Sequence[ListedPartition], unread: Sequence[ArchiveFinding], cluster: ClusterTopics | None
) -> None:
    for line in (*(each.as_json() for each in partitions), *(finding.as_json() for finding in unread)):
        click.echo(json.dumps(line))
    summary: dict[str, Any] = dict(_totals(partitions, unread))
    if cluster is not None:
        summary["existing_topics"] = [each.as_json() for each in cluster.topics.values()]
        summary["deleted_topics"] = [
            {"topic": name, "topic_id": topic_id} for topic_id, name in cluster.deleted.items()
        ]
    click.echo(json.dumps({"summary": summary}))


def _show_rows(
    partitions: Sequence[ListedPartition], unread: Sequence[ArchiveFinding], cluster: ClusterTopics | None
) -> None:
    columns = ["partition", "state", ">segments", ">bytes", ">start", ">end", "first (UTC)", "last (UTC)", "formats"]
    show_rows(
        [*columns, ">findings", ">broker", "folder", "topic id"],
        (
            (
                "?" if each.topic is None else f"{each.topic}/{each.partition}",
                each.state,
                each.segments,
                each.bytes,
                each.start,
                each.end,
                utc_text(each.first_time),
                utc_text(each.last_time),
                ",".join(sorted(each.formats)),
                sum(finding.count for finding in each.findings),
                each.broker,
                each.folder,
                each.topic_id,
            )
            for each in partitions
        ),
        kind="partition",
    )
    if cluster is not None:
        rows: list[list[object]] = [
            [name, "existing", len(topic.partitions), topic.topic_id, _settings(topic)]
            for name, topic in cluster.topics.items()
        ]
        rows += [[name, "deleted", None, topic_id, ""] for topic_id, name in cluster.deleted.items()]
        show_rows(["topic", "state", ">partitions", "topic id", "configuration"], rows, kind="topic")
    show_findings(_findings(partitions, unread))
    show_totals(_totals(partitions, unread))
