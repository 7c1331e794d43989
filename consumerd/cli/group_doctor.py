"""`consumerd group doctor`: what is wrong with a group, why, and what mends it."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import sys
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import click

from consumerd.cli.session import broker_timeout_option, connector, group_option, json_option, place_options

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from consumerd.admin import Finding, Fix, GroupSource, Look
    from consumerd.cli.session import Place
    from consumerd.net import Connector
    from consumerd.ports import ZooKeeper

EXAMPLES = """\b
Examples:
  consumerd group doctor --zookeeper 127.0.0.1:2181/kafka --group events
  consumerd group doctor -c /etc/consumerd/events.toml --interval 60
  consumerd group doctor --zookeeper zk1:2181 --group events --interval 0 --fix
  consumerd group doctor --zookeeper zk1:2181 --group events --fix --execute
  consumerd group doctor --bootstrap-server kafka1:9092,kafka2:9092 --group events
"""

#: Seconds that members get to act on what was mended, and between looks meanwhile.
SETTLING = 10.0
_LOOK_AGAIN = 0.25


class Outcome(NamedTuple):
    """What the doctor found, would do or did, and what was still wrong after that."""

    findings: list[Finding]
    steps: list[Fix]
    withheld: list[Finding]
    #: None where nothing was done.
    remaining: list[Finding] | None


class Patient(NamedTuple):
    """A group, and how to look at it."""

    group: str
    look: Callable[[], Awaitable[Look]]
    #: Where it can be mended; None where a broker coordinates.
    zk: ZooKeeper | None


@click.command("doctor", epilog=EXAMPLES)
@place_options()
@group_option
@click.option(
    "--interval",
    type=click.FloatRange(0),
    default=15.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two looks, which must be longer than the members' commit interval; 0 takes only one look, which "
    "sees no black holes and takes a rebalance under way for a defect.",
)
@click.option("--fix", is_flag=True, help="Show what the doctor can do itself: delete dead nodes, nudge the members.")
@click.option("--execute", is_flag=True, help="With --fix: do it.")
@click.option("--force", is_flag=True, help="With --fix: also delete nodes behind which a living process may stand.")
@broker_timeout_option
@json_option("One object: findings, steps, and with --execute what remains.")
def command(
    place: Place,
    group: str | None,
    interval: float,
    fix: bool,
    execute: bool,
    force: bool,
    broker_timeout: float,
    as_json: bool,
) -> None:
    """Find and explain what is wrong with a group, with a remedy for each finding.

    Looks at members (ids that nobody can read, that outlive their process, of another Kafka), owners (partitions
    without one, zombies, nodes of former sessions, not as the members' rule says), members that gave up a rebalance,
    offsets (unreadable, outside of what the broker has, of partitions that are gone, in two places that differ),
    partitions without a leader, and owners that look perfect and read nothing. The exit code is 11 if anything has to
    be mended; notices alone do not count.

    With --fix it shows what it can do, with --execute it does it: it deletes persistent owner and id nodes, which no
    living member has, and nudges the members, by an id that comes and goes in one transaction, so that all of them look
    at the group again. A group that a broker coordinates (--bootstrap-server) leaves nothing to do from outside. In a
    pipe: finding, kind, subject, explanation, remedy.
    """
    if (execute or force) and not fix:
        raise click.UsageError("--execute and --force go with --fix")
    from consumerd.cli.clusters import run_by_kind  # noqa: PLC0415

    name = place.group_or(group)
    connect = connector(broker_timeout)

    async def v07(session: ZooKeeper) -> Outcome:
        patient = Patient(name, partial(_look_at_v07, session, name, connect), session)
        return await _visit(patient, interval, fix=fix, execute=execute, force=force)

    async def v08(source: GroupSource) -> Outcome:
        from consumerd.admin import ZooKeeperGroups  # noqa: PLC0415

        session = source.zk if isinstance(source, ZooKeeperGroups) else None
        patient = Patient(name, partial(_look_at_v08, source, name), session)
        return await _visit(patient, interval, fix=fix, execute=execute, force=force)

    outcome = run_by_kind(place, v07, v08, groups=[name], broker_timeout=broker_timeout)
    _show(name, outcome, fix=fix, as_json=as_json)


async def _visit(patient: Patient, interval: float, *, fix: bool, execute: bool, force: bool) -> Outcome:
    from consumerd.admin import steps_for, take_step, withheld  # noqa: PLC0415
    from consumerd.clock import SystemClock  # noqa: PLC0415
    from consumerd.registry import make_consumer_id  # noqa: PLC0415

    group, zk = patient.group, patient.zk
    look, findings = await examine(patient, interval)
    steps = steps_for(look.survey, findings, force=force) if fix else []
    kept = withheld(findings, force=force) if fix else []
    if zk is None or not (execute and steps):
        return Outcome(findings, steps, kept, None)
    now = int(SystemClock().wall() * 1000)
    name = make_consumer_id(group, socket.gethostname(), now, random.SystemRandom().getrandbits(64))
    for step in steps:
        await take_step(zk, group, step, name=name, dialect=look.survey.dialect)
    return Outcome(findings, steps, kept, await _remaining(patient, kept))


async def examine(patient: Patient, interval: float) -> tuple[Look, list[Finding]]:
    """One look, or two that are `interval` seconds apart: the last of them, and what was found."""
    from consumerd.admin import diagnose_looks  # noqa: PLC0415

    first = await patient.look()
    if not interval or not first.survey.view.members:
        return first, diagnose_looks(first)  # nobody is there who could move anything
    await asyncio.sleep(interval)
    second = await patient.look()
    return second, diagnose_looks(first, second)


async def _look_at_v07(zk: ZooKeeper, group: str, connect: Connector) -> Look:
    from consumerd.admin import BrokerLogs, Look, survey_group  # noqa: PLC0415

    survey = await survey_group(zk, group)
    wanted = [partition for partition in survey.partitions() if survey.exists(partition)]
    ranges = await BrokerLogs(survey.brokers, connect).ranges(wanted)
    return Look(survey, ranges, asyncio.get_running_loop().time())


async def _look_at_v08(source: GroupSource, group: str) -> Look:
    from consumerd.admin import look_at_group  # noqa: PLC0415

    return await look_at_group(source, group, asyncio.get_running_loop().time())


async def _remaining(patient: Patient, kept: Sequence[Finding]) -> list[Finding]:
    """What is still wrong, once the members have had time to act; nobody waits for what was not mended."""
    ours = {(finding.kind, finding.subject) for finding in kept}
    loop = asyncio.get_running_loop()
    deadline = loop.time() + SETTLING
    while True:
        _, findings = await examine(patient, 0)
        waiting = (each for each in findings if each.fix is not None and (each.kind, each.subject) not in ours)
        if loop.time() >= deadline or not any(waiting):
            return findings
        await asyncio.sleep(_LOOK_AGAIN)


def _show(group: str, outcome: Outcome, *, fix: bool, as_json: bool) -> None:
    """Print the outcome. Raises CheckFailedError while something has to be mended."""
    from consumerd.admin import CheckFailedError, describe_step  # noqa: PLC0415
    from consumerd.cli.tables import counted  # noqa: PLC0415

    done = outcome.remaining is not None
    if as_json:
        click.echo(json.dumps(_as_json(group, outcome), indent=2))
    else:
        _show_findings(group, outcome.findings)
        for step in outcome.steps:
            _line("done" if done else "would", describe_step(step))
        for finding in outcome.withheld:
            assert finding.fix is not None
            _line("not without --force", f"{describe_step(finding.fix)} ({finding.kind})")
        if outcome.remaining:
            _show_findings(group, outcome.remaining, still=True)
    if fix and outcome.steps and not done:
        click.echo("consumerd: dry run, nothing was changed: add --execute to do it", err=True)
    left = [
        each for each in (outcome.findings if outcome.remaining is None else outcome.remaining) if not each.is_notice
    ]
    if left:
        raise CheckFailedError(f"group {group!r} has {counted(len(left), 'finding')} to be mended")


def _line(what: str, text: str) -> None:
    from consumerd.cli.tables import printable  # noqa: PLC0415

    click.echo(f"{what}: {printable(text)}" if sys.stdout.isatty() else f"{what}\t{printable(text)}")


def _show_findings(group: str, findings: Sequence[Finding], *, still: bool = False) -> None:
    from consumerd.cli.tables import counted, printable, show_rows  # noqa: PLC0415

    if not sys.stdout.isatty():
        rows = ([each.kind, each.subject, each.says, each.remedy] for each in findings)
        show_rows(["kind", "subject", "finding", "remedy"], rows, kind="still" if still else "finding")
        return
    number = counted(len(findings), "finding") if findings else "nothing found"
    click.echo(f"group {group}: {number}{', still' if still else ''}")
    for each in findings:
        click.echo(f"\n{printable(f'{each.kind}: {each.subject}')}{' (notice)' if each.is_notice else ''}")
        for text in (each.says, f"Remedy: {each.remedy}"):
            click.echo(click.wrap_text(printable(text), 100, "  ", "  "))
    if findings:
        click.echo()


def _as_json(group: str, outcome: Outcome) -> dict[str, object]:
    from consumerd.admin import describe_step  # noqa: PLC0415

    def shown(findings: Sequence[Finding]) -> list[dict[str, object]]:
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
        "findings": shown(outcome.findings),
        "steps": [describe_step(step) for step in outcome.steps],
        "needs_force": [describe_step(each.fix) for each in outcome.withheld if each.fix is not None],
        "executed": outcome.remaining is not None,
        "remaining": None if outcome.remaining is None else shown(outcome.remaining),
    }
