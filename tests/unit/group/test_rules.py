"""The two dialects of the membership machine: what they read, and what comes out of one and the same machine."""

from __future__ import annotations

import pytest

from consumerd.base.partition import NO_BROKER, TopicPartition
from consumerd.base.ports import Create
from consumerd.group import events as e
from consumerd.group.assignors import Spelling
from consumerd.group.membership import ZooKeeperMember
from consumerd.group.rules import GroupRules, V07Rules, V08Rules, topics_to_read
from consumerd.group.target_assignment import TargetAssignmentBuilder
from consumerd.wire.registry.errors import DialectError
from consumerd.wire.registry.nudge import nudge_operations
from consumerd.wire.registry.subscription import FilterSubscription, StaticSubscription
from consumerd.wire.registry.topic_filter import FilterKind, TopicFilter

ME, OTHER = "g_m", "g_a"
ALL = FilterSubscription(TopicFilter(FilterKind.WHITELIST, ".*"), 1)
NUMBERED = TopicPartition.numbered


def v08(subscription: str, pattern: str = "static") -> str:
    return f'{{"version":1,"subscription":{subscription},"pattern":"{pattern}","timestamp":"1"}}'


def snapshot(members: dict[str, str], **topics: int) -> e.MembershipSnapshot:
    return e.MembershipSnapshot(members, None, {topic: {NO_BROKER: range(n)} for topic, n in topics.items()}, {})


def test_sorts_partitions_as_numbers_or_text() -> None:
    members = {OTHER: StaticSubscription({"t": 1}), ME: StaticSubscription({"t": 1})}
    old = V07Rules().owners({"t": {0: range(11)}}, members)
    new = V08Rules().owners({"t": {NO_BROKER: range(11)}}, members)
    assert [p.partition for p, (owner, _) in old.items() if owner == OTHER] == [0, 1, 10, 2, 3, 4]
    assert [p.partition for p, (owner, _) in new.items() if owner == OTHER] == [0, 1, 2, 3, 4, 5]


def test_accepts_partition_numbers_with_gaps() -> None:
    owners = V08Rules().owners({"t": {NO_BROKER: (7, 2)}, "gone": {}}, {ME: StaticSubscription({"t": 1, "gone": 1})})
    assert list(owners) == [NUMBERED("t", 2), NUMBERED("t", 7)]


def test_filters_exclude_internal_topics_unless_named() -> None:
    topics = {"t": {NO_BROKER: range(1)}, "__consumer_offsets": {NO_BROKER: range(2)}}
    builder = TargetAssignmentBuilder(ME, ALL, V08Rules())
    assert set(builder.build(e.MembershipSnapshot({}, None, topics, {})).own) == {NUMBERED("t", 0)}
    named = TargetAssignmentBuilder(ME, StaticSubscription({"__consumer_offsets": 1}), V08Rules())
    members = {OTHER: v08('{".*":1}', "white_list")}
    assert len(named.build(e.MembershipSnapshot(members, None, topics, {})).own) == 2
    old = TargetAssignmentBuilder(ME, ALL, V07Rules())  # has no such topics
    assert len(old.build(e.MembershipSnapshot({}, None, {"__consumer_offsets": {0: range(2)}}, {})).own) == 2


def test_roundrobin_counts_topics_of_other_members() -> None:
    members = {OTHER: v08('{"t":1,"u":1}')}
    builder = TargetAssignmentBuilder(ME, StaticSubscription({"t": 1}), V08Rules("roundrobin"))
    target = builder.build(snapshot(members, t=4, u=3))
    expected = V08Rules("roundrobin").owners(
        {"t": {NO_BROKER: range(4)}, "u": {NO_BROKER: range(3)}},
        {OTHER: StaticSubscription({"t": 1, "u": 1}), ME: StaticSubscription({"t": 1})},
    )
    assert set(target.own) == {p for p, (owner, _) in expected.items() if owner == ME}
    # Others' partitions count only in topics that we look at anyway.
    assert target.others == {p for p, (owner, _) in expected.items() if owner == OTHER and p.topic == "t"}
    (warning,) = builder.take_warnings()
    assert "old consumers before 0.10.2 refuse" in warning
    builder.build(snapshot({OTHER: v08('{"t":1}')}, t=4))
    assert builder.take_warnings() == []


