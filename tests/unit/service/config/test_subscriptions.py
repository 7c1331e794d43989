"""Further subscriptions: what is valid, the sentence for each that is not, and what each is made of."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random
from typing import Any

import pytest

from consumerd.base.errors import ConfigError, HandlerLoadError
from consumerd.service.config.build_subscriptions import build_members, errors_of
from consumerd.service.config.effective import effective_values
from consumerd.service.config.model import Config, load, parse
from consumerd.service.config.problems import ConfigProblemsError, read_document
from consumerd.service.daemon.checks import check_daemon
from consumerd.testing.clock import FakeClock
from consumerd.wire.registry.subscription import FilterSubscription, StaticSubscription

MAIN = {"id": "g", "topics": {"events": 1}, "consumer_id": "pod-0"}


def subscription(**keys: Any) -> dict[str, Any]:
    return {"name": "audit", "whitelist": "audit-.*", "handler": {"name": "null"}} | keys


def config(*subscriptions: dict[str, Any], **tables: Any) -> Config:
    document = {"group": MAIN, "subscriptions": list(subscriptions), **tables}
    return parse(document, "test.toml", environment=False)


def test_a_configuration_without_them_is_the_only_subscription() -> None:
    made = config()
    assert made.by_subscription() == {"main": made}


def test_each_has_a_configuration_of_its_own_and_shares_the_other_tables() -> None:
    made = config(subscription(group={"id": "h"}, handler={"name": "null", "max_rate": 5.0}), fetch={"size": 1000})
    main, audit = made.by_subscription().values()
    assert main == config(fetch={"size": 1000})
    assert (audit.group.id, audit.group.topics, audit.group.whitelist) == ("h", {}, "audit-.*")
    assert (audit.handler.max_rate, audit.fetch.size, audit.subscriptions) == (5.0, 1000, ())


def test_consumer_id_is_that_of_the_main_one_and_the_name() -> None:
    made = config(subscription(), subscription(name="other", group={"id": "h"}, whitelist=None, blacklist="events"))
    members = build_members(made, clock=FakeClock(), rng=Random(1))
    assert {name: each.consumer_id for name, each in members.items()} == {
        "main": "g_pod-0",
        "audit": "g_pod-0_audit",
        "other": "h_pod-0_other",
    }
    assert [each.siblings for each in members.values()] == [{"g_pod-0_audit"}, {"g_pod-0"}, frozenset()]
    assert members["main"].subscription == StaticSubscription({"events": 1})
    assert isinstance(members["other"].subscription, FilterSubscription)
    assert all(each.fixed_id for each in members.values())


def test_generated_ids_have_the_same_beginning() -> None:
    document = {"group": {"id": "g", "topics": {"t": 1}}, "subscriptions": [subscription()]}
    members = build_members(parse(document, "x", environment=False), clock=FakeClock(), rng=Random(1))
    assert members["audit"].consumer_id == f"{members['main'].consumer_id}_audit"
    assert not members["audit"].fixed_id


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        (
            {"name": "main"},
            "'subscriptions.main' is wrong: name must not be 'main', which is the subscription of [group]",
        ),
        ({"name": "a/b"}, "is wrong: name must be 1 to 64 letters, digits, hyphens and underscores"),
        ({"topics": {"t": 1}}, "'subscriptions.audit' is wrong: give exactly one of topics, whitelist and blacklist"),
        ({"whitelist": None}, "'subscriptions.audit' is wrong: give exactly one of topics, whitelist and blacklist"),
        ({"handlr": {}}, "unknown key 'subscriptions.audit.handlr', did you mean 'handler'?"),
        ({"handler": {"max_rte": 1}}, "unknown key 'subscriptions.audit.handler.max_rte', did you mean 'max_rate'?"),
        ({"group": {"id": "a/b"}}, "cannot be the name of a znode"),
        (
            {"whitelist": "ev.*"},
            "group.topics and subscriptions.audit.whitelist both consume 'events' in group 'g': set ",
        ),
        ({"whitelist": None, "topics": {"events": 1}}, "both consume 'events' in group 'g'"),
        ({"whitelist": None, "blacklist": "other"}, "both consume 'events' in group 'g'"),
        ({"whitelist": "ev.*", "group": {"id": "g"}}, "both consume 'events' in group 'g'"),
    ],
)
def test_refuses(keys: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigProblemsError, match=re.escape(sentence)):
        config(subscription(**keys))


@pytest.mark.parametrize("value", [5, {"name": "audit"}, [1], "audit"])
def test_refuses_what_is_not_an_array_of_tables(value: object) -> None:
    sentence = "'subscriptions' must be an array of tables: begin each of them with [[subscriptions]]."
    with pytest.raises(ConfigProblemsError, match=re.escape(sentence)):
        parse({"group": MAIN, "subscriptions": value}, "test.toml", environment=False)


def failing_to(topic: str | None) -> dict[str, Any]:
    return {"name": "null", "on_failure": "dead_letter", "dead_letter_topic": topic}


def test_refuses_two_that_consume_each_others_dead_letters() -> None:
    sentence = (
        "dead letters would go in a circle: handler.dead_letter_topic 'audit-failed' and "
        "subscriptions.audit.handler.dead_letter_topic 'events' are consumed by subscriptions.audit and group, so a "
        "message that always fails would never leave them: name a topic that none of them consumes"
    )
    with pytest.raises(ConfigProblemsError, match=re.escape(sentence)):
        config(subscription(handler=failing_to("events")), handler=failing_to("audit-failed"))


def test_refuses_a_circle_of_dead_letters_that_begins_later_and_is_longer() -> None:
    circle = [
        subscription(name=name, whitelist=None, topics={name: 1}, handler=failing_to(then))
        for name, then in [("a", "b"), ("b", "c"), ("c", "a")]
    ]
    with pytest.raises(ConfigProblemsError, match=r"in a circle: subscriptions\.a\.handler\."):
        config(*circle, handler=failing_to("a"))


def test_accepts_dead_letters_that_another_subscription_consumes_and_does_not_send_back() -> None:
    chain = subscription(handler=failing_to("given-up"))
    assert len(config(chain, handler=failing_to("audit-failed")).subscriptions) == 1
    diamond = [
        subscription(name="retry", whitelist=None, topics={"failed": 1}, handler=failing_to("given-up")),
        subscription(name="count", whitelist=None, topics={"failed": 1}, group={"id": "h"}),
        subscription(name="last", whitelist=None, topics={"given-up": 1}),
    ]
    assert len(config(*diamond, handler=failing_to("failed")).subscriptions) == 3


def test_requires_a_handler() -> None:
    with pytest.raises(ConfigProblemsError, match=r"'subscriptions\.audit\.handler' is required"):
        config({"name": "audit", "whitelist": "a"})


def test_refuses_two_filters_in_one_group_and_takes_them_in_two() -> None:
    other = subscription(name="other", whitelist="b.*")
    sentence = (
        "subscriptions.audit.whitelist and subscriptions.other.whitelist are both topic filters, and the same topic "
        "may match them in group 'g': set subscriptions.other.group.id to another group."
    )
    with pytest.raises(ConfigProblemsError, match=re.escape(sentence)):
        config(subscription(), other)
    assert len(config(subscription(), other | {"group": {"id": "h"}}).subscriptions) == 2


def test_one_topic_in_two_groups_is_consumed_by_both() -> None:
    both = config(subscription(whitelist="ev.*", group={"id": "h"}))
    assert [each.group.id for each in both.by_subscription().values()] == ["g", "h"]


def test_refuses_a_name_that_two_have() -> None:
    with pytest.raises(ConfigProblemsError, match="two subscriptions have the name 'audit': rename one"):
        config(subscription(), subscription(whitelist=None, topics={"t": 1}))


def by(coordination: str, group: str = "h", **keys: Any) -> dict[str, Any]:
    return subscription(name=coordination, group={"id": group, "coordination": coordination}, **keys)


FIXED = by("fixed", whitelist=None, partitions={"pay": [0, 1]})


def test_each_may_be_coordinated_in_its_own_way() -> None:
    made = config(by("kafka", "k"), FIXED)
    main, kafka, fixed = made.by_subscription().values()
    assert [each.group.coordination for each in (main, kafka, fixed)] == ["zookeeper", "kafka", "fixed"]
    assert [each.group.storage for each in (main, kafka, fixed)] == ["zookeeper", "kafka", "kafka"]
    assert (fixed.group.partitions, fixed.group.topics, fixed.group.whitelist) == ({"pay": (0, 1)}, {}, None)
    assert (made.needs_session, made.needs_brokers) == (True, True)


def test_what_is_not_given_is_as_in_the_main_one_where_both_are_coordinated_alike() -> None:
    group = {"id": "g", "topics": {"events": 1}, "coordination": "kafka", "instance_id": "pod-0", "offsets": "both"}
    document = {"group": group, "kafka": {"bootstrap": ["h:1"]}, "subscriptions": [subscription(), FIXED]}
    made = parse(document, "test.toml", environment=False)
    _, audit, fixed = made.by_subscription().values()
    assert (audit.group.coordination, audit.group.storage, audit.group.instance_id) == ("kafka", "both", "pod-0_audit")
    assert (fixed.group.storage, fixed.group.instance_id) == ("kafka", None)
    assert (made.needs_session, made.needs_brokers) == (True, True)


def test_keys_of_the_main_ones_coordination_do_not_reach_others() -> None:
    group = {"id": "g", "topics": {"events": 1}, "dialect": "0.8", "assignor": "roundrobin", "roundrobin_as": "1.0"}
    made = parse({"group": group, "subscriptions": [by("kafka")]}, "test.toml", environment=False)
    other = made.by_subscription()["kafka"].group
    assert (other.dialect, other.assignor, other.roundrobin_as) == ("auto", "roundrobin", "0.8")


@pytest.mark.parametrize(
    ("others", "sentence"),
    [
        (
            [by("fixed")],
            'subscriptions.fixed: coordination = "fixed" needs partitions, and no topics, whitelist or blacklist',
        ),
        (
            [subscription(whitelist=None, partitions={"t": [0]})],
            'subscriptions.audit: partitions need coordination = "fixed"',
        ),
        (
            [by("kafka"), FIXED],
            "subscriptions.kafka and subscriptions.fixed are in group 'h': where a broker coordinates a group, it",
        ),
        (
            [FIXED, FIXED | {"name": "again", "partitions": {"pay": [1, 2]}}],
            "subscriptions.fixed.partitions and subscriptions.again.partitions both consume 'pay' in group 'h'",
        ),
        ([by("kafka", "g", whitelist="ev.*")], "both consume 'events' in group 'g'"),
        ([FIXED | {"partitions": {}}], "give exactly one of topics, whitelist and blacklist (or partitions)"),
        (
            [subscription(group={"id": "h", "coordination": "kafka", "offsets": "zookeeper"})],
            'subscriptions.audit: offsets = "zookeeper" and coordination = "kafka" do not go together',
        ),
    ],
)
def test_refuses_coordination_that_does_not_fit(others: list[dict[str, Any]], sentence: str) -> None:
    with pytest.raises(ConfigProblemsError, match=re.escape(sentence)):
        config(*others)


def test_fixed_partitions_of_one_topic_may_be_divided_by_hand() -> None:
    assert len(config(FIXED, FIXED | {"name": "again", "partitions": {"pay": [2]}}).subscriptions) == 2


FILE = """\
[group]
id = "g"
topics = { events = 1 }

