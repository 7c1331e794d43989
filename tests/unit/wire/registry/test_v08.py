from __future__ import annotations

import json

import pytest

from consumerd.base.ports import Create, Delete
from consumerd.wire.registry.errors import DialectError, RegistryError
from consumerd.wire.registry.nudge import NUDGE_VALUE_V08, nudge_operations
from consumerd.wire.registry.paths import (
    delete_topic_path,
    partition_state_path,
    partitions_path,
    topic_config_path,
)
from consumerd.wire.registry.subscription import FilterSubscription, StaticSubscription
from consumerd.wire.registry.topic_filter import FilterKind, TopicFilter
from consumerd.wire.registry.v08.broker import Endpoint, parse_broker_node
from consumerd.wire.registry.v08.subscription import format_subscription_v08, parse_subscription_v08
from consumerd.wire.registry.v08.topic import (
    PartitionState,
    format_topic_assignment,
    format_topic_config,
    parse_partition_state,
    parse_topic_assignment,
)

DEEP = "[" * 900 + "]" * 900


def test_paths_are_those_of_0_8() -> None:
    assert partitions_path("a") == "/brokers/topics/a/partitions"
    assert partition_state_path("a", 3) == "/brokers/topics/a/partitions/3/state"
    assert topic_config_path("a") == "/config/topics/a"
    assert delete_topic_path("a") == "/admin/delete_topics/a"
    for path in (partitions_path, topic_config_path, delete_topic_path):
        with pytest.raises(RegistryError):
            path("a/b")


def test_reads_brokers_of_every_version() -> None:
    first = parse_broker_node(7, b'{ "host":"h", "jmx_port":-1, "port":9092, "timestamp":"1", "version":1 }')
    assert (first.id, first.version, first.host, first.port, first.address()) == (7, 1, "h", 9092, ("h", 9092))
    secure = parse_broker_node(
        1,
        '{"version":3,"host":null,"port":-1,"rack":"r1","endpoints":["SSL://[::1]:9093","SASL_SSL://b.c-d:9094"]}',
    )
    assert secure.endpoints == (
        Endpoint("SSL", "SSL", "::1", 9093),
        Endpoint("SASL_SSL", "SASL_SSL", "b.c-d", 9094),
    )
    assert (secure.rack, secure.host, secure.port, secure.address(), secure.address("SSL")) == (
        "r1", "", -1, None, ("::1", 9093),
    )  # fmt: skip
    named = parse_broker_node(
        1,
        '{"version":5,"features":{},"listener_security_protocol_map":{"IN":"SASL_SSL","OUT":"PLAINTEXT"},'
        '"endpoints":["IN://a:1","OUT://b:2","ODD://c:3"],"host":"b","port":2}',
    )
    assert [endpoint.protocol for endpoint in named.endpoints] == ["SASL_SSL", "PLAINTEXT", "ODD"]
    assert named.address() == ("b", 2)


@pytest.mark.parametrize(
    "text",
    ["{}", "{", '{"version":1}', '{"version":0,"host":"a","port":1}', '{"version":1,"host":"a","port":0}',
     '{"version":1,"host":"a b","port":1}', '{"version":1,"host":"a","port":70000}', '{"version":1,"host":[],"port":1}',
     '{"version":"1","host":"a","port":1}', '{"version":true,"host":"a","port":1}', '{"version":2,"endpoints":{}}',
     '{"version":2,"endpoints":["a:1"]}', '{"version":2,"endpoints":["A://b:99999"]}', '{"version":2,"endpoints":[1]}',
     f'{{"version":2,"endpoints":[{DEEP}]}}', f'{{"version":{DEEP}}}', None, b"\xff", b"{\xff}"],
)  # fmt: skip
def test_rejects_what_no_broker_writes(text: bytes | str | None) -> None:
    with pytest.raises(RegistryError):
        parse_broker_node(0, text)


def test_names_a_broker_of_0_7() -> None:
    with pytest.raises(DialectError, match=r"0\.7"):
        parse_broker_node(0, "127.0.0.1-1:127.0.0.1:9092")


def test_reads_topics_as_recorded() -> None:
    text = '{"version":1,"partitions":{"10":[0],"2":[2,0],"0":[0,1]}}'
    found = parse_topic_assignment(text)
    assert list(found.items()) == [(0, (0, 1)), (2, (2, 0)), (10, (0,))]
    assert format_topic_assignment(found) == '{"version":1,"partitions":{"0":[0,1],"2":[2,0],"10":[0]}}'
    assert format_topic_config({"a": 'x"y', "b": "/c"}) == '{"version":1,"config":{"a":"x\\"y","b":"\\/c"}}'
    assert parse_partition_state(
        '{"controller_epoch":1,"leader":-1,"version":1,"leader_epoch":2,"isr":[],"leader_recovery_state":1}'
    ) == PartitionState(-1, 2, (), 1, 1)


