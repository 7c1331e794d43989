"""`consumerd offsets`: show, change, export and import the committed offsets of groups."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import click

from consumerd.base.errors import NotFoundError
from consumerd.base.partition import TopicPartition
from consumerd.cli.clusters import with_groups
from consumerd.cli.config_option import json_option
from consumerd.cli.numbers import ExistingFile
from consumerd.cli.offsets_change import NOTE, How, change_command
from consumerd.cli.offsets_input import (
    parse_assignment,
    parse_duration,
    parse_target,
    parse_time,
    read_file,
    rename,
    select,
)
from consumerd.cli.session import ClusterAddress, cluster_options, group_option

EXAMPLES = """\b
Examples:
  consumerd offsets get --zookeeper 127.0.0.1:2181/kafka --group events
  consumerd offsets reset --zookeeper 127.0.0.1:2181/kafka --group events --topic clicks --to earliest
  consumerd offsets export --zookeeper 127.0.0.1:2181/kafka > all-offsets.txt
  consumerd offsets import all-offsets.txt --zookeeper 127.0.0.1:2181/kafka --rename events=events-2 --execute
"""

GET_EXAMPLES = """\b
Examples:
  consumerd offsets get --zookeeper 127.0.0.1:2181/kafka --group events
  consumerd offsets get -c /etc/consumerd/events.toml --topic clicks --json
  consumerd offsets get --bootstrap-server kafka1:9092 --group events
"""

SET_EXAMPLES = """\b
Examples:
  consumerd offsets set --zookeeper 127.0.0.1:2181/kafka --group events clicks/0-0=1048576
  consumerd offsets set --zookeeper 127.0.0.1:2181/kafka --group events clicks/0-0=0 clicks/0-1=0 --execute
  consumerd offsets set --bootstrap-server kafka1:9092 --group events clicks/0=1048
"""

RESET_EXAMPLES = """\b
Examples:
  consumerd offsets reset --zookeeper 127.0.0.1:2181/kafka --group events --to latest
  consumerd offsets reset --zookeeper 127.0.0.1:2181/kafka --group events --topic clicks --partition 0-1 --to -1000000
  consumerd offsets reset --zookeeper 127.0.0.1:2181/kafka --group events --at-time 2012-11-21T12:00+01:00 --execute
  consumerd offsets reset --bootstrap-server kafka1:9092 --group events --topic clicks --by-duration 90m --execute
"""

EXPORT_EXAMPLES = """\b
Examples:
  consumerd offsets export --zookeeper 127.0.0.1:2181/kafka > all-offsets.txt
  consumerd offsets export --zookeeper 127.0.0.1:2181/kafka --group events --format json --output events.json
"""

IMPORT_EXAMPLES = """\b
Examples:
  consumerd offsets import all-offsets.txt --zookeeper 127.0.0.1:2181/kafka
  consumerd offsets import events.json --zookeeper zk2:2181/kafka --rename events=events-2 --execute
  consumerd offsets import events.json --bootstrap-server kafka1:9092 --group events
