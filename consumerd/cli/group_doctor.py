"""`consumerd group doctor`: what is wrong with a group, why, and how to fix it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from consumerd.cli.backups import say_dry_run
from consumerd.cli.clusters import with_groups
from consumerd.cli.config_option import json_option
from consumerd.cli.numbers import seconds_option
from consumerd.cli.session import ClusterAddress, broker_timeout_option, cluster_options, group_option
from consumerd.cli.tables import counted, printable, show_rows
from consumerd.operate.admin.errors import CheckFailedError

if TYPE_CHECKING:
    from consumerd.operate.admin.doctor import DoctorReport
    from consumerd.operate.admin.findings import GroupFinding

#: What differs between findings that say the same.
_OFFSET: Final = re.compile(r"\boffset \d+", re.IGNORECASE)

EXAMPLES = """\b
Examples:
  consumerd group doctor --zookeeper 127.0.0.1:2181/kafka --group events
  consumerd group doctor -c /etc/consumerd/events.toml --interval 60
  consumerd group doctor --zookeeper zk1:2181 --group events --interval 0 --fix
  consumerd group doctor --zookeeper zk1:2181 --group events --fix --execute
  consumerd group doctor --bootstrap-server kafka1:9092,kafka2:9092 --group events
"""


@click.command("doctor", epilog=EXAMPLES)
@cluster_options()
@group_option
@seconds_option(
    "--interval",
    15.0,
    "Time between two snapshots, which must be longer than the members' commit interval. With 0 there is only one "
    "snapshot: owners that do not read are not found, and a rebalance in progress counts as a fault.",
    from_zero=True,
)
@click.option("--fix", is_flag=True, help="Show what can be fixed from here: delete dead nodes, nudge the members.")
@click.option("--execute", is_flag=True, help="With --fix: apply the fixes.")
@click.option("--force", is_flag=True, help="With --fix: also delete nodes that may belong to a running process.")
@broker_timeout_option
@json_option("One JSON object: findings, steps, and with --execute what remains.")
def command(
    cluster: ClusterAddress,
    group: str | None,
    interval: float,
    fix: bool,
    execute: bool,
    force: bool,
    broker_timeout: float,
    as_json: bool,
) -> None:
    """Find and explain what is wrong with a group, with a remedy for each finding.

    Checks members (ids that cannot be read, that outlive their process, or that are of another Kafka version), owners
    (missing, not a live member, of an earlier session, not as the assignment rule says), members that gave up a
    rebalance, committed offsets (unreadable, out of range, of deleted partitions, different in ZooKeeper and Kafka),
    partitions without a leader, and owners that do not read. The exit code is 11 if anything has to be fixed; notices
    alone do not count.

    --fix shows which fixes can be applied from here, --execute applies them: persistent owner and id nodes, which no
    live member has, are deleted, and the members are nudged to rebalance, by an id that is created and deleted in one
    transaction. Groups that a broker coordinates (--bootstrap-server) cannot be fixed from here. In a pipe: finding,
    kind, subject, explanation, remedy.
    """
    if (execute or force) and not fix:
        raise click.UsageError("--execute and --force go with --fix")
    from consumerd.operate.admin.doctor import GroupDoctor  # noqa: PLC0415 - heavy imports only for the command that runs

    name = cluster.group_or(group)
    report = with_groups(
        cluster,
        lambda source: GroupDoctor(source, name).run(interval, fix=fix, execute=execute, force=force),
        groups=[name],
        broker_timeout=broker_timeout,
    )
    _show(name, report, fix=fix, as_json=as_json)


def _show(group: str, report: DoctorReport, *, fix: bool, as_json: bool) -> None:
    """Print the report. Raises CheckFailedError while something has to be mended."""
    from consumerd.operate.admin.doctor import describe_step  # noqa: PLC0415

    done = report.remaining is not None
    if as_json:
        click.echo(json.dumps(_as_json(group, report), indent=2))
    else:
        _show_findings(group, report.findings)
        for step in report.steps:
            _line("done" if done else "would", describe_step(step))
        for finding in report.withheld:
            assert finding.fix is not None
            _line("not without --force", f"{describe_step(finding.fix)} ({finding.kind})")
        if report.remaining:
            _show_findings(group, report.remaining, still=True)
    if fix and report.steps and not done:
        say_dry_run()
    left = [each for each in (report.findings if report.remaining is None else report.remaining) if not each.is_notice]
    if left:
        raise CheckFailedError(f"group {group!r} has {counted(len(left), 'finding')} to fix")


def _line(what: str, text: str) -> None:
    click.echo(f"{what}: {printable(text)}" if sys.stdout.isatty() else f"{what}\t{printable(text)}")


def _show_findings(group: str, findings: Sequence[GroupFinding], *, still: bool = False) -> None:
    from consumerd.operate.admin.findings import listed  # noqa: PLC0415

    if not sys.stdout.isatty():
        rows = ([each.kind, each.subject, each.says, each.remedy] for each in findings)
        show_rows(["kind", "subject", "finding", "remedy"], rows, kind="still" if still else "finding")
        return
    number = counted(len(findings), "finding") if findings else "nothing found"
    click.echo(f"group {group}: {number}{', still' if still else ''}")
    for equal in _grouped(findings):
        each, *more = equal
        subject = each.subject if not more else f"{listed([one.subject for one in equal])} ({len(equal)})"
        click.echo(f"\n{printable(f'{each.kind}: {subject}')}{' (notice)' if each.is_notice else ''}")
        for text in (f"{each.subject}: {each.says}" if more else each.says, f"Remedy: {each.remedy}"):
            click.echo(click.wrap_text(printable(text), 100, "  ", "  "))
    if findings:
        click.echo()


def _grouped(findings: Sequence[GroupFinding]) -> list[list[GroupFinding]]:
    """The findings that say the same of several subjects together, in the order of the first of each."""
    groups: dict[tuple[str, str, str], list[GroupFinding]] = {}
    for each in findings:
        groups.setdefault((each.kind, _OFFSET.sub("", each.says), each.remedy), []).append(each)
    return list(groups.values())


def _as_json(group: str, report: DoctorReport) -> dict[str, object]:
    from consumerd.operate.admin.doctor import describe_step  # noqa: PLC0415

    def shown(findings: Sequence[GroupFinding]) -> list[dict[str, object]]:
        return [
            {
                "kind": each.kind.value,
                "subject": each.subject,
                "notice": each.is_notice,
                "says": each.says,
                "remedy": each.remedy,
            }
            for each in findings
        ]

    return {
        "group": group,
        "findings": shown(report.findings),
        "steps": [describe_step(step) for step in report.steps],
        "needs_force": [describe_step(each.fix) for each in report.withheld if each.fix is not None],
        "executed": report.remaining is not None,
        "remaining": None if report.remaining is None else shown(report.remaining),
    }
