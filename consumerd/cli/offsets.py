"""`consumerd offsets`: see, change, save and restore the committed offsets of groups."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from consumerd.cli.offsets_change import change_command
from consumerd.cli.session import group_option, json_option, place_options

if TYPE_CHECKING:
    from consumerd.admin import GroupOffsets, Target
    from consumerd.cli.offsets_change import How
    from consumerd.cli.session import Place
    from consumerd.partition import TopicPartition

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
"""

SET_EXAMPLES = """\b
Examples:
  consumerd offsets set --zookeeper 127.0.0.1:2181/kafka --group events clicks/0-0=1048576
  consumerd offsets set --zookeeper 127.0.0.1:2181/kafka --group events clicks/0-0=0 clicks/0-1=0 --execute
"""

RESET_EXAMPLES = """\b
Examples:
  consumerd offsets reset --zookeeper 127.0.0.1:2181/kafka --group events --to latest
  consumerd offsets reset --zookeeper 127.0.0.1:2181/kafka --group events --topic clicks --partition 0-1 --to -1000000
  consumerd offsets reset --zookeeper 127.0.0.1:2181/kafka --group events --at-time 2012-11-21T12:00+01:00 --execute
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
"""


def _partition_names(_: click.Context, __: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    """The names, if all of them are `broker-partition`."""
    from consumerd.partition import TopicPartition  # noqa: PLC0415

    for name in names:
        try:
            TopicPartition.parse("", name)
        except ValueError as error:
            raise click.BadParameter(f"{error}.") from None
    return names


topic_option = click.option("--topic", "topics", multiple=True, help="Only this topic; may be given several times.")
partition_option = click.option(
    "--partition",
    "partitions",
    multiple=True,
    callback=_partition_names,
    metavar="BROKER-PARTITION",
    help="Only partitions of this name; may be given several times.",
)


@click.group("offsets", epilog=EXAMPLES)
def command() -> None:
    """See, change, save and restore the committed offsets of groups."""


@command.command("get", epilog=GET_EXAMPLES)
@place_options()
@group_option
@topic_option
@partition_option
@json_option('One object: {"group": ..., "offsets": {"topic/broker-partition": {"offset": ..., "written": ...}}}.')
def get(place: Place, group: str | None, topics: tuple[str, ...], partitions: tuple[str, ...], as_json: bool) -> None:
    """Show the committed offsets of a group, and when they were written last (UTC).

    In a pipe: topic/broker-partition, offset, time, and what is wrong with the node, if it holds no offset.
    """
    from consumerd.cli.offsets_show import read_offsets, show_offsets  # noqa: PLC0415

    name = place.group_or(group)
    rows = place.run(lambda session: read_offsets(session, name, topics, partitions))
    show_offsets(name, rows, as_json=as_json)


@command.command("export", epilog=EXPORT_EXAMPLES)
@place_options()
@click.option("--group", "groups", multiple=True, help="Only this group; may be given several times. [default: all]")
@topic_option
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write (and sync) this file, which must not exist. [default: standard output]",
)
def export(place: Place, groups: tuple[str, ...], topics: tuple[str, ...], form: str, output: Path | None) -> None:
    """Write committed offsets in the format of Kafka 0.7's ExportZkOffsets, or as JSON.

    The text has a line /consumers/GROUP/offsets/TOPIC/BROKER-PARTITION:OFFSET for each, which ImportZkOffsets of 0.7
    reads too; `offsets import` reads both.
    """
    from consumerd.admin import format_json, format_text, write_durably  # noqa: PLC0415
    from consumerd.cli.offsets_show import collect_offsets  # noqa: PLC0415

    offsets, problems = place.run(lambda session: collect_offsets(session, groups, topics))
    text = format_json(offsets) if form == "json" else format_text(offsets)
    for problem in problems:
        click.echo(f"consumerd: left out: {problem}", err=True)
    if output is None:
        click.echo(text, nl=False)
    else:
        write_durably(output, text)


@command.command("set", epilog=SET_EXAMPLES)
@place_options()
@group_option
@change_command
@click.argument("assignments", nargs=-1, required=True, metavar="TOPIC/BROKER-PARTITION=OFFSET...")
def set_offsets(place: Place, group: str | None, how: How, assignments: tuple[str, ...]) -> None:
    """Set the committed offset of single partitions."""
    name = place.group_or(group)
    wanted: dict[TopicPartition, int | None] = {}
    for text in assignments:
        partition, offset = _assignment(text)
        if wanted.setdefault(partition, offset) != offset:
            raise click.BadParameter(f"{partition} is given two offsets.")
    how.run(place, lambda session: how.plan_set(session, {name: wanted}))


@command.command("reset", epilog=RESET_EXAMPLES)
@place_options()
@group_option
@topic_option
@partition_option
@click.option(
    "--to",
    metavar="WHERE",
    help="earliest, latest, an offset, or +BYTES or -BYTES from the committed one (back to the start of a message).",
)
@click.option(
    "--at-time",
    metavar="TIME",
    help="ISO 8601 (UTC without an offset), or milliseconds since 1970: the start of the last log segment that was "
    "complete by then. Brokers of 0.7 know times of segments only, so messages older than TIME come too.",
)
@change_command
def reset(
    place: Place,
    group: str | None,
    topics: tuple[str, ...],
    partitions: tuple[str, ...],
    to: str | None,
    at_time: str | None,
    how: How,
) -> None:
    """Set the committed offsets of whole topics to a place in the log.

    Without --topic, all topics that the group subscribes to or has committed offsets of.
    """
    if (to is None) == (at_time is None):
        raise click.UsageError("give either --to or --at-time")
    target = _time(at_time) if at_time is not None else _target(to or "")
    name = place.group_or(group)
    how.run(place, lambda session: how.plan_reset(session, name, topics, partitions, target))


