"""The file of `consumerd group plan`: topics and members as somebody imagines or recorded them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from consumerd.errors import ConfigError
from consumerd.registry import (
    MAX_PARTITIONS,
    RegistryError,
    Subscription,
    check_name,
    parse_broker_id,
    parse_subscription,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

SHAPE = '{"topics": {topic: {broker: partitions}}, "ids": {consumer id: text of its node}}'

Topics = dict[str, dict[int, int]]


def read_plan_input(path: str) -> tuple[Topics, dict[str, Subscription]]:
    """Topics and members of the file at `path`, `-` for standard input.

    Raises ConfigError for a file that cannot be read or is not of the shape, RegistryError for a value in it that no
    peer of Kafka 0.7 writes; both name the place.
    """
    try:
        with click.open_file(path, encoding="utf-8") as file:
            content = json.load(file)
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read as JSON: {error}") from None
    if not (isinstance(content, dict) and content.keys() >= {"topics", "ids"}):
        raise ConfigError(f"{path} is not of the form {SHAPE}")
    return _topics(path, content["topics"]), _members(path, content["ids"])


def _object(path: str, what: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: {what} must be an object; the file has the form {SHAPE}")
    return value


def _topics(path: str, content: Any) -> Topics:
    topics: Topics = {}
    for topic, brokers in _object(path, "topics", content).items():
        check_name("topic", topic)
        topics[topic] = {}
        for broker, count in _object(path, f"topic {topic!r}", brokers).items():
            if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= MAX_PARTITIONS:
                raise ConfigError(
                    f"{path}: broker {broker} of topic {topic!r} needs a number of partitions from 0 to "
                    f"{MAX_PARTITIONS}, not {str(count)[:40]!r}"
                )
            topics[topic][parse_broker_id(broker)] = count
    return topics


def _members(path: str, content: Any) -> dict[str, Subscription]:
    members: dict[str, Subscription] = {}
    for name, text in _object(path, "ids", content).items():
        if not isinstance(text, str):
            raise ConfigError(f"{path}: the node of member {name!r} must be text, not {text!r}")
        try:
            members[check_name("consumer id", name)] = parse_subscription(text)
        except RegistryError as error:
            raise RegistryError(f"{path}: member {name!r}: {error}") from None
    return members
