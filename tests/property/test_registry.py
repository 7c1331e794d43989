"""For any nodes in ZooKeeper, only declared errors are raised; our own values are read back unchanged."""

from __future__ import annotations

import json
import re

from hypothesis import example, given
from hypothesis import strategies as st

from consumerd.wire.registry.dialect import Dialect
from consumerd.wire.registry.regex import matches, parse
from consumerd.wire.registry.spoken import member_dialect
from consumerd.wire.registry.subscription import (
    FilterSubscription,
    StaticSubscription,
    Subscription,
    parse_subscription,
)
from consumerd.wire.registry.topic_filter import FilterKind, TopicFilter, normalise
from consumerd.wire.registry.v08.subscription import format_subscription_v08, parse_subscription_v08
from consumerd.wire.registry.v08.topic import (
    format_topic_assignment,
    format_topic_config,
    parse_topic_assignment,
)
from consumerd.wire.registry.values import (
    RegisteredBroker,
    format_broker,
    format_offset,
    format_owner,
    parse_broker,
    parse_offset,
    parse_owner,
)

HOSTILE = st.binary(max_size=60) | st.text(max_size=60) | st.none()
NAMES = st.text(
    st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs", "Cc", "Co", "Cn"], exclude_characters="/"),
    min_size=1,
    max_size=9,
).filter(lambda name: name not in (".", "..") and not any("\ufff0" <= char <= "\uffff" for char in name))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
KEYS = ["version", "host", "port", "endpoints", "listener_security_protocol_map", "rack", "brokerid", "partitions",
        "config", "leader", "leader_epoch", "isr", "controller_epoch", "subscription", "pattern",
        "timestamp"]  # fmt: skip


@given(
    st.dictionaries(NAMES, st.integers(1, 99), max_size=6).map(StaticSubscription)
    | st.builds(
        FilterSubscription,
        st.builds(TopicFilter, st.sampled_from(FilterKind), st.sampled_from([r"a\.b.*", '[a-c]+|"x', "\u00e9/|.?"])),
        st.integers(1, 99),
    ),
    st.integers(0, 1 << 50),
)
def test_reads_the_v08_subscriptions_it_wrote(subscription: Subscription, wall_ms: int) -> None:
    text = format_subscription_v08(subscription, wall_ms)
    assert parse_subscription_v08(text.encode()) == subscription
    assert json.loads(text)["timestamp"] == str(wall_ms)
    assert member_dialect(text) is Dialect.V08


@given(
    st.dictionaries(st.integers(0, 99), st.lists(st.integers(0, 9), max_size=3).map(tuple), max_size=9),
    st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=4),
)
def test_reads_the_v08_topics_it_wrote(partitions: dict[int, tuple[int, ...]], config: dict[str, str]) -> None:
    assert parse_topic_assignment(format_topic_assignment(partitions)) == partitions
    assert json.loads(format_topic_config(config)) == {"version": 1, "config": config}


@given(st.text(max_size=20))
@example("'\"a")
def test_normalised_filters_have_no_comma_and_no_blank(text: str) -> None:
    normal = normalise(text)
    assert "," not in normal
    assert " " not in normal
    assert normal == normal.strip("\"'")


#: Patterns that mean the same in Python's library, which serves as a second opinion.
COMMON = st.recursive(
    st.sampled_from(["a", "b", "ab", "[ab]", "[^a]", ".", "", r"\.", "(?i:a)", r"\d"]),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"(?:{'|'.join(parts)})"),
        st.tuples(inner, st.sampled_from(["?", "*", "+", "??", "*?", "{2}", "{0,2}", "{1,}"])).map(
            lambda parts: f"(?:{parts[0]}){parts[1]}"
        ),
        inner.map(lambda part: f"(?={part})"),
        inner.map(lambda part: f"(?!{part})"),
    ),
    max_leaves=6,
)


@given(COMMON, st.text("abAc.1", max_size=6))
def test_agrees_with_python_on_the_common_subset(pattern: str, topic: str) -> None:
    assert matches(parse(pattern), topic) is (re.fullmatch(pattern, topic, re.ASCII) is not None)


@given(st.dictionaries(NAMES, st.integers(1, 10_000), max_size=5))
def test_reads_the_static_subscriptions_it_wrote(topics: dict[str, int]) -> None:
    subscription = StaticSubscription(topics)
    assert parse_subscription(subscription.format().encode()) == subscription


@given(NAMES, st.integers(0, 2**31 - 1))
def test_reads_the_owners_it_wrote(consumer_id: str, stream: int) -> None:
    assert parse_owner(format_owner(consumer_id, stream).encode()) == (consumer_id, stream)


@given(st.integers(0, 2**63 - 1))
def test_reads_the_offsets_it_wrote(offset: int) -> None:
    assert parse_offset(format_offset(offset).encode()) == offset


@given(
    st.from_regex(r"[a-z0-9.-]{1,20}", fullmatch=True),
    st.from_regex(r"([a-z.]{1,9}-[0-9]{1,13})?", fullmatch=True),
    st.integers(1, 65535),
)
def test_reads_the_brokers_it_wrote(host: str, creator: str, port: int) -> None:
    broker = RegisteredBroker(3, creator, host, port)
    assert parse_broker(3, format_broker(broker).encode()) == broker
