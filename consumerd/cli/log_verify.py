"""`consumerd log verify`: is an archive of segments sound?"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

import click

from consumerd.base.errors import ExitCode
from consumerd.cli.archive_work import over_archive, partition_json, show_report, show_totals, source_options
from consumerd.cli.config_option import json_option

if TYPE_CHECKING:
    from consumerd.storage.archives.contiguity import ArchiveReport

EXAMPLES = """\b
Examples:
  consumerd log verify /var/lib/kafka
  consumerd log verify --layout 'broker-{broker}.tar.gz/{topic}-{partition}' /backup/broker-*.tar.gz
  consumerd log verify --json s3://archive/kafka | jq -r 'select(.finding == "gap") | .problem'
"""


@click.command("verify", epilog=EXAMPLES)
@json_option("Print one JSON object per finding and line, then one with the summary.")
@click.option(
    "--shallow",
    is_flag=True,
    help="Of segments of 0.8 and later check headers and CRCs, as a broker does when it recovers a log, and decode no "
    "records: much faster for compressed ones, and unreadable-wrapper is not found.",
)
@source_options
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
def command(
    as_json: bool,
    shallow: bool,
    layout: str,
    broker_id: int | None,
    workers: int | None,
    max_expansion: int,
    allow_torn_tail: bool,
    paths: tuple[str, ...],
) -> int:
    """Check every message of an archive, and how its segments fit together.

    PATH is a segment file, a folder with all below it, a .tar, .tar.gz or .tar.zst archive, a single .kafka.gz or
    .kafka.zst file, or a URL of any of these. The exit code is 11 if a problem is found; a file that a running broker
    deletes meanwhile is listed, and is not one.

    Findings are bad-crc, unknown-magic, short-header, unknown-codec and unreadable-wrapper for messages;
    nonsense-block, torn-tail and lost-block for bytes that are none; gap, overlap, duplicate-segment and empty-segment
    between segments; misnamed-segment, unreadable-file, deleted-file, damaged-archive, oversize-segment, unsafe-name
    and no-plain-file for files.
    """
    from consumerd.storage.archives.verify import VerifyOptions, verify  # noqa: PLC0415 - `--help` needs none

    options = VerifyOptions(layout, broker_id, max_expansion, shallow)
    report = over_archive(paths, workers, "verifying", partial(verify, options=options))
    if as_json:
        _show_json(report)
    else:
        _show_rows(report)
    return ExitCode.OK if report.is_sound(allow_torn_tail=allow_torn_tail) else ExitCode.CHECK_FAILED


def _totals(report: ArchiveReport, *keys: str) -> dict[str, int]:
    rows = [partition_json(partition) for partition in report.partitions]
    sums = {key: sum(row[key] for row in rows) for key in keys}
    return sums | {"findings": sum(finding.count for finding in report.findings())}


def _show_json(report: ArchiveReport) -> None:
    for finding in report.findings():
        click.echo(json.dumps(finding.as_json()))
    totals = _totals(report, "segments", "bytes", "messages", "corrupt", "torn", "gaps")
    partitions = [partition_json(partition) for partition in report.partitions]
    click.echo(json.dumps({"summary": {**totals, "partitions": partitions}}))


def _show_rows(report: ArchiveReport) -> None:
    show_report(report)
    show_totals({"partitions": len(report.partitions), **_totals(report, "segments", "bytes", "messages")})
