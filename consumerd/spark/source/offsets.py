"""Offsets of many partitions, as in the options and in a stream's checkpoint.

Strategy: both have one form, JSON: topic -> name of the partition -> offset. -2 and -1 stand for the ends of a log, as
in 0.7's OFFSETS request; a checkpoint never contains them. Equal offsets have equal text, since Spark compares text to
see whether there is anything new: topics and names are sorted.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeAlias

from consumerd.wire.v07 import EARLIEST, LATEST

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: Topic -> name of a partition (`0-2`, or `2` without a broker) -> offset.
Offsets: TypeAlias = "Mapping[str, Mapping[str, int]]"
#: EARLIEST or LATEST for all partitions, or an offset (perhaps one of these) for each.
Position: TypeAlias = "int | Offsets"
#: The name of one partition.
Key: TypeAlias = tuple[str, str]

_WORDS = {"earliest": EARLIEST, "latest": LATEST}
_FORM = 'earliest, latest, or JSON such as {"topic": {"0-0": 71, "0-1": -2}} with -2 for earliest and -1 for latest'


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
    return json.dumps(sorted_offsets(dict(entries(offsets))))


def entries(offsets: Offsets) -> Iterator[tuple[Key, int]]:
    """Each partition with its offset."""
    for topic, by_name in offsets.items():
        for name, offset in by_name.items():
            yield (topic, name), offset


def sorted_offsets(offsets: Mapping[Key, int]) -> dict[str, dict[str, int]]:
    """Return offsets by topic and name, in an order that depends on these alone."""
    found: dict[str, dict[str, int]] = {}
    for topic, name in sorted(offsets):
        found.setdefault(topic, {})[name] = offsets[topic, name]
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
            if not isinstance(offset, int) or isinstance(offset, bool) or not lowest <= offset < 1 << 63:
                raise ValueError(f"{json.dumps(offset)} of {topic}/{name} is not an offset; it is {_FORM}")
    return found
