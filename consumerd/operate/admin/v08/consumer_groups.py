"""Groups of the consumer protocol (KIP-848, brokers of 4.x): from their coordinator's description to a view.

Strategy: the coordinator itself assigns, and each member moves from its current to its target assignment at its own
pace, so that a group may rebalance while most of it continues. The current assignment counts as owned. Patterns are
matched here, as the coordinator does against whole names, because it does not return the topics that match.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from consumerd.base.partition import TopicPartition
from consumerd.net.cluster import GroupView, LiveMember
from consumerd.wire.registry.errors import RegistryError
from consumerd.wire.registry.subscription import StaticSubscription
from consumerd.wire.registry.topic_filter import FilterKind, TopicFilter

if TYPE_CHECKING:
    from consumerd.wire.v08.message_types import (
        ConsumerGroupDescribeResponseAssignment,
        ConsumerGroupDescribeResponseGroup,
        ConsumerGroupDescribeResponseMember,
    )

#: States in which members move to a new assignment.
MOVING = frozenset({"Assigning", "Reconciling"})


def has_patterns(described: ConsumerGroupDescribeResponseGroup) -> bool:
    """Whether a member subscribes by a pattern, so that the names of all topics are needed."""
    return any(each["subscribed_topic_regex"] for each in described["members"])


def add_members(view: GroupView, described: ConsumerGroupDescribeResponseGroup, topics: Iterable[str]) -> list[str]:
    """Fill in members and owners. `topics`: the names that patterns may match. The members that are yet to move."""
    names = list(topics)
    moving = []
    for each in described["members"]:
        name = each["member_id"]
        view.members[name] = _member(view, name, each, names)
        has, target = _partitions(each["assignment"]), _partitions(each["target_assignment"])
        if has != target:
            moving.append(name)
        for partition in has:
            view.owners[partition] = name, 0
    return moving


def _member(
    view: GroupView, name: str, described: ConsumerGroupDescribeResponseMember, topics: list[str]
) -> LiveMember:
    pattern = described["subscribed_topic_regex"]
    wanted = sorted(described["subscribed_topic_names"])
    text = ",".join([*wanted, *([pattern] if pattern else [])])
    try:
        if pattern:
            wanted += _matching(pattern, topics)
        return LiveMember(text, StaticSubscription(dict.fromkeys(wanted, 1)))
    except RegistryError as error:
        view.problems.append(f"member {name}: {error}")
        return LiveMember(text, None)


def _matching(pattern: str, topics: list[str]) -> list[str]:
    """The names that match a pattern. Raises RegistryError for an unsupported pattern."""
    found = TopicFilter(FilterKind.WHITELIST, pattern)
    if found.text != pattern:  # commas, blanks and quotes mean something else in filters of old consumers
        raise RegistryError(f"the pattern {pattern!r} is not supported")
    return [topic for topic in topics if found.matches(topic)]


def _partitions(described: ConsumerGroupDescribeResponseAssignment) -> set[TopicPartition]:
    return {
        TopicPartition.numbered(each["topic_name"], number)
        for each in described["topic_partitions"]
        for number in each["partitions"]
    }
