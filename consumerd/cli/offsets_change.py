"""What all commands that change offsets share: options, guards, the table, the backup, the writing.

Strategy: plan, show, and only with `--execute` and nothing against it: back up, then write. What speaks against it is
told for all partitions at once, whether it is a dry run or not, with the same exit code.
"""

from __future__ import annotations

import functools
import inspect
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from consumerd.cli.backups import backup_option, backup_path, write_backup
from consumerd.cli.session import broker_timeout_option, connector, json_option

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from consumerd.admin import Change, ChangePlanner, GroupOffsets, Survey, Target
    from consumerd.cli.session import Place
    from consumerd.partition import TopicPartition
    from consumerd.ports import ZooKeeper

Decorated = TypeVar("Decorated", bound="Callable[..., Any]")

NOTE = """

Only shows what would change, unless --execute is given. Refused, with exit code 13, while members that could own the
partitions live, and for offsets that the broker does not have or that are not the start of a message; --force overrides
all of that. Before anything is written, what was there goes to a file that is synced. Offsets of brokers that do not
answer are taken on trust, with a remark. In a pipe: group, topic/broker-partition, before, after, remark.
"""


@dataclass(slots=True)
class Plan:
    """Changes, and what speaks against them."""

    changes: list[Change]
    refusals: list[str]


@dataclass(frozen=True, slots=True)
class How:
    """The options that all of these commands have."""

    execute: bool
    force: bool
    backup: Path | None
    broker_timeout: float
    as_json: bool

    async def plan_set(self, zk: ZooKeeper, wanted: GroupOffsets) -> Plan:
        """Each group's partitions to the offsets that are named."""
        plan = Plan([], [])
        for group, offsets in wanted.items():
            survey = await _survey(zk, group)
            planner = await self._planner(zk, survey, offsets)
            self._add(plan, survey, await planner.set_to(offsets))
        return plan

    async def plan_reset(
        self, zk: ZooKeeper, group: str, topics: Sequence[str], names: Sequence[str], target: Target
    ) -> Plan:
        """All partitions of `topics` (by default those of the group) whose names are in `names`, to `target`."""
        from consumerd.errors import NotFoundError  # noqa: PLC0415

        survey = await _survey(zk, group, must_exist=not topics)
        partitions = await _partitions(zk, survey, topics)
        partitions = [partition for partition in partitions if not names or partition.name in names]
        if not partitions:
            what = f"topics {', '.join(topics)}" if topics else f"group {group!r}"
            raise NotFoundError(f"there are no such partitions of {what}; `consumerd topics list` shows what there is")
        planner = await self._planner(zk, survey, partitions)
        plan = Plan([], [])
        self._add(plan, survey, await planner.reset(partitions, target))
        return plan

    def run(self, place: Place, make_plan: Callable[[ZooKeeper], Awaitable[Plan]]) -> None:
        """Plan, show and, if asked for, write. Raises RefusedError."""
        from consumerd.admin import RefusedError  # noqa: PLC0415

        async def work(session: ZooKeeper) -> tuple[Plan, Path | None]:
            plan = await make_plan(session)
            if self.execute and not plan.refusals and any(change.moves for change in plan.changes):
                return plan, await self._write(session, plan.changes)
            return plan, None

        plan, backup = place.run(work)
        executed = self.execute and not plan.refusals
        self._show(plan, executed=executed, backup=backup)
        if plan.refusals:
            more = f" ({len(plan.refusals) - 1} more reasons)" if len(plan.refusals) > 1 else ""
            raise RefusedError(f"refused: {plan.refusals[0]}{more}; nothing was changed, --force overrides this")
        if not self.execute and any(change.moves for change in plan.changes):
            click.echo("consumerd: dry run, nothing was changed: add --execute to do it", err=True)

    def _add(self, plan: Plan, survey: Survey, changes: list[Change]) -> None:
        from consumerd.admin import in_the_way  # noqa: PLC0415

        plan.changes += changes
        if self.force:
            return
        moving = [change.partition for change in changes if change.moves]
        plan.refusals += in_the_way(survey, moving)
        plan.refusals += [f"{change.partition}: {change.problem}" for change in changes if change.problem is not None]

    async def _planner(self, zk: ZooKeeper, survey: Survey, partitions: Iterable[TopicPartition]) -> ChangePlanner:
        from consumerd.admin import BrokerLogs, ChangePlanner  # noqa: PLC0415
        from consumerd.cluster import ClusterView  # noqa: PLC0415

        topics = await ClusterView(zk).read_topics({partition.topic for partition in partitions})
        logs = BrokerLogs(survey.brokers, connector(self.broker_timeout))
        return ChangePlanner(survey.view, topics, survey.brokers, logs)

    async def _write(self, zk: ZooKeeper, changes: Sequence[Change]) -> Path:
        from consumerd.admin import backup_of, write_changes  # noqa: PLC0415

        before = backup_of(change for change in changes if change.moves)
        path = self.backup or backup_path(sorted(before))
        await write_backup(path, before)
        await write_changes(zk, changes, force=self.force)
        return path

    def _show(self, plan: Plan, *, executed: bool, backup: Path | None) -> None:
        from consumerd.cli.tables import counted, show_rows  # noqa: PLC0415

        if self.as_json:
            click.echo(json.dumps(_as_json(plan, executed=executed, backup=backup), indent=2))
            return
        moving = sum(change.moves for change in plan.changes)
        verb = "changed" if executed else "would change"
        show_rows(
            ["group", "partition", ">before", ">after", "remark"],
            (
                (change.group, change.partition, _offset(change.before), _after(change), _remark(change))
                for change in plan.changes
            ),
            title=f"{moving} of {counted(len(plan.changes), 'offset')} {verb}",
        )


