"""What `consumerd group` says about a living group: read, compare with the members' own rule, show."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING, Any

import click

from consumerd.admin import CheckFailedError, Difference, Topics, differences, survey_group
from consumerd.cli.tables import counted, show_rows
from consumerd.errors import NotFoundError
from consumerd.group import partitions_of
from consumerd.registry import RegistryError, Subscription

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from consumerd.admin import GroupSource, GroupSurvey
    from consumerd.cluster import GroupView
    from consumerd.group import Assignment
    from consumerd.partition import TopicPartition
    from consumerd.ports import ZooKeeper

#: Seconds between looks of `group verify --wait`.
_LOOK_AGAIN = 0.25


async def read_group(zk: ZooKeeper, group: str) -> tuple[GroupView, Topics]:
    """The group, and the topics that its members want. Raises NotFoundError for a group that never was."""
    survey = await survey_group(zk, group, brokers=False)
    return survey.view, survey.subscribed


async def read_plan(zk: ZooKeeper, group: str) -> tuple[Topics, dict[str, Subscription]]:
    """Topics and members for a plan. Raises RegistryError for a member that cannot be understood, NotFoundError."""
    view, topics = await read_group(zk, group)
    members = {name: member.subscription for name, member in view.members.items() if member.subscription is not None}
    if len(members) < len(view.members):
        raise RegistryError(f"group {group!r} cannot be planned for: {view.problems[0]}")
    if not members:
        raise NotFoundError(f"group {group!r} has no members now; `group describe` shows its committed offsets")
    return topics, members


class _Row:
    """One partition as it is and as it should be."""

    def __init__(self, view: GroupView, partition: TopicPartition, planned: tuple[str, int] | None) -> None:
        owner = view.owners.get(partition)
        self.partition = partition
        self.owner = None if owner is None else f"{owner[0]}-{owner[1]}"
        self.planned = None if planned is None else f"{planned[0]}-{planned[1]}"
        self.offset = view.offsets.get(partition)
        self.unowned = owner is None and planned is not None
        self.orphan = owner is not None and owner[0] not in view.members

    @property
    def remark(self) -> str:
        remarks = []
        if self.unowned:
            remarks.append("unowned")
        if self.orphan:
            remarks.append("owner is no member")
        if self.planned != self.owner and self.planned is not None:
            remarks.append(f"planned: {self.planned}")
        elif self.planned is None and self.owner is not None:
            remarks.append("nobody subscribes")
        return ", ".join(remarks)


def _rows(view: GroupView, topics: Topics) -> list[_Row]:
    plan = view.plan(topics)
    partitions: set[TopicPartition] = {*view.owners, *view.offsets}
    for topic, brokers in topics.items():
        partitions.update(partitions_of(topic, brokers))
    ordered = sorted(partitions, key=lambda partition: (partition.topic, partition.name))
    return [_Row(view, partition, plan.get(partition)) for partition in ordered]


def show_report(view: GroupView, topics: Topics, *, as_json: bool) -> None:
    """Print members, partitions and problems."""
    rows = _rows(view, topics)
    if as_json:
        click.echo(json.dumps(_as_json(view, rows), indent=2))
        return
    show_rows(
        ["member", "subscription", ">partitions"],
        ((name, member.text, _owned(view, name)) for name, member in view.members.items()),
        title=f"group {view.group}: {counted(len(view.members), 'member')}",
        kind="member",
    )
    show_rows(
        ["partition", "owner", ">offset", "remark"],
        ((row.partition, row.owner, row.offset, row.remark) for row in rows),
        title=f"{counted(len(rows), 'partition')}, {sum(row.unowned for row in rows)} unowned",
        kind="partition",
    )
    show_rows(["problem"], ([problem] for problem in view.problems), kind="problem")


def _owned(view: GroupView, name: str) -> int:
    return sum(consumer_id == name for consumer_id, _ in view.owners.values())


def _as_json(view: GroupView, rows: Iterable[_Row]) -> dict[str, Any]:
    return {
        "group": view.group,
        "members": {
            name: {"subscription": member.text, "understood": member.subscription is not None}
            for name, member in view.members.items()
        },
        "partitions": {
            str(row.partition): {"owner": row.owner, "planned": row.planned, "offset": row.offset} for row in rows
        },
        "unowned": [str(row.partition) for row in rows if row.unowned],
        "orphaned": [str(row.partition) for row in rows if row.orphan],
        "problems": view.problems,
    }


async def read_logical_plan(source: GroupSource, group: str) -> Assignment:
    """Who should own what in a group of 0.8 or later. Raises RegistryError, NotFoundError as `read_plan`."""
    survey = await source.survey(group)
    members = survey.view.members.values()
    if any(member.subscription is None for member in members):
        raise RegistryError(f"group {group!r} cannot be planned for: {survey.view.problems[0]}")
    if not members:
        raise NotFoundError(f"group {group!r} has no members now; `group describe` shows its committed offsets")
    return survey.plan()


async def verify_group(look: Callable[[], Awaitable[GroupSurvey]], wait: float) -> list[Difference]:
    """The differences at the last `look`; looks again for up to `wait` seconds while there are any.

    Raises NotFoundError for a group without members.
    """
    deadline = asyncio.get_running_loop().time() + wait
    while True:
        survey = await look()
        if not survey.view.members:
            raise NotFoundError(f"group {survey.group!r} has no members now, so there is nothing to verify")
        found = differences(survey)
        if not found or asyncio.get_running_loop().time() >= deadline:
            return found
        await asyncio.sleep(min(_LOOK_AGAIN, wait))


def show_verification(group: str, found: Sequence[Difference], *, as_json: bool) -> None:
    """Print the differences. Raises CheckFailedError if there are any."""
    if as_json:
        click.echo(json.dumps({"group": group, "differences": [each._asdict() for each in found]}, indent=2))
    else:
        show_rows(["partition or member", "difference"], found)
    if found:
        raise CheckFailedError(f"group {group!r} is not as its members' rule says: {counted(len(found), 'difference')}")
    if sys.stdout.isatty() and not as_json:
        click.echo(f"group {group}: every partition has the owner that the members' rule names")
