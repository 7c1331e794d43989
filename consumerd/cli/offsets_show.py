"""What `consumerd offsets get` and `export` read from ZooKeeper."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

import click

from consumerd.cli.tables import show_rows
from consumerd.cluster import ClusterView
from consumerd.registry import offset_path, offsets_root

if TYPE_CHECKING:
    from collections.abc import Sequence

    from consumerd.admin import GroupOffsets
    from consumerd.cluster import GroupView
    from consumerd.ports import ZooKeeper


class OffsetRow(NamedTuple):
    """One offset node. `subject` is `topic/broker-partition`, or what stands there instead."""

    subject: str
    offset: int | None
    written: str | None
    problem: str | None


async def read_offsets(zk: ZooKeeper, group: str, topics: Sequence[str], partitions: Sequence[str]) -> list[OffsetRow]:
    """The offset nodes of a group, of all topics and partitions or of those named. Raises NotFoundError."""
    view = await ClusterView(zk).read_group(group)
    rows = []
    for partition, offset in view.offsets.items():
        if (not topics or partition.topic in topics) and (not partitions or partition.name in partitions):
            written = _time(view.stats[offset_path(group, partition)].modified_ms)
            rows.append(OffsetRow(str(partition), offset, written, None))
    for subject, fault in _faults(view).items():
        topic, _, name = subject.rpartition("/")
        if (not topics or topic in topics) and (not partitions or name in partitions):
            rows.append(OffsetRow(subject, None, None, fault))
    return rows


def show_offsets(group: str, rows: Sequence[OffsetRow], *, as_json: bool) -> None:
    """Print the offsets."""
    if as_json:
        offsets = {row.subject: {"offset": row.offset, "written": row.written} for row in rows if row.problem is None}
        problems = {row.subject: row.problem for row in rows if row.problem is not None}
        click.echo(json.dumps({"group": group, "offsets": offsets, "problems": problems}, indent=2))
        return
    show_rows(["partition", ">offset", "written (UTC)", "problem"], rows, title=f"group {group}")


async def collect_offsets(
    zk: ZooKeeper, groups: Sequence[str], topics: Sequence[str]
) -> tuple[GroupOffsets, list[str]]:
    """The offsets of all groups, or of those named, and sentences about what is left out. Raises NotFoundError."""
    cluster = ClusterView(zk)
    offsets: GroupOffsets = {}
    problems = []
    for group in groups or await cluster.read_groups():
        view = await cluster.read_group(group)
        offsets[group] = {
            partition: offset for partition, offset in view.offsets.items() if not topics or partition.topic in topics
        }
        problems += [f"{subject} of group {group}: {fault}" for subject, fault in _faults(view).items()]
    return offsets, problems


def _faults(view: GroupView) -> dict[str, str]:
    """What is wrong with offset nodes, by `topic/name`."""
    root = f"{offsets_root(view.group)}/"
    return {path.removeprefix(root): fault for path, fault in view.faults.items() if path.startswith(root)}


def _time(milliseconds: int) -> str:
    return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
