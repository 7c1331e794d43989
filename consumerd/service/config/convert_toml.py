"""Converted property files as text: a configuration, with what is not part of it in comments.

Strategy: one member's file after the other sets values, the command line's come last, and what a member cannot do
without and no property file has is filled in so that it is valid. The result is read back before it is returned.
"""

from __future__ import annotations

import random
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from consumerd.base.clock import SystemClock
from consumerd.base.errors import ConfigError
from consumerd.service.config.build import build_session, build_settings
from consumerd.service.config.convert import Conversion
from consumerd.service.config.model import parse
from consumerd.service.config.toml_text import toml_value

#: A topic that no broker has: the converted file is valid, and does no harm until the operator completes it.
PLACEHOLDER = "CHANGE-ME"

_NOT_HERE = {
    "producer": "`consumerd.producer.ProducerConfig.from_properties` takes these as they are (docs/producer.md):",
    "server": "`consumerd broker --config` takes these as they are (docs/broker.md):",
    "consumer": "",
}


def to_toml(conversions: Sequence[tuple[str, str, Conversion]], given: Mapping[tuple[str, str], Any]) -> str:
    """The TOML for (source, kind, conversion) of each file; `given` are values from the command line, and win.

    Valid for `consumerd check` where a consumer's file is among them, else only comments. Raises ConfigError if it is
    not valid: a group is missing, or a value is out of bounds here.
    """
    lines = [f"# Made by `consumerd config convert` from {', '.join(source for source, _, _ in conversions)}."]
    members = [conversion for _, kind, conversion in conversions if kind == "consumer"]
    if members:
        values: dict[tuple[str, str], tuple[Any, str]] = {}
        for conversion in members:
            values |= conversion.values
        values |= {place: (value, "the command line") for place, value in given.items()}
        lines += _tables(values)
    for source, kind, conversion in conversions:
        if conversion.lines:
            lines += ["", f"# {source}: {_NOT_HERE[kind]}"]
            lines += [f"#   {_one_line(line)}" for line in conversion.lines]
        if conversion.remarks:
            lines += ["", f"# Without a counterpart, from {source}:"]
            lines += [f"#   {_one_line(f'{key}={value}: {says}')}" for key, value, says in conversion.remarks]
    text = "\n".join(lines) + "\n"
    if members:
        _check(text)
    return text


def _check(text: str) -> None:
    """Check what `consumerd check` checks, except the handler, which may not be installed here. Raises ConfigError."""
    config = parse(tomllib.loads(text), "the result")
    clock, rng = SystemClock(), random.Random()
    build_settings(config, clock=clock, rng=rng)
    build_session(config.zookeeper, clock=clock, rng=rng)


def _tables(values: dict[tuple[str, str], tuple[Any, str]]) -> list[str]:
    if ("group", "id") not in values:
        raise ConfigError("no file has a groupid or group.id, which a member needs: give --group")
    if not any(("group", key) in values for key in ("topics", "whitelist", "blacklist")):
        note = "nothing in 0.7: name what to consume, or a whitelist or blacklist"
        values["group", "topics"] = {PLACEHOLDER: 1}, note
    values.setdefault(("handler", "name"), ("print", "nothing in 0.7: name what to do with the messages"))
    lines = []
    for table in dict.fromkeys(("group", "zookeeper", *(table for table, _ in values))):
        entries = [(key, value, origin) for (of, key), (value, origin) in values.items() if of == table]
        if entries:
            lines += ["", f"[{table}]"]
            lines += [f"{key} = {toml_value(value)}  # {_one_line(origin)}" for key, value, origin in entries]
    return lines


def _one_line(text: str) -> str:
    """Text for a comment: TOML allows no control characters there."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
