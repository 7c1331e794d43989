"""The input and the explanation of `consumerd group plan`: a file of topics and members, and the assignment."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import click

from consumerd.base.errors import ConfigError
from consumerd.base.partition import TopicPartition
from consumerd.cli.tables import show_rows
from consumerd.group.assignment import TopicAssignment, partitions_of, topic_assignment
from consumerd.wire.registry.errors import RegistryError
from consumerd.wire.registry.paths import check_name
from consumerd.wire.registry.subscription import Subscription, parse_subscription
from consumerd.wire.registry.values import MAX_PARTITIONS, format_owner, parse_broker_id

SHAPE = '{"topics": {topic: {broker: partitions}}, "ids": {consumer id: text of its node}}'

Topics = dict[str, dict[int, int]]


def read_plan_input(path: str) -> tuple[Topics, dict[str, Subscription]]:
    """Topics and members of the file at `path`, `-` for standard input.

    Raises ConfigError for a file that cannot be read or is not of the shape, RegistryError for a value in it that no
    peer of Kafka 0.7 writes; both name the place.
    """
    try:
        with click.open_file(path, encoding="utf-8-sig") as file:
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


def show_deals(topics: Mapping[str, Mapping[int, int]], members: Mapping[str, Subscription], *, as_json: bool) -> None:
    """Print the assignment of every topic, also of those to which nobody subscribes."""
    assignments = {
        topic: topic_assignment(
            partitions_of(topic, brokers),
            [(name, subscription.streams_for(topic)) for name, subscription in members.items()],
        )
        for topic, brokers in topics.items()
    }
    if as_json:
        click.echo(json.dumps({topic: _as_json(each) for topic, each in assignments.items()}, indent=2))
        return
    show_rows(
        ["topic", ">partitions", ">streams", ">q", ">r", "partitions, sorted as text"],
        (
            (topic, len(each.partitions), len(each.streams), each.share, each.extra, _names(each.partitions))
            for topic, each in assignments.items()
        ),
        title="q = partitions div streams, r = partitions mod streams",
        kind="topic",
    )
    show_rows(
        ["topic", "stream, sorted as text", ">partitions", "which"],
        (
            (topic, format_owner(*stream), len(chunk), _names(chunk))
            for topic, each in assignments.items()
            for stream, chunk in each.chunks()
        ),
        title="the first r streams of a topic get q + 1 consecutive partitions, the others q",
        kind="stream",
    )


def _names(partitions: Iterable[TopicPartition]) -> str:
    return " ".join(partition.name for partition in partitions)


def _as_json(each: TopicAssignment) -> dict[str, object]:
    return {
        "partitions": [partition.name for partition in each.partitions],
        "q": each.share,
        "r": each.extra,
        "streams": [
            {"stream": format_owner(*stream), "partitions": [partition.name for partition in chunk]}
            for stream, chunk in each.chunks()
        ],
    }
