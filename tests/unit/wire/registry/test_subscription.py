from __future__ import annotations

import pytest

from consumerd.wire.registry.errors import DialectError, RegistryError
from consumerd.wire.registry.subscription import (
    MAX_STREAMS,
    FilterSubscription,
    StaticSubscription,
    Subscription,
    parse_subscription,
)
from consumerd.wire.registry.topic_filter import FilterKind, TopicFilter


@pytest.mark.parametrize(
    "text",
    ['{ "alpha": 1 }', '{ "t1": 2,"t2": 1 }', "{  }", "*2*alpha|beta", "!1!gamma.*", "*3*.*", '*1*alpha|"beta', "*1*"],
)
def test_writes_what_0_7_2_writes_byte_for_byte(text: str) -> None:
    assert parse_subscription(text.encode()).format() == text


@pytest.mark.parametrize(
    ("text", "subscription"),
    [
        ('{"jg.t1":2,"jg.t2":1}', StaticSubscription({"jg.t1": 2, "jg.t2": 1})),
        ('{"t": 1, "u": 2}', StaticSubscription({"t": 1, "u": 2})),
        ('\n{ "t" : 1 }\n', StaticSubscription({"t": 1})),
        ("{ }", StaticSubscription({})),
        (r'{"\u0442": 1}', StaticSubscription({"\u0442": 1})),
        ("*4*white.*", FilterSubscription(TopicFilter(FilterKind.WHITELIST, "white.*"), 4)),
        ("!4!a , b", FilterSubscription(TopicFilter(FilterKind.BLACKLIST, "a|b"), 4)),
        ("*1*a*2*", FilterSubscription(TopicFilter(FilterKind.WHITELIST, "a*2*"), 1)),
        ("*007*a", FilterSubscription(TopicFilter(FilterKind.WHITELIST, "a"), 7)),
    ],
)
def test_reads_what_other_peers_write(text: str, subscription: Subscription) -> None:
    assert parse_subscription(text) == subscription


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "1", "null", '"t"', '{"t": 0}', '{"t": -1}', '{"t": 1.0}', '{"t": "1"}', '{"t": true}',
     '{"t": null}', '{"t": [1]}', '{"": 1}', '{"a/b": 1}', f'{{"t": {MAX_STREAMS + 1}}}', '{"t": 1e400}', '{"t": NaN}',
     "[" * 100_000, '{"a":' * 100_000, '{"t": ' + "1" * 10_000 + "}", "*", "**", "*1", "*1!a", "!1*a", "*x*a", "*-1*a",
     "*0*a", "*1*a\nb", "*\u0661*a", "*99999999999*a", "*1*(", "*1*" + "a" * 20_000],
)  # fmt: skip
def test_rejects_what_no_peer_writes(text: str) -> None:
    with pytest.raises(RegistryError):
        parse_subscription(text)


def test_names_a_member_of_a_later_kafka() -> None:
    with pytest.raises(DialectError, match=r"0\.8 or later"):
        parse_subscription('{"version":1,"subscription":{"t":1},"pattern":"static","timestamp":"1"}')


def test_allows_a_topic_called_subscription() -> None:
    assert parse_subscription('{ "version": 1,"subscription": 2 }').streams_for("subscription") == 2


def test_escapes_topics_as_json() -> None:
    subscription = StaticSubscription({'a"b\\c': 1, "\u041b\u043e\u0433": 2})
    assert subscription.format() == '{ "a\\"b\\\\c": 1,"\u041b\u043e\u0433": 2 }'
    assert parse_subscription(subscription.format()) == subscription


def test_counts_streams_per_topic() -> None:
    static = StaticSubscription({"t": 2})
    assert (static.streams_for("t"), static.streams_for("u")) == (2, 0)
    blacklist = FilterSubscription(TopicFilter(FilterKind.BLACKLIST, "t"), 3)
    assert (blacklist.streams_for("t"), blacklist.streams_for("u")) == (0, 3)


@pytest.mark.parametrize("streams", [0, -1, True, MAX_STREAMS + 1, 1.5, "1"])
def test_never_writes_a_number_of_streams_that_breaks_peers(streams: int) -> None:
    with pytest.raises(RegistryError):
        StaticSubscription({"t": streams})
    with pytest.raises(RegistryError):
        FilterSubscription(TopicFilter(FilterKind.WHITELIST, "t"), streams)


def test_subscriptions_compare_by_value() -> None:
    topics = {"t": 1}
    subscription = StaticSubscription(topics)
    topics["t"] = 9
    assert subscription.streams_for("t") == 1
    assert (
        len({subscription, StaticSubscription({"t": 1}), parse_subscription("*1*t"), parse_subscription("*1* t")}) == 2
    )
