"""The identity of a segment by its path: a layout such as `broker-{broker}/{topic}-{partition}` of its folders.

A broker since 0.8 marks what it is about to do by suffixes (`.deleted`, `.cleaned`, `.swap` of files; `-delete`,
`-future`, `-stray` of folders, behind a dot and 32 hexadecimal digits), so a name tells whether a file is part of the
log, or of one that was replaced or is not complete yet.

Strategy: a layout is matched against the last folders of the path only, so that the place of the tree does not matter.
Inside an archive the path continues after `!/`, so the archive's own name is a folder that a layout can use, too.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from consumerd.base.errors import ConfigError
from consumerd.storage.log.archive_items import MAX_SEGMENT_BYTES
from consumerd.storage.log.archive_tiered import parse_tiered_folder, tiered_start
from consumerd.storage.log.segment import SUFFIX, parse_segment_name
from consumerd.wire.errors import InvalidTopicError
from consumerd.wire.v07 import validate_topic

#: The separator between an archive's name and that of a file in it.
INSIDE = "!/"
#: As brokers name the folders of partitions (golden notes, 3).
DEFAULT_LAYOUT = "{topic}-{partition}"

#: Since 0.8 segment files are named by the offset that they start at, 20 digits and this.
LOG_SUFFIX: Final = ".log"
_FILE = re.compile(r"([0-9]{1,20})\.log(?:\.(deleted|cleaned|swap))?")
_FOLDER = re.compile(r"(.+)-([0-9]{1,10})(?:\.([0-9a-f]{32})-(delete|future|stray))?", re.DOTALL)

_FIELDS = {"topic": r"[^/]+", "partition": r"[0-9]{1,10}", "broker": r"[0-9]{1,10}"}
_TOKEN = re.compile(r"\{([^{}]*)\}|(\*)|([^{}*]+)")
_INT32 = 1 << 31


class SegmentName(NamedTuple):
    """The identity of a segment. `broker` is None where neither the path nor an option names it."""

    topic: str
    broker: int | None
    partition: int
    start: int

    @property
    def folder(self) -> str:
        """`topic/broker-partition`, or `topic/partition` without a broker."""
        number = str(self.partition) if self.broker is None else f"{self.broker}-{self.partition}"
        return f"{self.topic}/{number}"


class SegmentFileName(NamedTuple):
    """The offset at which a segment starts, and what the broker was doing with the file: "" for a part of the log."""

    start: int
    state: str


class PartitionFolderName(NamedTuple):
    """Topic and partition of a folder, and what the broker was doing with it: "" for the log itself."""

    topic: str
    partition: int
    state: str


def parse_segment_file(name: str) -> SegmentFileName | None:
    """The parts of `00000000000000000000.log`, or of that with `.deleted`, `.cleaned` or `.swap`; None for others.

    The name of a tiered segment has an id behind the offset.
    """
    match = _FILE.fullmatch(name)
    if match is None or int(match[1]) >= 1 << 63:
        start = tiered_start(name)
        return None if start is None else SegmentFileName(start, "")
    return SegmentFileName(int(match[1]), match[2] or "")


def parse_partition_folder(name: str) -> PartitionFolderName | None:
    """The parts of `topic-0`, perhaps with an id and `-delete`, `-future` or `-stray`; None for another folder."""
    match = _FOLDER.fullmatch(name)
    if match is None or int(match[2]) >= _INT32:
        return None
    return PartitionFolderName(match[1], int(match[2]), match[4] or "")


class MisnamedSegmentError(ConfigError):
    """A file has the suffix of a segment, but its path does not say which one it is."""


class ArchiveLayout:
    """The pattern of the folders above segments: `{topic}`, `{partition}`, perhaps `{broker}`, `*` and plain text.

    Raises ConfigError for a text that is not a layout.
    """

    def __init__(self, text: str = DEFAULT_LAYOUT, broker: int | None = None) -> None:
        self.text = text
        self.broker = broker
        self._depth = text.count("/") + 1
        self._pattern = _compiled(text)
        if broker is not None and "{broker}" in text:
            raise ConfigError(f"the layout {text!r} already names the broker; omit either that or the broker id")

    def name(self, path: str) -> SegmentName:
        """Return the segment of `path`, without `.gz` or `.zst` at the end. Raises MisnamedSegmentError."""
        *folders, file = path.replace(INSIDE, "/").split("/")
        start = segment_start(file)
        if start is None:
            raise MisnamedSegmentError(
                f"{path} is not named by its first message's offset, as {0:020d}{SUFFIX} is: rename it"
            )
        if self.text == DEFAULT_LAYOUT and tiered_start(file) is not None and len(folders) > 1:
            tiered = parse_tiered_folder(folders[-2], folders[-1])
            if tiered is not None and is_topic(tiered.topic):
                return SegmentName(tiered.topic, self.broker, tiered.partition, start)
        match = self._pattern.fullmatch("/".join(folders[-self._depth :]))
        if match is None:
            raise MisnamedSegmentError(f"{path} does not match the layout {self.text}; give another --layout")
        found = match.groupdict()
        numbers = {key: int(found[key]) for key in ("partition", "broker") if key in found}
        try:
            validate_topic(found["topic"])
        except InvalidTopicError as error:
            raise MisnamedSegmentError(f"{path} has an invalid topic name: {error}") from error
        if any(number >= _INT32 for number in numbers.values()):
            raise MisnamedSegmentError(f"{path} has an invalid partition or broker number")
        return SegmentName(found["topic"], numbers.get("broker", self.broker), numbers["partition"], start)


def is_topic(name: str) -> bool:
    """Whether a topic may have this name."""
    try:
        validate_topic(name)
    except InvalidTopicError:
        return False
    return True


def segment_start(file: str) -> int | None:
    """Return the start offset in the name of a segment file, packed or not; None for another file."""
    plain = file.removesuffix(".gz").removesuffix(".zst")
    start = parse_segment_name(plain)
    if start is None and (since_08 := parse_segment_file(plain)) is not None and not since_08.state:
        start = since_08.start
    return None if start is None or start + MAX_SEGMENT_BYTES >= 1 << 63 else start


def _compiled(text: str) -> re.Pattern[str]:
    pattern, position = "", 0
    seen: set[str] = set()
    while position < len(text):
        token = _TOKEN.match(text, position)
        if token is None:
            raise ConfigError(f"the layout {text!r} has an unmatched brace")
        field, star, plain = token.groups()
        if field is not None:
            if field not in _FIELDS or field in seen:
                what = "twice" if field in seen else "which does not exist"
                raise ConfigError(f"the layout {text!r} names {{{field}}}, {what}; there is {', '.join(_FIELDS)}")
            seen.add(field)
            pattern += f"(?P<{field}>{_FIELDS[field]})"
        else:
            pattern += "[^/]*" if star else re.escape(plain)
        position = token.end()
    if not seen >= {"topic", "partition"}:
        raise ConfigError(f"the layout {text!r} must name {{topic}} and {{partition}}, as {DEFAULT_LAYOUT} does")
    return re.compile(pattern, re.DOTALL)
