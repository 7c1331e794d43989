"""Missing topics are reported once, and once again when they exist."""

import pytest
from structlog.testing import capture_logs

from consumerd.member.consumer.missing_topics import MissingTopics
from consumerd.wire.registry.subscription import FilterSubscription, StaticSubscription, Subscription
from consumerd.wire.registry.topic_filter import FilterKind, TopicFilter

Snapshots = list[dict[str, dict[int, range]]]
#: Takes more steps for a long name than are allowed: no topic is found to match.
INTRICATE = "(?:a?){60}" * 30 + "b"


@pytest.mark.parametrize(
    ("subscription", "snapshots", "told"),
    [
        (StaticSubscription({"t": 1, "u": 1}), [{"t": {0: range(1)}, "u": {1: range(2)}}], []),
        (
            StaticSubscription({"t": 1, "u": 1}),
            [
                {"t": {}},
                {"t": {}, "u": {}},
                {"u": {0: range(1)}},
                {"t": {0: range(1)}, "u": {0: range(1)}},
                {"u": {0: range(1)}},
            ],
            [["t", "u"], ["t"], "found", ["t"]],
        ),
        (
            FilterSubscription(TopicFilter(FilterKind.WHITELIST, "a.*"), 1),
            [{"b": {0: range(1)}, "a": {}}, {}, {"ab": {0: range(1)}}],
            [["a.*"], "found"],
        ),
        (FilterSubscription(TopicFilter(FilterKind.WHITELIST, "a.*"), 1), [{"ab": {0: range(1)}}], []),
        (FilterSubscription(TopicFilter(FilterKind.BLACKLIST, "a"), 1), [{"a": {0: range(1)}}], [["a"]]),
        (
            FilterSubscription(TopicFilter(FilterKind.WHITELIST, INTRICATE), 1),
            [{"a" * 249: {0: range(1)}}],
            [[INTRICATE]],
        ),
    ],
)
def test_logs_awaited_topics(subscription: Subscription, snapshots: Snapshots, told: list[object]) -> None:
    awaited = MissingTopics("g", subscription)
    with capture_logs() as logs:
        for topics in snapshots:
            awaited.look(topics)
    assert [entry.get("topics", "found") for entry in logs] == told


def test_tells_topics_that_brokers_do_not_show_from_those_that_do_not_exist() -> None:
    awaited = MissingTopics("g", StaticSubscription({"t": 1, "u": 1, "v": 1}))
    with capture_logs() as logs:
        awaited.look({"v": {0: range(1)}}, {"u": "Describe is missing", "x": "of no interest"})
        awaited.look({"v": {0: range(1)}}, {"u": "Describe is missing"})
        awaited.look({"v": {0: range(1)}})
    assert [(entry["topics"], entry["reason"]) for entry in logs] == [
        (["t"], "no broker has registered them yet"),
        (["u"], "Describe is missing"),
        (["t", "u"], "no broker has registered them yet"),
    ]


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (FilterKind.WHITELIST, "no topic matches this whitelist yet"),
        (FilterKind.BLACKLIST, "there is no topic yet that this blacklist does not match"),
    ],
)
def test_says_of_a_filter_that_it_includes_no_topic(kind: FilterKind, reason: str) -> None:
    awaited = MissingTopics("g", FilterSubscription(TopicFilter(kind, "a.*"), 1))
    with capture_logs() as logs:
        awaited.look({})
    assert [(entry["topics"], entry["reason"]) for entry in logs] == [(["a.*"], reason)]
