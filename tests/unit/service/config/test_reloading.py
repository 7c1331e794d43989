"""Keys that a running daemon reloads, and keys that it refuses."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from consumerd.base.settings.setting import Reload
from consumerd.service.config.model import Config, parse
from consumerd.service.config.reloading import RELOADS, compare, same_handler

DOCUMENT: dict[str, Any] = {"group": {"id": "g", "topics": {"t": 1}}}


def config(**tables: Any) -> Config:
    return parse({**DOCUMENT, **tables}, "test.toml", environment=False)


def test_every_key_of_the_model_is_classified() -> None:
    """All that the daemon reads; [spark] belongs to other commands."""
    keys = [f"{name}.{key}" for name in Config.fields for key in (Config.inner(name) or Config).fields]
    assert sorted(RELOADS) == sorted(keys)


def test_the_table_of_operations_says_the_same() -> None:
    page = (Path(__file__).parents[4] / "docs" / "operations.md").read_text("utf-8")
    section = page.partition("### Reloading the configuration\n")[2].partition("\n### ")[0]
    rows = dict(re.findall(r"^\| ([a-z ]+) \| (.+) \|$", section, re.MULTILINE))
    assert [*rows][1:] == [how.value for how in Reload]
    for how in Reload:
        keys = [key for key, each in RELOADS.items() if each is how]
        if how is Reload.HANDLER:
            assert rows[how.value] == (
                "every other key of `[handler]` and of `[subscriptions.handler]`, but for `delay`, `retry_topic`, "
                "`retry_delays` and `retry_order`"
            )
            refused = {"handler.delay", "handler.retry_topic", "handler.retry_delays", "handler.retry_order"}
            assert {key for key, each in RELOADS.items() if each is Reload.RESTART} >= refused
            others = [
                key
                for key, each in RELOADS.items()
                if key.startswith("handler.") and each is not Reload.AT_ONCE and key not in refused
            ]
            assert keys == [*others, "subscriptions.handler"]
        elif how is Reload.RESTART:
            assert rows[how.value] == "every other key"
        else:
            assert re.findall(r"`([\w.]+)`", rows[how.value]) == keys


def test_equal_configurations_change_nothing() -> None:
    comparison = compare(config(), config())
    assert (comparison.applied, comparison.refused) == ({}, [])
    assert comparison.merged == config()


def test_takes_over_what_can_change_and_names_the_rest() -> None:
    running = config(fetch={"size": 1000}, handler={"name": "print"})
    new = config(
        fetch={"size": 2000},
        handler={"name": "null", "max_rate": 10.0},
        log={"level": "debug"},
        zookeeper={"connect": "other:2181"},
    )
    merged, applied, refused = compare(running, new)
    assert applied == {Reload.HANDLER: ["handler.name"], Reload.AT_ONCE: ["handler.max_rate", "log.level"]}
    assert refused == ["zookeeper.connect", "fetch.size"]
    assert (merged.handler, merged.log, merged.fetch, merged.zookeeper) == (
        new.handler,
        new.log,
        running.fetch,
        running.zookeeper,
    )


def test_refuses_topics_that_go_with_another_coordination() -> None:
    new = config(group={"id": "g", "coordination": "fixed", "partitions": {"t": [0]}})
    comparison = compare(config(), new)
    assert comparison.refused == ["group.coordination", "group.topics", "group.partitions"]
    assert comparison.merged == config()


def test_refused_keys_are_refused_again_by_the_next_reload() -> None:
    new = config(fetch={"size": 2000}, log={"level": "debug"})
    comparison = compare(compare(config(), new).merged, new)
    assert (comparison.applied, comparison.refused) == ({}, ["fetch.size"])


def test_changed_secret_needs_a_restart_and_is_not_named_by_value() -> None:
    sasl = {"user": "u", "password": "one"}
    comparison = compare(config(kafka={"sasl": sasl}), config(kafka={"sasl": sasl | {"password": "two"}}))
    assert comparison.refused == ["kafka.sasl"]


def subscriptions(*names: str, **keys: Any) -> list[dict[str, Any]]:
    return [{"name": name, "topics": {name: 1}, "handler": {"name": "null"}} | keys for name in names]


def test_takes_over_handler_and_topics_of_one_subscription() -> None:
    running = config(subscriptions=subscriptions("a", "b"))
    changed = subscriptions("a", "b")
    changed[1] |= {"topics": {"c": 1}, "handler": {"name": "null", "max_rate": 5.0}}
    new = config(subscriptions=changed)
    comparison = compare(running, new)
    assert comparison.applied == {
        Reload.SUBSCRIPTION: ["subscriptions.b.topics"],
        Reload.AT_ONCE: ["subscriptions.b.handler.max_rate"],
    }
    assert comparison.refused == []
    assert comparison.merged == new


def test_a_key_that_changes_at_once_needs_no_new_handler() -> None:
    before = config(handler={"name": "null", "max_rate": 5.0, "timeout": 1.0}).handler
    faster = config(handler={"name": "null", "max_rate": 9.0, "timeout": 1.0}).handler
    both = config(handler={"name": "null", "max_rate": 9.0, "timeout": 2.0}).handler
    assert same_handler(before, faster) == faster
    assert same_handler(before, both) == faster != both


def test_refuses_another_group_and_other_subscriptions() -> None:
    running = config(subscriptions=subscriptions("a"))
    comparison = compare(running, config(subscriptions=subscriptions("a", group={"id": "h"}, topics={"b": 1})))
    assert comparison.refused == ["subscriptions.a.group.id"]
    assert comparison.merged.subscriptions[0].topics == {"b": 1}
    assert comparison.merged.subscriptions[0].group.id is None
    for names in ((), ("b",), ("a", "b")):
        comparison = compare(running, config(subscriptions=subscriptions(*names), log={"level": "debug"}))
        assert comparison.refused == ["subscriptions"]
        assert comparison.applied == {Reload.AT_ONCE: ["log.level"]}
        assert comparison.merged.subscriptions == running.subscriptions


RETRY: dict[str, Any] = {"on_failure": "retry_topic", "retry_topic": "later", "dead_letter": "letters"}


def test_retry_topics_need_a_restart_since_each_has_a_member() -> None:
    comparison = compare(config(handler={"name": "print"}), config(handler={"name": "null", **RETRY}))
    assert {"handler.on_failure", "handler.retry_topic"} <= {*comparison.refused}
    assert [*comparison.merged.by_subscription()] == ["main"]


def test_the_handler_of_retry_topics_changes_with_that_of_their_subscription() -> None:
    running, new = (config(handler={"name": name, **RETRY}) for name in ("print", "null"))
    merged = compare(running, new).merged
    assert {each.handler.name for each in merged.by_subscription().values()} == {"null"}