[[subscriptions]]
name = "audit"
whitelist = "audit-.*"
[subscriptions.handler]
name = "null"

[[subscriptions]]
name = "pay"
group.id = "h"
topics = { payments = 1 }
[subscriptions.handler]
name = "no_such:handler"
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "c.toml"
    path.write_text(text)
    return path


def test_problems_name_file_line_and_subscription(tmp_path: Path) -> None:
    path = write(tmp_path, FILE.replace('name = "null"', "max_rte = 1").replace("payments = 1", "payments = 0"))
    with pytest.raises(ConfigProblemsError) as caught:
        load(path)
    assert str(caught.value).splitlines() == [
        f"{path}:9: unknown key 'subscriptions.audit.handler.max_rte', did you mean 'max_rate'?",
        f"{path}:14: 'subscriptions.pay.topics.payments' must be a positive whole number, not 0.",
    ]
    with pytest.raises(ConfigProblemsError, match=r"c\.toml:7: group\.topics and subscriptions\.audit\.whitelist"):
        load(write(tmp_path, FILE.replace("audit-.*", "events")))


def test_check_finds_what_a_part_of_a_subscription_refuses(tmp_path: Path) -> None:
    path = write(tmp_path, FILE)
    checked = check_daemon(read_document(path), str(path))
    (problem,) = checked.problems
    assert problem.format(str(path)).startswith(f"{path}:16: subscription 'pay': ")
    assert "no_such" in problem.sentence
    path = write(tmp_path, FILE.replace("audit-.*", "audit-("))
    problems = check_daemon(read_document(path), str(path)).problems
    assert [each.format(str(path)).split(": ")[:2] for each in problems] == [
        [f"{path}:7", "subscriptions.audit.whitelist"],
        [f"{path}:16", "subscription 'pay'"],
    ]
    path = write(tmp_path, FILE.replace("no_such:handler", "print"))
    checked = check_daemon(read_document(path), str(path))
    assert checked.problems == []
    assert checked.valid[1:] == [
        "subscription audit: group g, *1*audit-.*, handler null",
        'subscription pay: group h, { "payments": 1 }, handler print',
    ]


