"""Offsets of many partitions, as in the options and in a stream's checkpoint.

Strategy: both have one form, JSON: topic -> name of the partition -> offset. -2 and -1 stand for the ends of a log, as
in 0.7's OFFSETS request; a checkpoint never contains them. Equal offsets have equal text, since Spark compares text to
see whether there is anything new: topics and names are sorted.

An offset means a place in one log only: a topic that is deleted and created again has another log under its name, and
an unclean election cuts off the end of a log, which grows again with other messages. Where the log has an id (topics
since 2.8), and the message before the offset a leader epoch (record batches since 0.11), the offset is an object that
has them, `{"offset": 71, "topic_id": "...", "leader_epoch": 3}`; where it has neither, and in checkpoints of earlier
releases, it is a number.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from consumerd.wire.v07 import EARLIEST, LATEST

#: Topic -> name of a partition (`0-2`, or `2` without a broker) -> offset, or an object with the offset and its log.
Offsets: TypeAlias = Mapping[str, Mapping[str, int | Mapping[str, Any]]]
#: EARLIEST or LATEST for all partitions, or an offset (perhaps one of these) for each.
Position: TypeAlias = int | Offsets
#: The name of one partition.
Key: TypeAlias = tuple[str, str]

_WORDS = {"earliest": EARLIEST, "latest": LATEST}
_FORM = 'earliest, latest, or JSON such as {"topic": {"0-0": 71, "0-1": -2}} with -2 for earliest and -1 for latest'


class LogOffset(NamedTuple):
    """An offset and the log that it belongs to. `topic_id`: as Kafka's tools print it; None where it is unknown.

    `leader_epoch`: that of the last message before the offset; None where that is unknown, or there is no such message.
    """

    offset: int
    topic_id: str | None = None
    leader_epoch: int | None = None

    def as_json(self) -> int | dict[str, Any]:
        """The form that `positions` reads: a number where the log is unknown."""
        known = {name: value for name, value in self._asdict().items() if value is not None}
        return known if len(known) > 1 else self.offset

    def may_be_of(self, topic_id: str | None) -> bool:
        """Whether the log with this id can be the one of this offset: an unknown id may be any."""
        return self.topic_id is None or topic_id is None or self.topic_id == topic_id


def parse_position(text: str) -> Position:
    """Read a position of the options. Raises ValueError with a clause that names the problem."""
    word = text.strip().lower()
    if word in _WORDS:
        return _WORDS[word]
    try:
        found = json.loads(text, object_pairs_hook=_no_repeats)
    except _RepeatedError as error:
        raise ValueError(f"duplicate key {error}") from None
    except (ValueError, RecursionError):
        raise ValueError(f"{text[:200]!r} is not {_FORM}") from None
    return _checked(found, text, lowest=EARLIEST)


def parse_offsets(text: str) -> Offsets:
    """Read a stream's offsets from a checkpoint. Raises ValueError with a clause that names the problem."""
    try:
        found = json.loads(text)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None
    return _checked(found, text, lowest=0)


def format_offsets(offsets: Offsets) -> str:
    """The text that `parse_offsets` reads."""
    return json.dumps(sorted_offsets(dict(positions(offsets))))


def entries(offsets: Offsets) -> Iterator[tuple[Key, int]]:
    """Each partition with its offset."""
    for key, position in positions(offsets):
        yield key, position.offset


def positions(offsets: Offsets) -> Iterator[tuple[Key, LogOffset]]:
    """Each partition with its offset and the log of that."""
    for topic, by_name in offsets.items():
        for name, offset in by_name.items():
            position = LogOffset(offset) if isinstance(offset, int) else LogOffset(**offset)
            yield (topic, name), position


def sorted_offsets(offsets: Mapping[Key, int | LogOffset]) -> dict[str, dict[str, Any]]:
    """Return offsets by topic and name, in an order that depends on these alone."""
    found: dict[str, dict[str, Any]] = {}
    for topic, name in sorted(offsets):
        each = offsets[topic, name]
        found.setdefault(topic, {})[name] = each if isinstance(each, int) else each.as_json()
    return found


class _RepeatedError(ValueError):
    """A JSON object has a key twice."""


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _RepeatedError(key)
        found[key] = value
    return found


def _checked(found: Any, text: str, *, lowest: int) -> Offsets:
    if not (isinstance(found, dict) and all(isinstance(names, dict) for names in found.values())):
        raise ValueError(f"{text[:200]!r} is not {_FORM}")
    for topic, names in found.items():
        for name, offset in names.items():
            if not _is_offset(_number(offset), lowest):
                raise ValueError(f"{json.dumps(offset)} of {topic}/{name} is not an offset; it is {_FORM}")
    return found


def _number(value: Any) -> Any:
    """The offset of an object that names its log, and any other value."""
    if isinstance(value, dict) and len(value) > 1 and "offset" in value and value.keys() <= set(LogOffset._fields):
        epoch = value.get("leader_epoch", 0)
        if isinstance(value.get("topic_id", ""), str) and _is_offset(epoch, 0) and epoch < 1 << 31:
            return value["offset"]
    return value


def _is_offset(value: Any, lowest: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and lowest <= value < 1 << 63
