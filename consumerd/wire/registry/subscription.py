"""The subscription of a member: the value of its node under `/consumers/G/ids`.

Ring 0. Three forms (golden notes, 4): `{ "t1": 2,"t2": 1 }` for topics with numbers of streams, `*N*regex` for a
whitelist and `!N!regex` for a blacklist with N streams for every topic. Written with exactly 0.7.2's blanks; any JSON
object of positive numbers is read, as Jafka and the Python and Erlang clients write it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from consumerd.base.errors import nearest
from consumerd.wire.registry.dialect import Dialect, subscription_dialect
from consumerd.wire.registry.errors import DialectError, RegistryError, shown
from consumerd.wire.registry.paths import check_name
from consumerd.wire.registry.text import text_of
from consumerd.wire.registry.topic_filter import FilterKind, TopicFilter

#: Streams of one member for one topic. Every stream is an entry of the assignment, in every member's memory.
MAX_STREAMS = 10_000

_FILTER = re.compile(r"([*!])([0-9]{1,10})\1([^\n\r\x85\u2028\u2029]*)")


def _check_streams(streams: object, what: str) -> int:
    if not isinstance(streams, int) or isinstance(streams, bool) or not 1 <= streams <= MAX_STREAMS:
        raise RegistryError(f"{what} asks for {shown(str(streams)[:100])} streams: expected 1 to {MAX_STREAMS}")
    return streams


@dataclass(frozen=True, slots=True)
class StaticSubscription:
    """Topics by name, each with its number of streams, in the order in which they are written.

    Raises RegistryError for a topic name that no node can have, or a number of streams outside 1 to `MAX_STREAMS`
    (a 0 would break the rebalance of every peer: notes on mixed groups).
    """

    streams: Mapping[str, int]

    def __post_init__(self) -> None:
        for topic, streams in self.streams.items():
            check_name("topic", topic)
            _check_streams(streams, f"the subscription to {shown(topic)}")
        object.__setattr__(self, "streams", dict(self.streams))

    def __hash__(self) -> int:
        return hash(frozenset(self.streams.items()))

    def format(self) -> str:
        """`{ "t1": 2,"t2": 1 }`."""
        entries = ",".join(
            f"{json.dumps(topic, ensure_ascii=False)}: {streams}" for topic, streams in self.streams.items()
        )
        return f"{{ {entries} }}"

    def streams_for(self, topic: str) -> int:
        """The number of this member's streams of `topic`; 0 when it does not subscribe."""
        return self.streams.get(topic, 0)


@dataclass(frozen=True, slots=True)
class FilterSubscription:
    """Every topic that a filter includes, with the same number of streams for each."""

    filter: TopicFilter
    streams: int

    def __post_init__(self) -> None:
        _check_streams(self.streams, f"the subscription to {shown(self.filter.text)}")

    def format(self) -> str:
        """`*N*regex` or `!N!regex`."""
        mark = self.filter.kind.value
        return f"{mark}{self.streams}{mark}{self.filter.text}"

    def streams_for(self, topic: str) -> int:
        """The number of this member's streams of `topic`; 0 when the filter excludes it."""
        return self.streams if self.filter.matches(topic) else 0


Subscription = StaticSubscription | FilterSubscription


def is_subscribed(subscription: Subscription, topic: str) -> bool:
    """Whether the subscription includes a topic; False where its filter is too complex for the name."""
    try:
        return subscription.streams_for(topic) > 0
    except RegistryError:
        return False


def unconsumed_start(key: str, topic: str, subscribed: Iterable[str], where: str = "") -> str:
    """Return the sentence about a start of a topic that no subscription includes, without a full stop.

    `subscribed`: the topics that are named; `where`: the keys of the subscriptions, in parentheses.
    """
    near = nearest(topic, subscribed)
    remedy = "correct the name" if near is None else f"write {near!r}"
    return f"{key} has the topic {topic!r}, which is not consumed{where}: {remedy}, or remove it"


def parse_subscription(data: bytes | str | None) -> Subscription:
    """Read the node of a member. Raises DialectError for a member of Kafka 0.8+, else RegistryError."""
    text = text_of(data, "the subscription of a member")
    if text[:1] in ("*", "!"):
        match = _FILTER.fullmatch(text)
        if match is None:
            raise RegistryError(
                f"the subscription {shown(text)} is not a filter: expected *streams*regex or !streams!regex"
            )
        mark, streams, pattern = match.groups()
        return FilterSubscription(TopicFilter(FilterKind(mark), pattern), int(streams))
    if subscription_dialect(text) is Dialect.V08:
        raise DialectError(
            "a member of this group speaks the dialect of Kafka 0.8 or later; 0.7 cannot share a group with it"
        )
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise RegistryError(f"the subscription {shown(text)} is neither JSON nor a filter") from None
    if not isinstance(value, dict):
        raise RegistryError(f"the subscription {shown(text)} is not a map of topics to numbers of streams")
    return StaticSubscription(value)