def test_shows_effective_values_without_secrets(tmp_path: Path) -> None:
    text = FILE.replace("no_such:handler", "http") + 'options = { url = "https://me:secret@host/", token = "secret" }\n'
    shown = {f"{each.table}.{each.key}": each for each in effective_values(write(tmp_path, text))}
    assert shown["subscriptions.pay.group.id"][2:] == ("h", "file")
    assert shown["subscriptions.pay.handler.max_attempts"].origin == "default"
    assert shown["subscriptions.audit.whitelist"][2:] == ("audit-.*", "file")
    assert "secret" not in repr(shown)


def test_environment_replaces_them_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONSUMERD_SUBSCRIPTIONS", '[{"name": "env", "topics": {"e": 1}, "handler": {"name": "null"}}]')
    path = write(tmp_path, FILE)
    assert [each.name for each in load(path).subscriptions] == ["env"]
    shown = {f"{each.table}.{each.key}": each.origin for each in effective_values(path)}
    assert shown["subscriptions.env.topics"] == "environment"


def test_errors_of_a_further_subscription_name_it() -> None:
    with pytest.raises(HandlerLoadError, match=r"^subscription 'audit': no handler"), errors_of("audit"):
        raise HandlerLoadError("no handler")
    with pytest.raises(ConfigError, match=r"^subscriptions\.audit\.whitelist: wrong"), errors_of("audit"):
        raise ConfigError("group.whitelist: wrong")
    with pytest.raises(ConfigError, match=r"^subscriptions\.audit\.handler\.dead_letter: wrong"), errors_of("audit"):
        raise ConfigError("handler.dead_letter: wrong")
    with pytest.raises(ConfigError, match=r"^wrong"), errors_of("main"):
        raise ConfigError("wrong")


