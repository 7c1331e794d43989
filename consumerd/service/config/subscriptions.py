"""Further subscriptions of a daemon: their tables, and the rules about topics that two of them would consume or fill.

Strategy: a node in `/consumers/[group]/ids` holds one map of topics or one topic filter, so each subscription has a
member, an id and a handler of its own. Each has a configuration as if it were the only one of its daemon
(`Config.by_subscription`, `group_of`), from which all of its parts are made; so they may be coordinated in different
ways. In one group, the members of one process would divide the partitions of a topic that two of them consume, which is
never meant: it is refused here, before anything joins. So are subscriptions that consume each other's dead letters: a
message that always fails would go round between them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from typing import Annotated, Final, Literal, NamedTuple

from consumerd.base.settings.group import GroupSection
from consumerd.base.settings.kind import Ge
from consumerd.base.settings.processing import HandlerSection, delay_name
from consumerd.base.settings.setting import Field, Reload, Rule, Section
from consumerd.wire.registry.errors import RegistryError
from consumerd.wire.registry.subscription import unconsumed_start
from consumerd.wire.registry.topic_filter import FilterKind, TopicFilter

#: The name of the subscription of `[group]`, by which it is logged and shown beside others.
MAIN: Final = "main"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


class SubscriptionGroup(Section):
    """The consumer group of a further subscription."""

    id: str | None = Field(
        None,
        "Name of the consumer group; by default that of the main subscription.",
        min_length=1,
        examples=["events-audit"],
    )
    coordination: Literal["zookeeper", "kafka", "fixed"] | None = Field(
        None,
        "How its partitions are assigned, as in `[group]`; by default as those of the main subscription.",
        examples=["kafka"],
    )
    offsets: Literal["zookeeper", "kafka", "both", "none"] | None = Field(
        None,
        "Where its committed offsets are stored, as in `[group]`; by default as those of the main subscription if both "
        "are coordinated in the same way.",
        examples=["both"],
    )

    def rules(self) -> Iterator[str]:
        """As `GroupSection.rules`."""
        if self.id is not None and ("/" in self.id or "\0" in self.id):
            yield f"{self.id!r} cannot be the name of a znode: it contains a slash or a NUL"


class SubscriptionSection(Section, reload=Reload.SUBSCRIPTION, since="0.2.0"):
    """A further subscription of this daemon, with a member and a handler of its own.

    May be given several times. They share the ZooKeeper session, the connections to brokers and the memory for
    messages. Everything that is not here is as in the other tables.
    """

    name: str = Field(
        description="Name of the subscription, which appears in logs and on the status page: letters, digits, `-` and "
        "`_`. The id of its member is that of the main one, an underscore, and this name; so is its `instance_id`.",
        reload=Reload.RESTART,
        examples=["audit"],
    )
    group: SubscriptionGroup = Field(default_factory=SubscriptionGroup, reload=Reload.RESTART)
    topics: dict[str, Annotated[int, Ge(1)]] = Field(
        description="Topics, each with its number of streams. Set exactly one of topics, whitelist and blacklist.",
        default_factory=dict,
        examples=[{"payments": 1}],
    )
    whitelist: str | None = Field(
        None, "Consume all topics that match this regular expression, new ones too.", examples=["audit-.*"]
    )
    blacklist: str | None = Field(
        None, "Consume all topics that do not match this regular expression.", examples=["test-.*"]
    )
    streams: int = Field(1, "Number of streams for whitelist and blacklist.", ge=1)
    partitions: dict[str, tuple[Annotated[int, Ge(0)], ...]] = Field(
        description="With coordination `fixed`: topics and the numbers of the partitions to consume.",
        default_factory=dict,
        reload=Reload.RESTART,
        examples=[{"payments": [0, 1]}],
    )
    handler: HandlerSection = Field(
        description="Its handler: the keys of `[handler]`, with the same defaults.", reload=Reload.HANDLER
    )

    def rules(self) -> Iterator[str]:
        """As `GroupSection.rules`."""
        if _NAME.fullmatch(self.name) is None:
            yield "name must be 1 to 64 letters, digits, hyphens and underscores, and begin with a letter or digit"
        elif self.name == MAIN:
            yield f"name must not be {MAIN!r}, which is the subscription of [group]"
        given = [bool(self.topics), self.whitelist is not None, self.blacklist is not None, bool(self.partitions)]
        if sum(given) != 1:
            yield "give exactly one of topics, whitelist and blacklist (or partitions)"


def group_of(main: GroupSection, each: SubscriptionSection) -> GroupSection:
    """Return the group of a subscription, as if it were the only one; its rules are not checked."""
    coordination = each.group.coordination or main.coordination
    alike = coordination == main.coordination
    keys = ("topics", "partitions", "whitelist", "blacklist", "streams")
    values = {key: getattr(each, key) for key in keys} | {
        "id": each.group.id or main.id,
        "coordination": coordination,
        "offsets": each.group.offsets or (main.offsets if alike else None),
    }
    if main.instance_id is not None:
        values["instance_id"] = f"{main.instance_id}_{each.name}" if coordination == "kafka" else None
    if not alike:  # keys that are for the main one's coordination only
        values |= {"dialect": "auto", "roundrobin_as": "0.8"}
    return main.replace(**values)


def chosen_key(section: GroupSection | SubscriptionSection) -> str:
    """The key that names the topics, the filter or the partitions of a subscription, which has one of these."""
    keys = ("topics", "whitelist", "blacklist", "partitions")
    return next((key for key in keys if getattr(section, key) not in ({}, None)), "topics")


class _Consumed(NamedTuple):
    """A subscription, its place in the file, and the words for its keys."""

    section: GroupSection
    prefix: str
    place: tuple[str | int, ...]

    @property
    def group(self) -> str:
        """The name of its group."""
        return self.section.id

    @property
    def key(self) -> str:
        """The key that names its topics, its filter or its partitions."""
        return chosen_key(self.section)

    @property
    def topics(self) -> dict[str, tuple[int, ...] | None]:
        """The topics that it names, with the numbers of the partitions; None for all of them."""
        return dict(self.section.partitions) or dict.fromkeys(self.section.topics)

    @property
    def filter(self) -> TopicFilter | None:
        """Its topic filter. Raises RegistryError."""
        if self.key in ("topics", "partitions"):
            return None
        kind = FilterKind.WHITELIST if self.key == "whitelist" else FilterKind.BLACKLIST
        return TopicFilter(kind, getattr(self.section, self.key))

    def consumes(self, topic: str) -> bool:
        """Whether it consumes `topic`. Raises RegistryError if its filter is invalid."""
        return topic in self.topics if (chosen := self.filter) is None else chosen.matches(topic)


class RetryStage(NamedTuple):
    """The subscription of one retry topic, which is made from the handler whose messages are tried again."""

    name: str
    topic: str
    handler: HandlerSection


#: Of the handler of the last retry topic: nothing waits behind it.
_AT_THE_END: Final = {"on_failure": "dead_letter", "retry_topic": None, "retry_order": "none"}


def retry_stages(name: str, handler: HandlerSection) -> Iterator[RetryStage]:
    """Yield the subscriptions of the retry topics of the subscription `name`.

    Each has the same handler, with the delay of its topic. What fails there goes to the next topic, and from the last
    one to the dead letters.
    """
    prefix = "" if name == MAIN else f"{name}-"
    for number, (topic, delay) in enumerate(zip(handler.retry_topics, handler.retry_delays, strict=False), 1):
        later = handler.retry_delays[number:]
        then = {"retry_delays": later} if later else _AT_THE_END
        stage = handler.replace(delay=float(delay), **then)
        yield RetryStage(f"{prefix}retry-{delay_name(delay)}", topic, stage)


def rules_of_subscriptions(
    main: GroupSection, handler: HandlerSection, subscriptions: Sequence[SubscriptionSection]
) -> Iterator[Rule]:
    """The rules about several subscriptions that are broken, those of retry topics included."""
    handlers = [handler, *(each.handler for each in subscriptions)]
    retried = [topic for each in handlers for topic in each.retry_topics]
    if not subscriptions and not retried:
        return
    yield from _rules_of_names(subscriptions)
    consumed = _all_consumed(main, subscriptions)
    for each in consumed[1:]:
        for rule in each.section.rules():
            yield Rule(f"{each.prefix}: {rule}", each.place)
    yield from _rules_of_retry_topics(consumed, handlers)
    for one, other in combinations(consumed, 2):
        if one.group != other.group:
            continue
        if {one.section.coordination, other.section.coordination} == {"kafka", "fixed"}:
            yield Rule(
                f"{one.prefix} and {other.prefix} are in group {one.group!r}: where a broker coordinates a group, it "
                f"takes no offsets of fixed partitions; set {other.prefix}.group.id to another group",
                other.place,
            )
        elif (common := _common(one, other)) is not None:
            yield Rule(
                f"{one.prefix}.{one.key} and {other.prefix}.{other.key} {common} in group {one.group!r}: set "
                f"{other.prefix}.group.id to another group",
                (*other.place, other.key),
            )
    yield from _rules_of_dead_letters(consumed, [each.dead_letter_topic for each in handlers])


def _all_consumed(main: GroupSection, subscriptions: Sequence[SubscriptionSection]) -> list[_Consumed]:
    return [
        _Consumed(main, "group", ("group",)),
        *(
            _Consumed(group_of(main, each), f"subscriptions.{each.name}", ("subscriptions", number))
            for number, each in enumerate(subscriptions)
        ),
    ]


def rules_of_starts(
    starts: Iterable[str], main: GroupSection, subscriptions: Sequence[SubscriptionSection]
) -> Iterator[Rule]:
    """The topics of `starts`, the keys of `fetch.initial_by_topic`, that no subscription consumes."""
    consumed = _all_consumed(main, subscriptions)
    for topic in starts:
        try:
            if any(each.consumes(topic) for each in consumed):
                continue
        except RegistryError:
            return  # a filter that is invalid is a problem of its own
        keys = ", ".join(f"{each.prefix}.{each.key}" for each in consumed)
        subscribed = (name for each in consumed for name in each.topics)
        yield Rule(
            unconsumed_start("fetch.initial_by_topic", topic, subscribed, f" ({keys})"),
            ("fetch", "initial_by_topic", topic),
        )


def _rules_of_retry_topics(consumed: list[_Consumed], handlers: Sequence[HandlerSection]) -> Iterator[Rule]:
    """The retry topics that two subscriptions fill, or that one consumes beside those that are made for them."""
    seen: set[tuple[str, str]] = set()
    for owner, section in zip(consumed, handlers, strict=True):
        place = (*(() if owner.place == ("group",) else owner.place), "handler", "retry_topic")
        group = owner.section
        if section.retry_topics and group.coordination == "fixed":
            yield Rule('on_failure = "retry_topic" and coordination = "fixed" do not go together', place)
            return
        if section.retry_topics and group.dialect == "0.7":
            yield Rule(
                'on_failure = "retry_topic" needs brokers of 0.11 or later: messages of 0.7 have no headers', place
            )
            return
        for topic in section.retry_topics:
            if (owner.group, topic) in seen:
                yield Rule(f"two handlers of group {owner.group!r} have the retry topic {topic!r}: rename one", place)
                return
            seen.add((owner.group, topic))
            for each in consumed:
                try:
                    found = each.group == owner.group and each.consumes(topic)
                except RegistryError:
                    continue  # a filter that is invalid is a problem of its own
                if found:
                    yield Rule(
                        f"{each.prefix}.{each.key} consumes the retry topic {topic!r}, too, whose messages would "
                        "not wait: rename handler.retry_topic, or exclude it there",
                        (*each.place, each.key),
                    )
                    return


def _rules_of_dead_letters(consumed: list[_Consumed], letters: list[str | None]) -> Iterator[Rule]:
    """The subscriptions whose dead letters come back to them through others; `letters` are their dead_letter_topics.

    One that consumes its own is refused where its handler is built, with or without other subscriptions.
    """
    try:
        receivers = [
            [b for b, each in enumerate(consumed) if b != a and topic is not None and each.consumes(topic)]
            for a, topic in enumerate(letters)
        ]
    except RegistryError:
        return  # a filter that is invalid is a problem of its own
    circle = _circle(receivers)
    if circle:
        first, last = consumed[circle[0]], consumed[circle[-1]]
        keys = [f"{_handler_of(consumed[each])}.dead_letter_topic {letters[each]!r}" for each in circle]
        yield Rule(
            f"dead letters would go in a circle: {', '.join(keys[:-1])} and {keys[-1]} are consumed by "
            f"{', '.join(consumed[each].prefix for each in circle[1:])} and {first.prefix}, so a message that always "
            "fails would never leave them: name a topic that none of them consumes",
            (*(() if last.place == ("group",) else last.place), "handler", "dead_letter_topic"),
        )


def _handler_of(each: _Consumed) -> str:
    return "handler" if each.prefix == "group" else f"{each.prefix}.handler"


def _circle(followers: list[list[int]]) -> list[int]:
    """The numbers of the first circle in a graph, beginning with its least; empty if there is none."""
    for start in range(len(followers)):
        paths, seen = [[start]], set()
        while paths:
            path = paths.pop()
            for follower in followers[path[-1]]:
                if follower == start:
                    return path
                if follower > start and follower not in seen:
                    seen.add(follower)
                    paths.append([*path, follower])
    return []


def _rules_of_names(subscriptions: Sequence[SubscriptionSection]) -> Iterator[Rule]:
    seen: set[str] = set()
    for number, each in enumerate(subscriptions):
        if each.name in seen:
            yield Rule(f"two subscriptions have the name {each.name!r}: rename one", ("subscriptions", number, "name"))
        seen.add(each.name)


def _common(one: _Consumed, other: _Consumed) -> str | None:
    """Return a phrase for what both consume; None if there is nothing."""
    try:
        filters = one.filter, other.filter
        if filters[0] is not None and filters[1] is not None:
            return "are both topic filters, and the same topic may match them"
        topics = sorted({*one.topics, *other.topics})
        common = [topic for topic in topics if one.consumes(topic) and other.consumes(topic)]
        common = [topic for topic in common if _share_partitions(one.topics.get(topic), other.topics.get(topic))]
    except RegistryError:
        return None  # a filter that is invalid is a problem of its own
    return f"both consume {common[0]!r}" if common else None


def _share_partitions(some: tuple[int, ...] | None, others: tuple[int, ...] | None) -> bool:
    return some is None or others is None or not set(some).isdisjoint(others)
