"""Shared by all commands that change offsets: options, guards, the table, the backup, the writing.

Strategy: plan, show, and only with `--execute` and nothing against it: back up, then write. Objections are reported for
all partitions at once, whether it is a dry run or not, with the same exit code.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from consumerd.cli.backups import backup_option, backup_path, write_backup
from consumerd.cli.session import ClusterAddress, broker_timeout_option, json_option

if TYPE_CHECKING:
    from consumerd.operate.admin.changes import OffsetChange, OffsetTarget
    from consumerd.operate.admin.group_source import GroupSource
    from consumerd.operate.admin.offset_file import GroupOffsets
    from consumerd.operate.admin.offset_plans import OffsetPlan
    from consumerd.wire.registry.dialect import Dialect

Decorated = TypeVar("Decorated", bound="Callable[..., Any]")

NOTE = """

Only shows what would change, unless --execute is given. Refused, with exit code 13, while members that could own the
partitions are alive, and for offsets that are out of range or not the start of a message; --force overrides all of
that, but a broker never takes offsets for a group with members. The previous offsets are written to a file before
anything is changed. Offsets of brokers that do not answer are not checked, with a remark. In a pipe: group,
topic/broker-partition (0.7) or topic/partition, before, after, remark.
"""


@dataclass(frozen=True, slots=True)
class How:
    """The options that all of these commands have."""

    execute: bool
    force: bool
    backup: Path | None
    broker_timeout: float
    as_json: bool

    def run_set(self, cluster: ClusterAddress, wanted: GroupOffsets) -> None:
        """Each group's partitions to the offsets that are named. Raises RefusedError."""
        from consumerd.operate.admin.offset_plans import dialect_of, plan_set  # noqa: PLC0415 - heavy imports only for the command that runs

        self._run(
            cluster,
            lambda source: plan_set(source, wanted, self.force),
            groups=list(wanted),
            hint=dialect_of(wanted),
        )

    def run_reset(
        self, cluster: ClusterAddress, group: str, topics: Sequence[str], names: Sequence[str], target: OffsetTarget
    ) -> None:
        """All partitions of `topics` (by default those of the group) whose names are in `names`, to `target`."""
        from consumerd.operate.admin.offset_plans import NamedPartitions, plan_reset  # noqa: PLC0415

        choice = NamedPartitions(group, topics, names)
        self._run(
            cluster,
            lambda source: plan_reset(source, choice, target, self.force),
            groups=[group],
        )

    def _run(
        self,
        cluster: ClusterAddress,
        make_plan: Callable[[GroupSource], Awaitable[OffsetPlan]],
        *,
        groups: Sequence[str],
        hint: Dialect | None = None,
    ) -> None:
        """Plan, show and, if requested, write. Raises RefusedError."""
        from consumerd.cli.clusters import with_groups  # noqa: PLC0415
        from consumerd.operate.admin.errors import RefusedError  # noqa: PLC0415

        async def work(source: GroupSource) -> tuple[OffsetPlan, Path | None]:
            plan = await make_plan(source)
            return plan, await self._do(plan, source)

        plan, backup = with_groups(cluster, work, groups=groups, hint=hint, broker_timeout=self.broker_timeout)
        executed = self.execute and not plan.refusals
        self._show(plan, executed=executed, backup=backup)
        if plan.refusals:
            more = f" ({len(plan.refusals) - 1} more reasons)" if len(plan.refusals) > 1 else ""
            remedy = "stop the members first" if plan.final else "--force overrides this"
            raise RefusedError(f"refused: {plan.refusals[0]}{more}; nothing was changed, {remedy}")
        if not self.execute and any(change.moves for change in plan.changes):
            click.echo("consumerd: dry run, nothing was changed: add --execute to do it", err=True)

    async def _do(self, plan: OffsetPlan, source: GroupSource) -> Path | None:
        """Back up and write, if that is requested and allowed; returns the path of the backup."""
        from consumerd.operate.admin.editing import backup_of  # noqa: PLC0415

        before = backup_of(change for change in plan.changes if change.moves)
        if not self.execute or plan.refusals or not before:
            return None
        path = self.backup or backup_path(sorted(before))
        await write_backup(path, before)
        await source.write(plan.changes, force=self.force)
        return path

    def _show(self, plan: OffsetPlan, *, executed: bool, backup: Path | None) -> None:
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
        json_option("One JSON object: changes, refusals, executed, backup."),
        broker_timeout_option,
        backup_option,
        click.option("--force", is_flag=True, help="Apply the changes despite live members or problems."),
        click.option("--execute", is_flag=True, help="Apply the changes. Without this option, only show them."),
    ]
    decorated: Any = wrapper
    for option in decorate:
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]  # the same to click


def _offset(offset: int | None) -> str:
    return "none" if offset is None else str(offset)


def _after(change: OffsetChange) -> str:
    return "?" if change.unknown else _offset(change.after)


def _remark(change: OffsetChange) -> str:
    remarks = [change.problem, change.note, None if change.moves or change.problem else "stays"]
    return "; ".join(remark for remark in remarks if remark)


def _as_json(plan: OffsetPlan, *, executed: bool, backup: Path | None) -> Mapping[str, object]:
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