def test_selects_one_by_name() -> None:
    made = config(subscription())
    assert made.of_subscription(None) == made.of_subscription("main") == config()
    assert made.of_subscription("audit").handler.name == "null"
    with pytest.raises(ConfigError, match="unknown subscription 'adit': the configuration has main, audit"):
        made.of_subscription("adit")


STARTS: dict[str, Any] = {"initial_by_topic": {"evnets": "7d"}}


@pytest.mark.parametrize(
    ("tables", "sentence"),
    [
        ({}, "is not consumed (group.topics): write 'events', or remove it."),
        ({"group": MAIN | {"topics": {"audit": 1}}}, "is not consumed (group.topics): correct the name, or remove it."),
        ({"group": {"id": "g", "whitelist": "event.*"}}, "is not consumed (group.whitelist): correct the name"),
        ({"group": {"id": "g", "blacklist": "evn.*"}}, "is not consumed (group.blacklist): correct the name"),
        ({"subscriptions": [subscription()]}, "(group.topics, subscriptions.audit.whitelist): write 'events'"),
        (
            {
                "group": {"id": "g", "coordination": "fixed", "partitions": {"events": [0]}},
                "kafka": {"bootstrap": ["k:9092"]},
            },
            "is not consumed (group.partitions): write 'events', or remove it.",
        ),
    ],
)
def test_rejects_a_start_of_a_topic_that_is_not_consumed(tables: dict[str, Any], sentence: str) -> None:
    document = {"group": MAIN, "fetch": STARTS, **tables}
    with pytest.raises(ConfigProblemsError, match=re.escape(sentence)) as raised:
        parse(document, "test.toml", environment=False)
    assert "fetch.initial_by_topic has the topic 'evnets'" in str(raised.value)


