"""What `consumerd group plan --explain` shows: how each topic is dealt."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from consumerd.cli.tables import show_rows
from consumerd.group import deal, partitions_of
from consumerd.registry import format_owner

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from consumerd.group import Deal
    from consumerd.partition import TopicPartition
    from consumerd.registry import Subscription


def show_deals(topics: Mapping[str, Mapping[int, int]], members: Mapping[str, Subscription], *, as_json: bool) -> None:
    """Print the deal of every topic, also of those to which nobody subscribes."""
    deals = {
        topic: deal(
            partitions_of(topic, brokers),
            [(name, subscription.streams_for(topic)) for name, subscription in members.items()],
        )
        for topic, brokers in topics.items()
    }
    if as_json:
        click.echo(json.dumps({topic: _as_json(each) for topic, each in deals.items()}, indent=2))
        return
    show_rows(
        ["topic", ">partitions", ">streams", ">q", ">r", "partitions, sorted as text"],
        (
            (topic, len(each.partitions), len(each.streams), each.share, each.extra, _names(each.partitions))
            for topic, each in deals.items()
        ),
        title="q = partitions div streams, r = partitions mod streams",
        kind="topic",
    )
    show_rows(
        ["topic", "stream, sorted as text", ">partitions", "which"],
        (
            (topic, format_owner(*stream), len(chunk), _names(chunk))
            for topic, each in deals.items()
            for stream, chunk in each.chunks()
        ),
        title="the first r streams of a topic get q + 1 consecutive partitions, the others q",
        kind="stream",
    )


def _names(partitions: Iterable[TopicPartition]) -> str:
    return " ".join(partition.name for partition in partitions)


def _as_json(each: Deal) -> dict[str, object]:
    return {
        "partitions": [partition.name for partition in each.partitions],
        "q": each.share,
        "r": each.extra,
        "streams": [
            {"stream": format_owner(*stream), "partitions": [partition.name for partition in chunk]}
            for stream, chunk in each.chunks()
        ],
    }