@command.command("import", epilog=IMPORT_EXAMPLES)
@place_options()
@click.option("--group", "groups", multiple=True, help="Only this group of the file; may be given several times.")
@topic_option
@partition_option
@click.option(
    "--rename", "renames", multiple=True, metavar="OLD=NEW", help="Give the offsets of group OLD to group NEW."
)
@change_command
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
def import_offsets(
    place: Place,
    groups: tuple[str, ...],
    topics: tuple[str, ...],
    partitions: tuple[str, ...],
    renames: tuple[str, ...],
    how: How,
    file: str,
) -> None:
    """Set committed offsets to those of a file: text of ExportZkOffsets, JSON, or a backup. `-` is standard input."""
    wanted = _select(_read(file), groups, topics, partitions, file)
    wanted = _rename(wanted, renames)
    how.run(place, lambda session: how.plan_set(session, wanted))


# -- reading what the user wrote


def _assignment(text: str) -> tuple[TopicPartition, int]:
    from consumerd.partition import TopicPartition  # noqa: PLC0415
    from consumerd.registry import RegistryError, check_name, parse_offset  # noqa: PLC0415

    name, equals, offset = text.rpartition("=")
    topic, slash, partition = name.rpartition("/")
    if not (equals and slash):
        raise click.BadParameter(
            f"{text!r} is not of the form TOPIC/BROKER-PARTITION=OFFSET, such as events/0-3=1048576."
        )
    try:
        return TopicPartition.parse(check_name("topic", topic), partition), parse_offset(offset)
    except (ValueError, RegistryError) as error:
        raise click.BadParameter(f"{text!r}: {error}.") from None


def _target(text: str) -> Target:
    from consumerd.admin import Target, TargetKind  # noqa: PLC0415
    from consumerd.registry import MAX_OFFSET  # noqa: PLC0415

    if text in ("earliest", "latest"):
        return Target(TargetKind(text))
    if not re.fullmatch(r"[+-]?[0-9]{1,19}", text) or abs(int(text)) > MAX_OFFSET:
        raise click.BadParameter(
            f"{text!r} is none of earliest, latest, an offset, +BYTES and -BYTES.", param_hint="--to"
        )
    return Target(TargetKind.SHIFT if text[0] in "+-" else TargetKind.OFFSET, int(text))


def _time(text: str) -> Target:
    from consumerd.admin import Target, TargetKind  # noqa: PLC0415

    if text.isascii() and text.isdigit() and len(text) <= 18:
        return Target(TargetKind.TIME, int(text))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is neither ISO 8601, such as 2012-11-21T12:00, nor milliseconds.", param_hint="--at-time"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    milliseconds = int(moment.timestamp() * 1000)
    if milliseconds < 0:
        raise click.BadParameter("a time before 1970 has no offset.", param_hint="--at-time")
    return Target(TargetKind.TIME, milliseconds)


def _read(file: str) -> GroupOffsets:
    from consumerd.admin import OffsetFileError, parse_offsets  # noqa: PLC0415

    try:
        with click.open_file(file, encoding="utf-8") as stream:
            text = stream.read()
    except (OSError, ValueError) as error:
        raise OffsetFileError(f"{file} cannot be read: {error}") from None
    return parse_offsets(text, "standard input" if file == "-" else file)


def _select(
    offsets: GroupOffsets, groups: tuple[str, ...], topics: tuple[str, ...], partitions: tuple[str, ...], file: str
) -> GroupOffsets:
    from consumerd.errors import NotFoundError  # noqa: PLC0415

    for group in groups:
        if group not in offsets:
            raise NotFoundError(f"{file} holds no offsets of group {group!r}")
    selected = {
        group: {
            partition: offset
            for partition, offset in of_group.items()
            if (not topics or partition.topic in topics) and (not partitions or partition.name in partitions)
        }
        for group, of_group in offsets.items()
        if not groups or group in groups
    }
    if not any(selected.values()):
        raise NotFoundError(f"{file} holds nothing of what --topic and --partition leave")
    return {group: of_group for group, of_group in selected.items() if of_group}


def _rename(offsets: GroupOffsets, renames: tuple[str, ...]) -> GroupOffsets:
    names: dict[str, str] = {}
    for text in renames:
        old, equals, new = text.partition("=")
        if not (old and equals and new):
            raise click.BadParameter(f"{text!r} is not of the form OLD=NEW.", param_hint="--rename")
        if old not in offsets:
            raise click.BadParameter(f"the file holds no offsets of group {old!r}.", param_hint="--rename")
        names[old] = new
    renamed: GroupOffsets = {}
    for group, of_group in offsets.items():
        name = names.get(group, group)
        if name in renamed:
            raise click.BadParameter(f"two groups of the file would become {name!r}.", param_hint="--rename")
        renamed[name] = of_group
    return renamed
