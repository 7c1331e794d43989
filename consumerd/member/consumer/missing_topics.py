"""Subscribed topics that no broker has, or shows to us: logged once, because waiting for them is not an error.

Strategy: every snapshot is compared with the one before; only a change of what is missing is worth a line. Without it,
nothing at all would show a misspelt topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import structlog

from consumerd.group.rules import Topics
from consumerd.wire.registry.subscription import StaticSubscription, Subscription, is_subscribed
from consumerd.wire.registry.topic_filter import FilterKind

log = structlog.get_logger(__name__)

_NOT_REGISTERED: Final = "no broker has registered them yet"
#: Of a filter, whose text stands for topics.
_NONE_INCLUDED: Final = {
    FilterKind.WHITELIST: "no topic matches this whitelist yet",
    FilterKind.BLACKLIST: "there is no topic yet that this blacklist does not match",
}


class MissingTopics:
    """The topics of `subscription` that have not appeared yet."""

    def __init__(self, group: str, subscription: Subscription) -> None:
        self._group = group
        self._subscription = subscription
        #: Each with the reason.
        self._awaited: dict[str, str] = {}

    def look(self, topics: Topics, refused: Mapping[str, str] = MappingProxyType({})) -> None:
        """Note a snapshot's topics, and why brokers refuse to tell of others."""
        awaited = {topic: refused.get(topic, reason) for topic, reason in self._missing(topics).items()}
        if awaited == self._awaited:
            return
        self._awaited = awaited
        by_reason: dict[str, list[str]] = {}
        for topic, reason in awaited.items():
            by_reason.setdefault(reason, []).append(topic)
        for reason, names in by_reason.items():
            log.warning("waiting_for_topics", group=self._group, topics=names, reason=reason)
        if not awaited:
            log.info("topics_found", group=self._group)

    def _missing(self, topics: Topics) -> dict[str, str]:
        """Return the topics without a broker, with the reason; for a filter that includes no topic, its text."""
        subscription = self._subscription
        if isinstance(subscription, StaticSubscription):
            return {topic: _NOT_REGISTERED for topic in subscription.streams if not topics.get(topic)}
        if any(brokers and is_subscribed(subscription, topic) for topic, brokers in topics.items()):
            return {}
        return {subscription.filter.text: _NONE_INCLUDED[subscription.filter.kind]}
