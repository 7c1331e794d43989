"""The input of `consumerd offsets`: partitions with offsets, targets, times, files."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from consumerd.base.errors import NotFoundError
from consumerd.base.partition import TopicPartition
from consumerd.operate.admin.errors import OffsetFileError

if TYPE_CHECKING:
    from consumerd.operate.admin.changes import OffsetTarget
    from consumerd.operate.admin.offset_file import GroupOffsets


def parse_assignment(text: str) -> tuple[TopicPartition, int]:
    """Read `TOPIC/PARTITION=OFFSET`. Raises BadParameter."""
    from consumerd.wire.registry.errors import RegistryError  # noqa: PLC0415
    from consumerd.wire.registry.paths import check_name  # noqa: PLC0415
    from consumerd.wire.registry.values import parse_offset  # noqa: PLC0415

    name, equals, offset = text.rpartition("=")
    topic, slash, partition = name.rpartition("/")
    if not (equals and slash):
        raise click.BadParameter(
            f"{text!r} is not of the form TOPIC/PARTITION=OFFSET, such as events/0-3=1048576 (0.7) or events/3=70."
        )
    try:
        return TopicPartition.parse_any(check_name("topic", topic), partition), parse_offset(offset)
    except (ValueError, RegistryError) as error:
        raise click.BadParameter(f"{text!r}: {error}.") from None


def parse_target(text: str, option: str = "--to") -> OffsetTarget:
    """Parse the value of `--to`, or that of another option with a number. Raises BadParameter."""
    from consumerd.base.settings.moments import is_start, start_of  # noqa: PLC0415
    from consumerd.operate.admin.changes import OffsetTarget, OffsetTargetKind  # noqa: PLC0415
    from consumerd.wire.registry.values import MAX_OFFSET  # noqa: PLC0415

    if text in ("earliest", "latest"):
        return OffsetTarget(OffsetTargetKind(text))
    if is_start(text):
        return _at_time(lambda: start_of(text, time.time()), option)
    if not re.fullmatch(r"[+-]?[0-9]{1,19}", text) or abs(int(text)) > MAX_OFFSET:
        raise click.BadParameter(
            f"must be earliest, latest, an offset, +N or -N, a time or a duration such as 7d, not {text!r}.",
            param_hint=option,
        )
    return OffsetTarget(OffsetTargetKind.SHIFT if text[0] in "+-" else OffsetTargetKind.OFFSET, int(text))


def parse_time(text: str, option: str = "--at-time") -> OffsetTarget:
    """Parse the time that `option` has. Raises BadParameter."""
    from consumerd.base.settings.moments import milliseconds_of  # noqa: PLC0415

    return _at_time(lambda: milliseconds_of(text), option)


def parse_duration(text: str, now: float) -> OffsetTarget:
    """Parse `--by-duration`: the time so long before `now` (seconds since 1970). Raises BadParameter."""
    from consumerd.base.settings.moments import seconds_of  # noqa: PLC0415

    return _at_time(lambda: max(int((now - seconds_of(text)) * 1000), 0), "--by-duration")


def _at_time(milliseconds: Callable[[], int], option: str) -> OffsetTarget:
    from consumerd.operate.admin.changes import OffsetTarget, OffsetTargetKind  # noqa: PLC0415

    try:
        return OffsetTarget(OffsetTargetKind.TIME, milliseconds())
    except ValueError as error:
        raise click.BadParameter(f"{error}.", param_hint=option) from None


def read_file(file: str) -> GroupOffsets:
    """The offsets of a file, `-` for standard input. Raises OffsetFileError."""
    from consumerd.operate.admin.offset_file import parse_offsets  # noqa: PLC0415

    try:
        with click.open_file(file, encoding="utf-8-sig") as stream:
            text = stream.read()
    except UnicodeDecodeError as error:
        problem = f"{file} is not UTF-8 text (byte {error.start}): name a file that `consumerd offsets export` wrote"
        raise OffsetFileError(problem) from None
    except OSError as error:
        raise OffsetFileError(f"{file} cannot be read: {error.strerror}") from None
    return parse_offsets(text, "standard input" if file == "-" else file)


def select(
    offsets: GroupOffsets, groups: tuple[str, ...], topics: tuple[str, ...], partitions: tuple[str, ...], file: str
) -> GroupOffsets:
    """The entries of a file that `--group`, `--topic` and `--partition` select. Raises NotFoundError."""
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
        raise NotFoundError(f"{file} holds no offsets that match --topic and --partition")
    return {group: of_group for group, of_group in selected.items() if of_group}


def rename(offsets: GroupOffsets, renames: tuple[str, ...]) -> GroupOffsets:
    """Groups renamed as `OLD=NEW` say. Raises BadParameter."""
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
