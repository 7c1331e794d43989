"""The offsets that `consumerd offsets get` and `export` read from ZooKeeper or from brokers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from consumerd.base.clock import iso_time
from consumerd.cli.tables import show_rows
from consumerd.operate.admin.offset_file import GroupOffsets
from consumerd.wire.registry.paths import offset_path

if TYPE_CHECKING:
    from consumerd.operate.admin.group_source import GroupSource
    from consumerd.operate.admin.snapshot import GroupSnapshot


class OffsetRow(NamedTuple):
    """One offset. `subject` is `topic/broker-partition` or `topic/partition`, or what stands there instead."""

    subject: str
    offset: int | None
    written: str | None
    problem: str | None
    #: The text that was committed with it, where a broker keeps one.
    metadata: str | None = None


def offset_rows(snapshot: GroupSnapshot, topics: Sequence[str], partitions: Sequence[str]) -> list[OffsetRow]:
    """The offsets of a group, of all topics and partitions or of those named."""
    rows, view, texts = [], snapshot.view, snapshot.metadata
    for partition, offset in view.offsets.items():
        if (not topics or partition.topic in topics) and (not partitions or partition.name in partitions):
            stat = view.stats.get(offset_path(view.group, partition)) if view.stats else None  # brokers tell no times
            written = None if stat is None else iso_time(stat.modified_ms / 1000)
            rows.append(OffsetRow(str(partition), offset, written, None, texts.get(partition)))
    for partition, offset in snapshot.at_broker.items():
        if (not topics or partition.topic in topics) and (not partitions or partition.name in partitions):
            problem = f"a broker keeps it: {offset}"
            rows.append(OffsetRow(str(partition), None, None, problem, texts.get(partition)))
    for subject, fault in snapshot.offset_faults(read=False).items():
        topic, _, name = subject.rpartition("/")
        if (not topics or topic in topics) and (not partitions or name in partitions):
            rows.append(OffsetRow(subject, None, None, fault))
    return rows


def show_offsets(group: str, rows: Sequence[OffsetRow], *, as_json: bool) -> None:
    """Print the offsets."""
    if as_json:
        offsets = {
            row.subject: {"offset": row.offset, "written": row.written}
            | ({} if row.metadata is None else {"metadata": row.metadata})
            for row in rows
            if row.problem is None
        }
        problems = {row.subject: row.problem for row in rows if row.problem is not None}
        click.echo(json.dumps({"group": group, "offsets": offsets, "problems": problems}, indent=2))
        return
    columns = ["partition", ">offset", "written (UTC)", "problem", "metadata"]
    if all(row.metadata is None for row in rows):  # as in ZooKeeper, which keeps none
        columns.pop()
    show_rows(columns, (row[: len(columns)] for row in rows), title=f"group {group}")


async def collect_offsets(
    source: GroupSource, groups: Sequence[str], topics: Sequence[str]
) -> tuple[GroupOffsets, list[str]]:
    """Return the offsets of `groups`, of all without any, and sentences about those left out."""
    offsets: GroupOffsets = {}
    problems, elsewhere = [], []
    names = groups or await source.names()
    await source.prepare(names)
    for group in names:
        snapshot = await source.committed(group, topics)
        view = snapshot.view
        if snapshot.at_broker:
            elsewhere.append(f"{len(snapshot.at_broker)} offsets of group {group}, which a broker keeps")
        offsets[group] = {
            partition: offset for partition, offset in view.offsets.items() if not topics or partition.topic in topics
        }
        problems += [
            f"{subject} of group {group}: {fault}" for subject, fault in snapshot.offset_faults(read=False).items()
        ]
    return offsets, problems + elsewhere