def test_line_of_a_start_of_a_topic_that_is_not_consumed(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(
        '[group]\nid = "g"\ntopics = { events = 1 }\n[fetch.initial_by_topic]\nevents = "7d"\nevnets = "1d"\n'
    )
    with pytest.raises(ConfigProblemsError, match=r"c.toml:6: .*'evnets'"):
        load(path)


def test_accepts_starts_of_topics_that_any_subscription_consumes() -> None:
    starts = {"events": "7d", "audit-x": "latest"}
    made = config(subscription(), fetch={"initial_by_topic": starts})
    assert [own.fetch.initial_by_topic for own in made.by_subscription().values()] == [starts, starts]
    other = {"group": {"id": "g", "blacklist": "audit-.*"}, "fetch": {"initial_by_topic": {"events": "7d"}}}
    assert parse(other, "test.toml", environment=False).fetch.initial_by_topic == {"events": "7d"}


def test_a_retry_topic_is_read_from_its_beginning_whatever_the_starts_say() -> None:
    audit = subscription(group={"id": "h"}, whitelist="later-.*")
    made = config(audit, handler=RETRY, fetch={"initial": "latest", "initial_by_topic": {"later-30s": "latest"}})
    retried = made.by_subscription()["retry-30s"].fetch
    assert (retried.initial, retried.initial_by_topic) == ("earliest", None)


RETRY: dict[str, Any] = {
    "name": "null",
    "on_failure": "retry_topic",
    "retry_topic": "later",
    "dead_letter_topic": "dead",
}


def test_each_retry_topic_is_a_subscription_with_the_same_handler() -> None:
    made = config(subscription(handler=RETRY | {"retry_topic": "later-audit", "retry_delays": [90]}), handler=RETRY)
    parts = made.by_subscription()
    assert [*parts] == ["main", "audit", "retry-30s", "retry-5m", "retry-1h", "audit-retry-90s"]
    assert [parts[name].group.topics for name in [*parts][2:]] == [
        {"later-30s": 1},
        {"later-5m": 1},
        {"later-1h": 1},
        {"later-audit-90s": 1},
    ]
    assert [parts[name].handler.delay for name in parts] == [None, None, 30.0, 300.0, 3600.0, 90.0]
    assert {parts[name].handler.name for name in parts} == {"null"}
    assert {parts[name].fetch.initial for name in [*parts][2:]} == {"earliest"}


def test_what_fails_goes_from_one_retry_topic_to_the_next_and_to_the_dead_letters() -> None:
    parts = config(handler=RETRY | {"retry_delays": [1, 120]}).by_subscription()
    ways = [(*part.handler.retry_topics, part.handler.dead_letter_topic)[0] for part in parts.values()]
    assert ways == ["later-1s", "later-2m", "dead"]
    assert [part.handler.on_failure for part in parts.values()] == ["retry_topic", "retry_topic", "dead_letter"]


@pytest.mark.parametrize(
    ("handler", "group", "sentence"),
    [
        ({"retry_topic": None}, {}, 'on_failure = "retry_topic" and retry_topic go together'),
        ({"on_failure": "dead_letter"}, {}, 'on_failure = "retry_topic" and retry_topic go together'),
        ({"dead_letter_topic": None}, {}, 'on_failure = "retry_topic" and a dead_letter file or dead_letter_topic go'),
        ({"retry_delays": []}, {}, "retry_delays must be one or more different numbers of seconds"),
        ({"retry_delays": [5, 5]}, {}, "retry_delays must be one or more different numbers of seconds"),
        ({}, {"topics": {}, "partitions": {"t": [0]}, "coordination": "fixed"}, 'and coordination = "fixed" do not go'),
        (
            {"on_failure": "dead_letter", "retry_topic": None, "retry_order": "key"},
            {},
            'retry_order = "key" needs on_failure = "retry_topic"',
        ),
        ({"retry_order": "key", "bisect": True}, {}, 'retry_order = "key" and bisect do not go together'),
        ({}, {"dialect": "0.7"}, 'on_failure = "retry_topic" needs brokers of 0.11 or later'),
        ({}, {"topics": {}, "whitelist": ".*"}, "group.whitelist consumes the retry topic 'later-30s', too"),
    ],
)
def test_retry_topics_that_cannot_work_are_refused(
    handler: dict[str, Any], group: dict[str, Any], sentence: str
) -> None:
    keys = {key: value for key, value in (RETRY | handler).items() if value is not None}
    with pytest.raises(ConfigProblemsError, match=re.escape(sentence)):
        parse({"group": MAIN | group, "handler": keys}, "test.toml", environment=False)


@pytest.mark.parametrize("coordination", ["kafka", "zookeeper"])
def test_each_key_is_in_order_up_to_the_last_retry_topic(coordination: str) -> None:
    group = {"id": "g", "topics": {"events": 1}, "coordination": coordination}
    made = config(handler=RETRY | {"retry_order": "key"}, group=group, kafka={"bootstrap": ["h:1"]})
    assert [part.handler.retry_order for part in made.by_subscription().values()] == ["key", "key", "key", "none"]


def test_two_handlers_of_a_group_need_two_retry_topics() -> None:
    with pytest.raises(ConfigProblemsError, match="have the retry topic 'later-30s'"):
        config(subscription(handler=RETRY), handler=RETRY)


def test_members_of_retry_topics_have_ids_of_their_own() -> None:
    made = config(handler=RETRY | {"retry_delays": [30]}, group=MAIN | {"dialect": "0.8"})
    members = build_members(made, clock=FakeClock(), rng=Random(1))
    assert {name: each.consumer_id for name, each in members.items()} == {
        "main": "g_pod-0",
        "retry-30s": "g_pod-0_retry-30s",
    }
    assert {name: each.handler.delay for name, each in members.items()} == {"main": None, "retry-30s": 30.0}


def test_members_of_retry_topics_in_a_group_of_brokers_are_static_ones_of_their_own() -> None:
    group = {"id": "g", "topics": {"events": 1}, "coordination": "kafka", "instance_id": "pod-0"}
    made = config(handler=RETRY | {"retry_delays": [30]}, group=group, kafka={"bootstrap": ["h:1"]})
    ids = [part.group.instance_id for part in made.by_subscription().values()]
    assert ids == ["pod-0", "pod-0_retry-30s"]