def change_command(function: Decorated) -> Decorated:
    """The options of a command that changes offsets, as one parameter `how`; explains them below its docstring."""

    @functools.wraps(function)
    def wrapper(
        *args: Any, execute: bool, force: bool, backup: Path | None, broker_timeout: float, as_json: bool, **rest: Any
    ) -> Any:
        return function(*args, how=How(execute, force, backup, broker_timeout, as_json), **rest)

    wrapper.__doc__ = inspect.cleandoc(function.__doc__ or "") + NOTE
    decorate: list[Callable[[Any], Any]] = [
        json_option("One object: changes, refusals, executed, backup."),
        broker_timeout_option,
        backup_option,
        click.option("--force", is_flag=True, help="Change in spite of living members and of problems."),
        click.option("--execute", is_flag=True, help="Do it. Without it, only show what would change."),
    ]
    decorated: Any = wrapper
    for option in decorate:
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]  # the same to click


async def _survey(zk: ZooKeeper, group: str, *, must_exist: bool = False) -> Survey:
    """The group; one that never was has nothing in the way."""
    from consumerd.admin import Survey, survey_group  # noqa: PLC0415
    from consumerd.cluster import ClusterView, GroupView  # noqa: PLC0415
    from consumerd.errors import NotFoundError  # noqa: PLC0415

    try:
        return await survey_group(zk, group)
    except NotFoundError:
        if must_exist:
            raise
        return Survey(GroupView(group), {}, await ClusterView(zk).read_brokers())


async def _partitions(zk: ZooKeeper, survey: Survey, topics: Sequence[str]) -> list[TopicPartition]:
    """What a reset is about: all registered partitions, and those committed whose broker is away."""
    from consumerd.cluster import ClusterView  # noqa: PLC0415
    from consumerd.group import partitions_of  # noqa: PLC0415

    registered = await ClusterView(zk).read_topics(topics) if topics else survey.topics
    found = {partition for topic, brokers in registered.items() for partition in partitions_of(topic, brokers)}
    found |= {partition for partition in survey.view.offsets if not topics or partition.topic in topics}
    return sorted(found, key=lambda partition: (partition.topic, partition.name))


def _offset(offset: int | None) -> str:
    return "none" if offset is None else str(offset)


def _after(change: Change) -> str:
    return "?" if change.unknown else _offset(change.after)


def _remark(change: Change) -> str:
    remarks = [change.problem, change.note, None if change.moves or change.problem else "stays"]
    return "; ".join(remark for remark in remarks if remark)


def _as_json(plan: Plan, *, executed: bool, backup: Path | None) -> Mapping[str, object]:
    return {
        "executed": executed,
        "backup": None if backup is None else str(backup),
        "refusals": plan.refusals,
        "changes": [
            {
                "group": change.group,
                "partition": str(change.partition),
                "before": change.before,
                "after": change.after,
                "moves": change.moves,
                "problem": change.problem,
                "note": change.note,
            }
            for change in plan.changes
        ],
    }
