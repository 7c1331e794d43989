"""`consumerd log export`: segments to NDJSON or Parquet, or into a cluster."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from consumerd.base.clock import SystemClock
from consumerd.base.errors import ExitCode
from consumerd.cli.archive_work import (
    isolation_option,
    over_archive,
    partition_json,
    show_report,
    show_totals,
    source_options,
)
from consumerd.cli.config_option import json_option
from consumerd.cli.log_restore import RESTORE_PARAMETERS, check_target, restore, restore_options

if TYPE_CHECKING:
    from consumerd.storage.archives.export import ExportReport
    from consumerd.storage.archives.options import ExportOptions
    from consumerd.storage.archives.sources import SegmentSource

EXAMPLES = """\b
Examples:
  consumerd log export -o out /var/lib/kafka --broker-id 0
  consumerd log export -o out --format parquet --layout 'broker-{broker}/{topic}-{partition}' /archive
  consumerd log export -o out --compress zstd --topic events --on-corrupt skip s3://archive/2012.tar.gz
  consumerd log export --to-bootstrap-server kafka1:9092 --replication-factor 3 --verify /disk1/kafka /disk2/kafka
"""


@click.command("export", epilog=EXAMPLES)
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for the files and the manifest, created if missing. Repeat the command to continue an interrupted "
    "export.",
)
@click.option(
    "--format",
    "file_format",
    type=click.Choice(["ndjson", "parquet"]),
    default="ndjson",
    show_default=True,
    help="Format of the files.",
)
@click.option(
    "--compress",
    type=click.Choice(["none", "gzip", "zstd", "snappy"]),
    help="Compression. NDJSON: none (default), gzip, zstd. Parquet: zstd (default), snappy, gzip, none. In a cluster: "
    "as it was (default), or one of these.",
)
@click.option(
    "--payload",
    type=click.Choice(["text", "base64"]),
    default="text",
    show_default=True,
    help="For NDJSON: payloads as text if they are UTF-8 (else as base64), or all as base64.",
)
@click.option("--topic", "topics", multiple=True, metavar="NAME", help="Only this topic; may be given several times.")
@click.option("--from-offset", type=click.IntRange(0), default=0, help="Only messages at or after this offset.")
@click.option("--to-offset", type=click.IntRange(0), help="Only messages before this offset.")
@click.option(
    "--on-corrupt",
    type=click.Choice(["fail", "skip", "keep"]),
    default="fail",
    show_default=True,
    help="What to do with messages that cannot be read: fail with exit code 7, skip them, or keep them as rows with "
    "the raw bytes as payload, the problem, and what is known of the CRC.",
)
@click.option(
    "--resync",
    is_flag=True,
    help="With --on-corrupt skip or keep: after unreadable bytes, continue at the next intact messages.",
)
@isolation_option
@json_option("Print the report as one JSON object.")
@restore_options
@source_options
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
def command(
    output: Path | None,
    as_json: bool,
    workers: int | None,
    allow_torn_tail: bool,
    paths: tuple[str, ...],
    **options: Any,
) -> int:
    """Write every message of an archive to NDJSON or Parquet, with its identity and where it came from.

    With --to-bootstrap-server the messages of 0.8 and later are replayed into a cluster instead: with their keys,
    headers and timestamps, each partition into that of its number, without those of transactions that were not
    committed. Topics that the cluster does not have are created. Repeat the command to continue after an interruption:
    no message is there twice for readers of committed messages. `log offsets` moves the groups then.

    PATH is as for `log verify`. Every segment becomes a file OUTPUT/TOPIC/[BROKER-]PARTITION/START-END.ndjson (or
    another extension), named by its offsets. OUTPUT/_manifest.json lists the finished files; a second run exports only
    what is new or has changed. The exit code is 11 if the export is complete but problems were found, and 7 if a
    corrupt message ended it.
    """
    from consumerd.storage.archives.export import ArchiveExport  # noqa: PLC0415 - `--help` needs no archive

    check_target(options, output)
    if output is None:
        return restore(paths, as_json=as_json, allow_torn_tail=allow_torn_tail, **options)
    for name in RESTORE_PARAMETERS:
        del options[name]
    export_options, monotonic = _options(**options), SystemClock().monotonic

    def export(sources: Sequence[SegmentSource], **how: Any) -> ExportReport:
        return ArchiveExport(sources, output, export_options, monotonic=monotonic, **how).run()

    report = over_archive(paths, workers, "exporting", export)
    if as_json:
        _show_json(report)
    else:
        _show_rows(report)
    return ExitCode.OK if report.is_sound(allow_torn_tail=allow_torn_tail) else ExitCode.CHECK_FAILED


def _options(
    *,
    file_format: str,
    compress: str | None,
    payload: str,
    topics: tuple[str, ...],
    from_offset: int,
    to_offset: int | None,
    on_corrupt: str,
    resync: bool,
    isolation: str,
    layout: str,
    broker_id: int | None,
    max_expansion: int,
) -> ExportOptions:
    from consumerd.storage.archives.options import ExportCompression, ExportFormat, ExportOptions, OnCorrupt  # noqa: PLC0415

    chosen = compress or ("zstd" if file_format == "parquet" else "none")
    if file_format == "ndjson" and chosen == "snappy":
        raise click.UsageError("NDJSON is compressed by gzip or zstd; snappy is for Parquet.")
    return ExportOptions(
        format=ExportFormat(file_format),
        compression=ExportCompression(chosen),
        base64=payload == "base64",
        layout=layout,
        broker=broker_id,
        topics=frozenset(topics),
        first=from_offset,
        last=to_offset,
        on_corrupt=OnCorrupt(on_corrupt),
        resync=resync,
        expansion=max_expansion,
        read_committed=isolation == "read_committed",
    )


def _totals(report: ExportReport) -> dict[str, int]:
    partitions = [partition_json(partition) for partition in report.partitions]
    return {
        "segments": sum(row["segments"] for row in partitions),
        "exported": report.made,
        "kept": report.kept,
        "changed": report.changed,
        "files": report.files,
        "rows": report.rows,
        "bytes": report.bytes,
        "corrupt": sum(row["corrupt"] for row in partitions),
        "torn": sum(row["torn"] for row in partitions),
        "gaps": sum(row["gaps"] for row in partitions),
        "findings": sum(finding.count for finding in report.findings()),
    }


def _show_json(report: ExportReport) -> None:
    partitions = [partition_json(partition) for partition in report.partitions]
    findings = [finding.as_json() for finding in report.findings()]
    click.echo(json.dumps({**_totals(report), "partitions": partitions, "problems": findings}))


def _show_rows(report: ExportReport) -> None:
    show_report(report)
    show_totals(_totals(report))
