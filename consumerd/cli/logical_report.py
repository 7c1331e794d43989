"""What `consumerd group describe` says about a group of Kafka 0.8 or later."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

import click

from consumerd.admin import Coordinator
from consumerd.cli.tables import counted, show_rows
from consumerd.registry import format_owner

if TYPE_CHECKING:
    from collections.abc import Iterable

    from consumerd.admin import LogicalSurvey
    from consumerd.partition import TopicPartition


class _Row(NamedTuple):
    """One partition. `planned` is what the members' rule names; None where that is nobody, or not known."""

    partition: TopicPartition
    owner: str | None
    planned: str | None
    offset: int | None
    unowned: bool
    orphan: bool
    at_broker: bool

    @property
    def remark(self) -> str:
        remarks = []
        if self.unowned:
            remarks.append("unowned")
        if self.orphan:
            remarks.append("owner is no member")
        if self.planned is not None and self.planned != self.owner:
            remarks.append(f"planned: {self.planned}")
        if self.at_broker:
            remarks.append("a broker keeps the offset")
        return ", ".join(remarks)


def _rows(survey: LogicalSurvey) -> list[_Row]:
    view = survey.view
    plan = {} if survey.coordinator is Coordinator.BROKER else survey.plan()
    subscribed = survey.subscribed
    rows = []
    for partition in survey.partitions():
        owner, planned = view.owners.get(partition), plan.get(partition)
        wanted = partition.partition in subscribed.get(partition.topic, ())
        rows.append(
            _Row(
                partition,
                survey.owner_name(partition),
                None if planned is None else format_owner(*planned),
                survey.committed(partition),
                unowned=owner is None and wanted,
                orphan=owner is not None and owner[0] not in view.members,
                at_broker=partition in survey.at_broker,
            )
        )
    return rows


def show_logical_report(survey: LogicalSurvey, *, as_json: bool) -> None:
    """Print members, partitions and problems."""
    rows, view = _rows(survey), survey.view
    if as_json:
        click.echo(json.dumps(_as_json(survey, rows), indent=2))
        return
    how = ", ".join(part for part in (survey.state, survey.rule) if part)
    title = f"group {view.group} ({survey.coordinator.value}): {counted(len(view.members), 'member')}"
    show_rows(
        ["member", "subscription", ">partitions", "client"],
        (
            (name, member.text, sum(owner == name for owner, _ in view.owners.values()), survey.clients.get(name))
            for name, member in view.members.items()
        ),
        title=f"{title}, {how}" if how else title,
        kind="member",
    )
    show_rows(
        ["partition", "owner", ">offset", "remark"],
        ((row.partition, row.owner, row.offset, row.remark) for row in rows),
        title=f"{counted(len(rows), 'partition')}, {sum(row.unowned for row in rows)} unowned",
        kind="partition",
    )
    show_rows(["problem"], ([problem] for problem in view.problems), kind="problem")


def _as_json(survey: LogicalSurvey, rows: Iterable[_Row]) -> dict[str, object]:
    view = survey.view
    return {
        "group": view.group,
        "coordinator": survey.coordinator.value,
        "state": survey.state or None,
        "rule": survey.rule or None,
        "members": {
            name: {
                "subscription": member.text,
                "understood": member.subscription is not None,
                "client": survey.clients.get(name),
            }
            for name, member in view.members.items()
        },
        "partitions": {
            str(row.partition): {"owner": row.owner, "planned": row.planned, "offset": row.offset} for row in rows
        },
        "unowned": [str(row.partition) for row in rows if row.unowned],
        "orphaned": [str(row.partition) for row in rows if row.orphan],
        "problems": view.problems,
    }