def test_roundrobin_continues_with_the_next_stream_at_the_next_topic() -> None:
    members = {OTHER: v08('{"t":1,"u":1}')}
    subscription = StaticSubscription({"t": 1, "u": 1})
    in_turn = TargetAssignmentBuilder(ME, subscription, V08Rules("roundrobin")).build(snapshot(members, t=1, u=1))
    assert (len(in_turn.own), len(in_turn.others)) == (1, 1)
    each_topic = TargetAssignmentBuilder(ME, subscription, V08Rules("range")).build(snapshot(members, t=1, u=1))
    assert (len(each_topic.own), len(each_topic.others)) == (0, 2)


def test_roundrobin_orders_by_hash_of_spelling() -> None:
    topics = {f"topic-{n}": {NO_BROKER: range(12)} for n in range(3)}
    members = {ME: StaticSubscription(dict.fromkeys(topics, 5))}
    brackets = V08Rules("roundrobin", Spelling.BRACKETS).owners(topics, members)
    dash = V08Rules("roundrobin", Spelling.DASH).owners(topics, members)
    assert brackets.keys() == dash.keys()
    assert brackets != dash


def test_warns_only_of_roundrobin_with_different_topics() -> None:
    topics = {"t": {NO_BROKER: range(4)}, "u": {NO_BROKER: range(3)}}
    same = {ME: StaticSubscription({"t": 1, "u": 1}), OTHER: StaticSubscription({"t": 2, "u": 2})}
    different = same | {OTHER: StaticSubscription({"t": 1})}
    warning = V08Rules("roundrobin").incompatibility(topics, different)
    assert warning is not None
    assert "members subscribe to different topics" in warning
    assert V08Rules("roundrobin").incompatibility(topics, same) is None
    assert V08Rules("roundrobin").incompatibility(topics | {"unused": {NO_BROKER: range(1)}}, same) is None
    assert V08Rules("range").incompatibility(topics, different) is None


@pytest.mark.parametrize(
    ("rules", "own", "members", "wanted"),
    [
        (V07Rules(), {"t"}, ['{ "u": 1 }'], {"t"}),
        (V08Rules(), {"t"}, [v08('{"u":1}')], {"t"}),
        (V08Rules("roundrobin"), {"t"}, [v08('{"u":1}'), "junk", v08('{"v":2}')], {"t", "u", "v"}),
        (V08Rules("roundrobin"), {"t"}, [v08('{"u.*":1}', "white_list")], None),
        (V08Rules("roundrobin"), None, [], None),
    ],
)
def test_lists_topics_needed_for_assignment(
    rules: GroupRules, own: set[str] | None, members: list[str], wanted: set[str] | None
) -> None:
    assert topics_to_read(rules, None if own is None else frozenset(own), members) == wanted


@pytest.mark.parametrize(
    ("rules", "stranger"),
    [(V07Rules(), v08('{"t":1}')), (V08Rules(), '{ "t": 1 }'), (V08Rules(), "*1*t.*"), (V08Rules(), "!2!t")],
)
def test_rejects_member_of_other_dialect_before_writing(rules: GroupRules, stranger: str) -> None:
    with pytest.raises(DialectError):
        rules.parse(stranger)
    member = ZooKeeperMember(ME, StaticSubscription({"t": 1}), None, rules)
    (look, *_) = member.handle(e.SessionStarted(1), 0.0)
    assert isinstance(look, e.TakeSnapshot)
    actions = member.handle(e.SnapshotTaken(look.ticket, e.MembershipSnapshot({OTHER: stranger}, None, {}, {})), 0.0)
    assert [type(action) for action in actions] == [e.RefuseGroup, e.Finished]


@pytest.mark.parametrize("rules", [V07Rules(), V08Rules()])
def test_nudge_subscribes_to_nothing(rules: GroupRules) -> None:
    """The dummy comes and goes in one step; a member that saw it all the same would lose nothing by it."""
    create, _ = nudge_operations("g", ME, rules.nudge_value)
    assert isinstance(create, Create)
    assert rules.parse(create.data) == StaticSubscription({})


def test_reads_back_own_registration() -> None:
    for subscription in (StaticSubscription({"t": 2, "u": 1}), ALL):
        for rules in (V07Rules(), V08Rules()):
            assert rules.parse(rules.format(subscription, 1)) == subscription
