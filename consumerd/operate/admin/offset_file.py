"""Offsets in files: the lines of Kafka's export tool, and JSON.

Strategy: the text is `/consumers/GROUP/offsets/TOPIC/BROKER-PARTITION:OFFSET`, one per line, relative to the chroot, as
ExportZkOffsets writes and ImportZkOffsets reads it (golden notes, tools); since 0.8 with a PARTITION alone. JSON says
the same and more: null stands for a partition without a committed offset, which makes a backup restore exactly what
was. Both hold any number of groups. Which of the two a file is, its first character tells.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from consumerd.base.files import SystemFiles
from consumerd.base.partition import NO_BROKER, TopicPartition
from consumerd.operate.admin.errors import OffsetFileError
from consumerd.wire.registry.errors import RegistryError
from consumerd.wire.registry.paths import check_name, offset_path
from consumerd.wire.registry.values import MAX_OFFSET

#: Group -> partition -> offset, or None: no node.
GroupOffsets = dict[str, dict[TopicPartition, int | None]]

_LINE = re.compile(r"/consumers/([^/]+)/offsets/([^/]+)/([^/:]+):([0-9]{1,20})")
SHAPE = '{"groups": {group: {topic: {"broker-partition": offset or null}}}}'


def format_text(offsets: Mapping[str, Mapping[TopicPartition, int | None]]) -> str:
    """The lines, sorted by group, topic and 0.7's order of partitions. A partition without an offset has no line.

    Raises OffsetFileError for a group whose name no path can hold, as brokers allow it.
    """
    try:
        return "".join(
            f"{offset_path(group, partition)}:{offset}\n"
            for group in sorted(offsets)
            for partition in sorted(offsets[group], key=TopicPartition.order)
            if (offset := offsets[group][partition]) is not None
        )
    except RegistryError as error:
        raise OffsetFileError(f"{error}, so it cannot be exported as text: use --format json") from None


def format_json(offsets: Mapping[str, Mapping[TopicPartition, int | None]], **more: object) -> str:
    """The JSON document; `more` are further keys, which readers ignore."""
    groups: dict[str, dict[str, dict[str, int | None]]] = {}
    for group in sorted(offsets):
        topics = groups.setdefault(group, {})
        for partition in sorted(offsets[group], key=TopicPartition.order):
            topics.setdefault(partition.topic, {})[partition.name] = offsets[group][partition]
    return json.dumps({"groups": groups, **more}, indent=2) + "\n"


def parse_offsets(text: str, source: str) -> GroupOffsets:
    """Read either format. `source` names the text in errors. Raises OffsetFileError."""
    if text.lstrip()[:1] == "{":
        return _parse_json(text, source)
    found: GroupOffsets = {}
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            match = _LINE.fullmatch(line.strip())
            if match is None:
                raise OffsetFileError(
                    f"{source}, line {number}: {line.strip()[:80]!r} is not of the form "
                    "/consumers/GROUP/offsets/TOPIC/BROKER-PARTITION:OFFSET"
                )
            group, topic, name, offset = match.groups()
            _add(found, f"{source}, line {number}", group, topic, name, int(offset))
    if not found:
        raise OffsetFileError(f"{source} holds no offsets: name a file that `consumerd offsets export` wrote")
    return found


def write_durably(path: Path, text: str, files: SystemFiles | None = None) -> None:
    """Write a new file, durably and as a whole. Blocks. Raises OffsetFileError, also if it exists."""
    try:
        created = (files or SystemFiles()).create(path, text.encode())
    except OSError as error:
        raise OffsetFileError(f"{path} cannot be written: {error.strerror}") from error
    if not created:
        raise OffsetFileError(f"{path} already exists: name another file")


def _parse_json(text: str, source: str) -> GroupOffsets:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise OffsetFileError(f"{source} is not JSON: {error}") from None
    found: GroupOffsets = {}
    for group, topics in _object(document.get("groups"), source).items():
        for topic, partitions in _object(topics, source).items():
            for name, offset in _object(partitions, source).items():
                if offset is not None and (isinstance(offset, bool) or not isinstance(offset, int) or offset < 0):
                    raise OffsetFileError(f"{source}: the offset of {topic}/{name} in {group} is {offset!r}")
                _add(found, source, group, topic, name, offset)
    if not found:
        raise OffsetFileError(f"{source} holds no offsets: name a file that `consumerd offsets export` wrote")
    return found


def _object(value: Any, source: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise OffsetFileError(f"{source} is not of the form {SHAPE}")
    return value


def _add(found: GroupOffsets, where: str, group: str, topic: str, name: str, offset: int | None) -> None:
    try:
        check_name("topic", topic)
        partition = TopicPartition.parse_any(topic, name)
        if partition.broker != NO_BROKER:  # brokers of 0.8 and later take other names, too
            check_name("group", group)
    except (RegistryError, ValueError) as error:
        raise OffsetFileError(f"{where}: {error}") from None
    if offset is not None and offset > MAX_OFFSET:
        raise OffsetFileError(f"{where}: {offset} is greater than the greatest offset, {MAX_OFFSET}")
    offsets = found.setdefault(group, {})
    if partition in offsets:
        raise OffsetFileError(f"{where}: {partition} of group {group} is given twice")
    offsets[partition] = offset