@pytest.mark.parametrize(
    "text",
    [None, "", "3", "{}", '{"partitions":[]}', '{"partitions":{"-1":[0]}}', '{"partitions":{"a":[0]}}',
     '{"partitions":{"0":0}}', '{"partitions":{"0":["0"]}}', '{"partitions":{"0":[-1]}}',
     f'{{"partitions":{{"0":{DEEP}}}}}', '{"partitions":{"1000000":[0]}}'],
)  # fmt: skip
def test_rejects_what_no_controller_writes(text: str | None) -> None:
    with pytest.raises(RegistryError):
        parse_topic_assignment(text)
    with pytest.raises(RegistryError):
        parse_partition_state(text)


def test_rejects_invalid_assignments() -> None:
    for partitions in ({-1: [0]}, {0: [-1]}, {200_000: [0]}):
        with pytest.raises(RegistryError):
            format_topic_assignment(partitions)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ('{"version":1,"subscription":{"t":2,"u":1},"pattern":"static","timestamp":"12"}', {"t": 2, "u": 1}),
        ('{"version":1,"subscription":{},"pattern":"white_list","timestamp":"1"}', {}),
        ('{ "pattern":"strange", "subscription":{ "t" : 1 }, "timestamp":"1", "version":1 }', {"t": 1}),
        (NUDGE_VALUE_V08.decode(), {}),
    ],
)
def test_reads_static_members(text: str, meant: dict[str, int]) -> None:
    assert parse_subscription_v08(text) == StaticSubscription(meant)


def test_reads_members_with_a_filter() -> None:
    wanted = FilterSubscription(TopicFilter(FilterKind.WHITELIST, r"og\..*"), 2)
    text = r'{"version":1,"subscription":{"og\\..*":2},"pattern":"white_list","timestamp":"1795263227110"}'
    assert format_subscription_v08(wanted, 1795263227110) == text
    assert parse_subscription_v08(text.encode()) == wanted
    # As consumers of 1.0 and 1.1 write it, and as every peer understands it.
    twice = parse_subscription_v08(text.replace(r"\\", r"\\\\"))
    assert not twice.streams_for("og.t1")
    assert twice.streams_for("og\\xy")
    unwanted = FilterSubscription(TopicFilter(FilterKind.BLACKLIST, 'a|"b/\x85\u00e9'), 1)
    formatted = format_subscription_v08(unwanted, 1)
    assert formatted == (
        '{"version":1,"subscription":{"a|\\"b\\/\\u0085\u00e9":1},"pattern":"black_list","timestamp":"1"}'
    )
    assert parse_subscription_v08(formatted) == unwanted


@pytest.mark.parametrize(
    "text",
    [None, "", "{}", "{ }", "[]", '{"version":1,"subscription":{"t":1}}', '{"version":1,"pattern":"static"}',
     '{"subscription":{"t":0},"pattern":"static"}', '{"subscription":{"t":"1"},"pattern":"static"}',
     '{"subscription":{"t/u":1},"pattern":"static"}', '{"subscription":{"(":1},"pattern":"white_list"}',
     '{"subscription":{"a":1,"b":1},"pattern":"white_list"}', '{"subscription":{"a":1},"pattern":1}',
     f'{{"subscription":{{"a":{DEEP}}},"pattern":"static"}}', "{broken", "(" * 100_000],
)  # fmt: skip
def test_rejects_what_no_member_writes(text: str | None) -> None:
    with pytest.raises(RegistryError) as raised:
        parse_subscription_v08(text)
    assert not isinstance(raised.value, DialectError)


@pytest.mark.parametrize("text", ['{ "t": 1 }', '{"t":1}', "*1*t.*", "!2!t", '{"version":1,"subscription":1}'])
def test_names_a_member_of_0_7(text: str) -> None:
    with pytest.raises(DialectError, match=r"0\.7"):
        parse_subscription_v08(text)


def test_writes_a_nudge_for_both_dialects() -> None:
    path = "/consumers/g/ids/me-nudge"
    assert nudge_operations("g", "me", NUDGE_VALUE_V08) == [Create(path, NUDGE_VALUE_V08), Delete(path)]
    assert json.loads(NUDGE_VALUE_V08)["subscription"] == {}
