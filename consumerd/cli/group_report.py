"""The output of `consumerd group describe` and `verify`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import click

from consumerd.base.partition import TopicPartition
from consumerd.cli.tables import counted, show_rows
from consumerd.operate.admin.errors import CheckFailedError
from consumerd.operate.admin.snapshot import GroupSnapshot
from consumerd.operate.admin.v08.snapshot import V08GroupSnapshot
from consumerd.operate.admin.verification import GroupDifference
from consumerd.wire.registry.dialect import Dialect
from consumerd.wire.registry.values import format_owner


class _Row(NamedTuple):
    """One partition as it is and as it should be. `planned`: None where no member is to own it, or no rule is known."""

    partition: TopicPartition
    owner: str | None
    planned: str | None
    offset: int | None
    unowned: bool
    orphan: bool
    at_broker: bool
    unwanted: bool
    #: The text that was committed with the offset, where a broker keeps one.
    metadata: str | None
    #: Whether the owner is a client with another assignment rule.
    other_rule: bool

    @property
    def remark(self) -> str:
        remarks = []
        if self.unowned:
            remarks.append("unowned")
        if self.orphan:
            remarks.append("owner is not a live member")
        if self.other_rule:
            remarks.append("a client with another assignment rule")
        if self.planned is not None and self.planned != self.owner:
            remarks.append(f"planned: {self.planned}")
        if self.unwanted:
            remarks.append("no member subscribes")
        if self.at_broker:
            remarks.append("a broker keeps the offset")
        return ", ".join(remarks)


def _rows(snapshot: GroupSnapshot) -> list[_Row]:
    view = snapshot.view
    plan = {} if snapshot.by_broker else snapshot.plan()
    wanted, others = snapshot.wanted(), view.other_clients()
    rows = []
    for partition in snapshot.partitions():
        owner, planned = view.owners.get(partition), plan.get(partition)
        claim = view.claims.get(partition)
        if claim is not None or (planned is not None and planned[0] in others):
            planned = None  # whom other clients expect is not known
        rows.append(
            _Row(
                partition,
                snapshot.owner_name(partition),
                None if planned is None else format_owner(*planned),
                snapshot.committed(partition),
                unowned=owner is None and claim is None and partition in wanted,
                orphan=owner is not None and owner[0] not in view.members,
                at_broker=partition in snapshot.at_broker,
                # Members of 0.8 and later may subscribe to internal topics, too, which we do not list.
                unwanted=snapshot.dialect is Dialect.V07 and owner is not None and partition not in wanted,
                metadata=snapshot.metadata.get(partition),
                other_rule=claim is not None,
            )
        )
    return rows


def show_report(snapshot: GroupSnapshot, *, as_json: bool) -> None:
    """Print members, partitions and problems."""
    rows, view = _rows(snapshot), snapshot.view
    if as_json:
        click.echo(json.dumps(_as_json(snapshot, rows), indent=2))
        return
    owned = view.owned_by_member()
    columns = ["member", "subscription", ">partitions"]
    members: list[list[object]] = [[name, member.text, owned[name]] for name, member in view.members.items()]
    title = f"group {view.group}: {counted(len(members), 'member')}"
    if isinstance(snapshot, V08GroupSnapshot):
        columns.append("client")
        for member in members:
            member.append(snapshot.clients.get(str(member[0])))
        words = filter(None, (counted(len(members), "member"), snapshot.state, snapshot.rule))
        title = f"group {view.group} ({snapshot.coordinator.value}): {', '.join(words)}"
    show_rows(columns, members, title=title, kind="member")
    columns = ["partition", "owner", ">offset", "remark", "metadata"]
    if all(row.metadata is None for row in rows):
        columns.pop()
    show_rows(
        columns,
        ((row.partition, row.owner, row.offset, row.remark, row.metadata)[: len(columns)] for row in rows),
        title=f"{counted(len(rows), 'partition')}, {sum(row.unowned for row in rows)} unowned",
        kind="partition",
    )
    show_rows(["problem"], ([problem] for problem in view.problems), kind="problem")


def _as_json(snapshot: GroupSnapshot, rows: Iterable[_Row]) -> dict[str, object]:
    view = snapshot.view
    members: dict[str, dict[str, object]] = {
        name: {"subscription": member.text, "understood": member.subscription is not None}
        for name, member in view.members.items()
    }
    document: dict[str, object] = {"group": view.group}
    if isinstance(snapshot, V08GroupSnapshot):
        document["coordinator"] = snapshot.coordinator.value
        document |= {"state": snapshot.state or None, "rule": snapshot.rule or None}
        for name, member in members.items():
            member["client"] = snapshot.clients.get(name)
    return {
        **document,
        "members": members,
        "partitions": {
            str(row.partition): {"owner": row.owner, "planned": row.planned, "offset": row.offset}
            | ({} if row.metadata is None else {"metadata": row.metadata})
            for row in rows
        },
        "unowned": [str(row.partition) for row in rows if row.unowned],
        "orphaned": [str(row.partition) for row in rows if row.orphan],
        "problems": view.problems,
    }


def show_verification(group: str, found: Sequence[GroupDifference], *, as_json: bool) -> None:
    """Print the differences. Raises CheckFailedError if there are any."""
    if as_json:
        click.echo(json.dumps({"group": group, "differences": [each._asdict() for each in found]}, indent=2))
    else:
        show_rows(["partition or member", "difference"], found)
    if found:
        raise CheckFailedError(f"group {group!r} is not balanced: {counted(len(found), 'difference')}")
    if sys.stdout.isatty() and not as_json:
        click.echo(f"group {group}: every partition has the owner that the members' rule names")