"""


def _partition_names(_: click.Context, __: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    """The names, if all of them are `broker-partition` or numbers."""
    for name in names:
        try:
            TopicPartition.parse_any("", name)
        except ValueError as error:
            raise click.BadParameter(f"{error}.") from None
    return names


topic_option = click.option("--topic", "topics", multiple=True, help="Only this topic; may be given several times.")
partition_option = click.option(
    "--partition",
    "partitions",
    multiple=True,
    callback=_partition_names,
    metavar="PARTITION",
    help="Only partitions of this name, such as 0-3 (0.7) or 3; may be given several times.",
)


@click.group("offsets", epilog=EXAMPLES)
def command() -> None:
    """Show, change, export and import the committed offsets of groups."""


@command.command("get", epilog=GET_EXAMPLES)
@cluster_options()
@group_option
@topic_option
@partition_option
@json_option('One JSON object: {"group": ..., "offsets": {"topic/broker-partition": {"offset": ..., "written": ...}}}.')
def get(
    cluster: ClusterAddress, group: str | None, topics: tuple[str, ...], partitions: tuple[str, ...], as_json: bool
) -> None:
    """Show the committed offsets of a group, and when each was last written (UTC).

    In a pipe: topic/broker-partition (0.7) or topic/partition, offset, time (unknown where a
    broker keeps it), what is wrong with a node without an offset, and the metadata committed with it.
    """
    from consumerd.cli.offsets_show import offset_rows, show_offsets  # noqa: PLC0415

    name = cluster.group_or(group)
    snapshot = with_groups(cluster, lambda source: source.committed(name, topics), groups=[name])
    rows = offset_rows(snapshot, topics, partitions)
    if (topics or partitions) and not rows:
        raise NotFoundError(f"group {name!r} has no offsets that match --topic and --partition: omit them to see all")
    show_offsets(name, rows, as_json=as_json)


@command.command("export", epilog=EXPORT_EXAMPLES)
@cluster_options()
@click.option("--group", "groups", multiple=True, help="Only this group; may be given several times. [default: all]")
@topic_option
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Format of the file.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="File to write and sync; it must not exist. [default: standard output]",
)
def export(
    cluster: ClusterAddress, groups: tuple[str, ...], topics: tuple[str, ...], form: str, output: Path | None
) -> None:
    """Write committed offsets in the format of Kafka 0.7's ExportZkOffsets, or as JSON.

    The text has a line /consumers/GROUP/offsets/TOPIC/BROKER-PARTITION:OFFSET for each (PARTITION:OFFSET since 0.8),
    which ImportZkOffsets reads too; `offsets import` reads both.
    """
    from consumerd.cli.offsets_show import collect_offsets  # noqa: PLC0415
    from consumerd.operate.admin.offset_file import format_json, format_text, write_durably  # noqa: PLC0415

    offsets, problems = with_groups(cluster, lambda source: collect_offsets(source, groups, topics), groups=groups)
    if topics and not any(offsets.values()):
        raise NotFoundError(f"there are no offsets of the topics {', '.join(sorted(topics))}")
    text = format_json(offsets) if form == "json" else format_text(offsets)
    for problem in problems:
        click.echo(f"consumerd: left out: {problem}", err=True)
    if output is None:
        click.echo(text, nl=False)
    else:
        write_durably(output, text)


@command.command("set", epilog=SET_EXAMPLES)
@cluster_options()
@group_option
@change_command("changes, refusals, executed, backup", NOTE)
@click.argument("assignments", nargs=-1, required=True, metavar="TOPIC/PARTITION=OFFSET...")
def set_offsets(cluster: ClusterAddress, group: str | None, how: How, assignments: tuple[str, ...]) -> None:
    """Set the committed offset of single partitions."""
    name = cluster.group_or(group)
    wanted: dict[TopicPartition, int | None] = {}
    for text in assignments:
        partition, offset = parse_assignment(text)
        if wanted.setdefault(partition, offset) != offset:
            raise click.BadParameter(f"{partition} is given two offsets.")
    how.run_set(cluster, {name: wanted})


@command.command("reset", epilog=RESET_EXAMPLES)
@cluster_options()
@group_option
@topic_option
@partition_option
@click.option(
    "--to",
    metavar="WHERE",
    help="New position: earliest, latest, an offset, a time or a duration before now, such as 7d, or +N or -N from the "
    "committed one, in messages, or in Kafka 0.7 in BYTES (back to the start of a message).",
)
@click.option(
    "--at-time",
    metavar="TIME",
    help="New position: the first message of that time or later, in ISO 8601 (UTC unless it has an offset) or "
    "milliseconds since 1970. Brokers before 0.10.1 know the times of segments only and return the start of "
    "the last segment that was complete by then, so messages older than TIME are included.",
)
@click.option(
    "--by-duration",
    metavar="DURATION",
    help="As --at-time, so long before now: 90m, 1d12h, or ISO 8601 (PT90M).",
)
@click.option("--shift-by", type=int, metavar="N", help="As --to +N, or --to -N for a negative N.")
@click.option(
    "--to-current",
    is_flag=True,
    help="Commit the current offset again, moved into the log if it is outside; the log's end if none is committed.",
)
@change_command("changes, refusals, executed, backup", NOTE)
def reset(
    cluster: ClusterAddress,
    group: str | None,
    topics: tuple[str, ...],
    partitions: tuple[str, ...],
    to: str | None,
    at_time: str | None,
    by_duration: str | None,
    shift_by: int | None,
    to_current: bool,
    how: How,
) -> None:
    """Set the committed offsets of whole topics to a position in the log.

    Without --topic, all topics that the group subscribes to or has committed offsets of.
    """
    from consumerd.operate.admin.changes import OffsetTarget, OffsetTargetKind  # noqa: PLC0415

    targets = {
        "--to": None if to is None else partial(parse_target, to),
        "--at-time": None if at_time is None else partial(parse_time, at_time),
        "--by-duration": None if by_duration is None else partial(parse_duration, by_duration, time.time()),
        "--shift-by": None if shift_by is None else partial(parse_target, f"{shift_by:+d}", "--shift-by"),
        "--to-current": partial(OffsetTarget, OffsetTargetKind.CURRENT) if to_current else None,
    }
    given = [make for make in targets.values() if make is not None]
    if len(given) != 1:
        raise click.UsageError(f"give exactly one of {', '.join(targets)}")
    target = given[0]()
    name = cluster.group_or(group)
    how.run_reset(cluster, name, topics, partitions, target)


@command.command("import", epilog=IMPORT_EXAMPLES)
@cluster_options()
@click.option("--group", "groups", multiple=True, help="Only this group of the file; may be given several times.")
@topic_option
@partition_option
@click.option(
    "--rename", "renames", multiple=True, metavar="OLD=NEW", help="Import the offsets of group OLD for group NEW."
)
@change_command("changes, refusals, executed, backup", NOTE)
@click.argument("file", type=ExistingFile(allow_dash=True))
def import_offsets(
    cluster: ClusterAddress,
    groups: tuple[str, ...],
    topics: tuple[str, ...],
    partitions: tuple[str, ...],
    renames: tuple[str, ...],
    how: How,
    file: str,
) -> None:
    """Set committed offsets to those of a file: text of ExportZkOffsets, JSON, or a backup. `-` is standard input."""
    wanted = select(read_file(file), groups, topics, partitions, file)
    wanted = rename(wanted, renames)
    how.run_set(cluster, wanted)
