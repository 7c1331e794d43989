"""`consumerd log offsets`: what groups had committed, from the segments of `__consumer_offsets`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from consumerd.base.errors import ExitCode, NotFoundError
from consumerd.base.partition import TopicPartition
from consumerd.cli.archive_work import layout_option, show_findings
from consumerd.cli.config_option import Decorated, json_option, together
from consumerd.cli.log_offsets_restore import reached_target, restore_offsets, target_options
from consumerd.cli.offsets_input import parse_time
from consumerd.cli.tables import show_rows, utc_text

if TYPE_CHECKING:
    from consumerd.storage.archives.findings import ArchiveFinding
    from consumerd.storage.archives.group_offsets import ArchivedOffsets

EXAMPLES = """\b
Examples:
  consumerd log offsets /var/lib/kafka
  consumerd log offsets --group billing --at-time 2026-11-28T03:00 /disk1/kafka /disk2/kafka
  consumerd log offsets --json /backup/broker-*.tar.gz > offsets.json
  consumerd offsets import --bootstrap-server kafka:9092 offsets.json
  consumerd log offsets --to-bootstrap-server new:9092 --execute --verify /disk1/kafka /disk2/kafka
"""


def topic_options(json_help: str) -> Callable[[Decorated], Decorated]:
    """The options and the arguments of commands that read a topic of the brokers' own. `json_help`: of `--json`."""
    at_time = "As of then: ISO 8601 or milliseconds since 1970.  [default: the end]"
    return together(
        click.option("--at-time", metavar="TIME", help=at_time),
        json_option(json_help),
        layout_option("Pattern of the last folders above a segment, as for `log verify`."),
        click.argument("paths", metavar="PATH...", nargs=-1, required=True),
    )


def report_unread(findings: Sequence[ArchiveFinding], unreadable: int, so: str, what: str) -> ExitCode:
    """Say on standard error what could not be read, and what follows. Returns the exit code.

    Nothing is missing where a copy differs and another one is read.
    """
    if missing := sum(not finding.replaced for finding in findings):
        click.echo(f"consumerd: unreadable parts of the archive: {missing}; {so}", err=True)
    if unreadable:
        click.echo(f"consumerd: records that are not {what} of a known version: {unreadable}", err=True)
    return ExitCode.CHECK_FAILED if missing or unreadable else ExitCode.OK


@click.command("offsets", epilog=EXAMPLES)
@click.option("--group", "groups", multiple=True, metavar="NAME", help="Only this group; may be given several times.")
@target_options
@topic_options("Print what `consumerd offsets import` reads; with a cluster the plan: moves, problems, notes.")
def command(
    groups: tuple[str, ...], at_time: str | None, as_json: bool, layout: str, paths: tuple[str, ...], **target: Any
) -> int:
    """Show the committed offsets of groups in an archive of brokers since 0.8.2, without a broker.

    PATH is as for `log verify`. Commits inside of transactions count if these were committed. Damage is reported on
    standard error, and the exit code is 11 then: the offsets of a group may be older than they were.

    With --to-bootstrap-server they become offsets of the cluster to which `log export` replayed the archive: each group
    continues at the message that it would have read next. Only shows that, unless --execute is given. Groups with
    members there, with an offset that is further on, or with messages that are not there are refused, with exit code
    13, and the others are moved. In a pipe: group, topic/partition, before, after, lag, from, remark.
    """
    from consumerd.storage.archives.group_offsets import committed_offsets  # noqa: PLC0415 - `--help` needs none
    from consumerd.storage.archives.sources import find_sources  # noqa: PLC0415 - `--help` needs none

    section = reached_target(target)
    until = None if at_time is None else parse_time(at_time).value
    sources = find_sources(paths)
    found = committed_offsets(sources, layout=layout, until=until)
    if section is not None:
        code = report_unread(found.findings, found.unreadable, "offsets may be too old", "commits")
        return max(code, restore_offsets(found, section, sources, groups, layout=layout, as_json=as_json, **target))
    missing = set(groups) - {key.group for key in found.offsets}
    if groups:
        found.offsets = {key: offset for key, offset in found.offsets.items() if key.group in groups}
    if as_json:
        _show_json(found)
    else:
        _show_rows(found)
    code = report_unread(found.findings, found.unreadable, "offsets may be too old", "commits")
    if missing:
        raise NotFoundError(f"the archive has no committed offsets of the groups {', '.join(sorted(missing))}")
    return code


def _show_json(found: ArchivedOffsets) -> None:
    from consumerd.operate.admin.offset_file import format_json  # noqa: PLC0415

    groups: dict[str, dict[TopicPartition, int | None]] = {}
    for key, committed in found.offsets.items():
        partition = TopicPartition.numbered(key.topic, key.partition)
        groups.setdefault(key.group, {})[partition] = committed.offset
    click.echo(format_json(groups, problems=[finding.as_json() for finding in found.findings]), nl=False)


def _show_rows(found: ArchivedOffsets) -> None:
    show_rows(
        ["group", "partition", ">offset", "committed (UTC)", "metadata"],
        (
            (key.group, f"{key.topic}/{key.partition}", value.offset, utc_text(value.committed), value.metadata)
            for key, value in found.offsets.items()
        ),
        kind="offset" if found.findings else "",
    )
    show_findings(found.findings)
