"""Shared by all commands that change offsets: options, guards, the table, the backup, the writing.

Strategy: plan, show, and only with `--execute` and nothing against it: back up, then write. Objections are reported for
all partitions at once, whether it is a dry run or not, with the same exit code.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from consumerd.cli.backups import backup_option, backup_path, say_dry_run, write_backup
from consumerd.cli.clusters import with_groups
from consumerd.cli.config_option import Decorated, json_option, together
from consumerd.cli.session import ClusterAddress, broker_timeout_option
from consumerd.cli.tables import counted, show_rows
from consumerd.operate.admin.errors import RefusedError

if TYPE_CHECKING:
    from consumerd.operate.admin.changes import OffsetChange, OffsetTarget
    from consumerd.operate.admin.group_source import GroupSource
    from consumerd.operate.admin.offset_file import GroupOffsets
    from consumerd.operate.admin.offset_plans import OffsetPlan
    from consumerd.wire.registry.dialect import Dialect

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

        self._run(cluster, lambda source: plan_set(source, wanted), list(wanted), dialect_of(wanted))

    def run_reset(
        self, cluster: ClusterAddress, group: str, topics: Sequence[str], names: Sequence[str], target: OffsetTarget
    ) -> None:
        """All partitions of `topics` (by default those of the group) whose names are in `names`, to `target`."""
        from consumerd.operate.admin.offset_plans import NamedPartitions, plan_reset  # noqa: PLC0415

        choice = NamedPartitions(group, topics, names)
        self._run(cluster, lambda source: plan_reset(source, choice, target), [group])

    def _run(
        self,
        cluster: ClusterAddress,
        make_plan: Callable[[GroupSource], Awaitable[OffsetPlan]],
        groups: Sequence[str],
        hint: Dialect | None = None,
    ) -> None:
        """Plan, show and, if requested, write. Raises RefusedError."""

        async def work(source: GroupSource) -> tuple[OffsetPlan, Path | None]:
            plan = await make_plan(source)
            return plan, await self.write(source, plan)

        plan, backup = with_groups(cluster, work, groups=groups, hint=hint, broker_timeout=self.broker_timeout)
        refusals = plan.refused(force=self.force)
        shown: dict[str, object] = {"executed": self.execute and not refusals, "refusals": refusals}
        show_changes([(change, {}) for change in plan.changes], shown, backup, "changes" if self.as_json else None)
        self.conclude(plan)

    def conclude(self, plan: OffsetPlan) -> None:
        """Raise RefusedError where there are refusals; say of a dry run that it is one."""
        if refusals := plan.refused(force=self.force):
            more = f" ({len(refusals) - 1} more reasons)" if len(refusals) > 1 else ""
            remedy = "stop the members first" if plan.final else "--force overrides this"
            raise RefusedError(f"refused: {refusals[0]}{more}; nothing was changed, {remedy}")
        if not self.execute and any(change.moves for change in plan.changes):
            say_dry_run()

    async def write(self, source: GroupSource, plan: OffsetPlan) -> Path | None:
        """Back up and write, if that is requested and allowed; returns the path of the backup."""
        from consumerd.operate.admin.editing import backup_of  # noqa: PLC0415

        before = backup_of(change for change in plan.changes if change.moves)
        if not self.execute or plan.refused(force=self.force) or not before:
            return None
        path = self.backup or backup_path(sorted(before))
        await write_backup(path, before)
        try:
            await source.write(plan.changes, force=self.force)
        except asyncio.CancelledError:
            moving = sum(change.moves for change in plan.changes)
            click.echo(
                f"consumerd: the write of {counted(moving, 'offset')} was interrupted; some may be written: "
                "run the command again for the rest",
                err=True,
            )
            raise
        return path


def change_command(shape: str, note: str) -> Callable[[Decorated], Decorated]:
    """The options of a command that changes offsets, as one parameter `how`; `note` explains them below its docstring.

    `shape`: the keys of its JSON object.
    """
    options = together(
        click.option("--execute", is_flag=True, help="Apply the changes. Without this option, only show them."),
        click.option("--force", is_flag=True, help="Apply the changes despite live members or problems."),
        backup_option,
        broker_timeout_option,
        json_option(f"One JSON object: {shape}."),
    )

    def decorate(function: Decorated) -> Decorated:
        @functools.wraps(function)
        def wrapper(*args: Any, **given: Any) -> Any:
            how = How(**{each.name: given.pop(each.name) for each in fields(How)})
            return function(*args, how=how, **given)

        wrapper.__doc__ = inspect.cleandoc(function.__doc__ or "") + note
        return options(wrapper)  # type: ignore[return-value]  # the same to click

    return decorate


def show_changes(
    changes: Sequence[tuple[OffsetChange, Mapping[str, Any]]],
    more: Mapping[str, object],
    backup: Path | None,
    json_key: str | None,
) -> None:
    """Print changes, each with its further fields, which are columns before the remark.

    `json_key`: what they are called in a JSON object with `more` and the backup; None for a table.
    """
    if json_key is not None:
        rows = [_as_json(change) | {key.lstrip(">"): value for key, value in own.items()} for change, own in changes]
        document = {**more, "backup": None if backup is None else str(backup), json_key: rows}
        click.echo(json.dumps(document, indent=2))
        return

    def row(change: OffsetChange, own: Mapping[str, Any]) -> tuple[object, ...]:
        before, after = _offset(change.before), "?" if change.unknown else _offset(change.after)
        return (change.group, change.partition, before, after, *map(_cell, own.values()), _remark(change))

    moving = sum(change.moves for change, _ in changes)
    show_rows(
        ["group", "partition", ">before", ">after", *(changes[0][1] if changes else ()), "remark"],
        starmap(row, changes),
        title=f"{moving} of {counted(len(changes), 'offset')} {'changed' if more['executed'] else 'would change'}",
    )


def _cell(value: Mapping[str, int] | int | None) -> object:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} at {offset}" for name, offset in value.items())
    return "?" if value is None else value


def _offset(offset: int | None) -> str:
    return "none" if offset is None else str(offset)


def _remark(change: OffsetChange) -> str:
    remarks = [change.problem, change.note, None if change.moves or change.problem else "stays"]
    return "; ".join(remark for remark in remarks if remark)


def _as_json(change: OffsetChange) -> dict[str, object]:
    return {
        "group": change.group,
        "partition": str(change.partition),
        "before": change.before,
        "after": change.after,
        "moves": change.moves,
        "problem": change.problem,
        "note": change.note,
    }
