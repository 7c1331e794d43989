"""The target assignment of groups whose nodes a hostile client wrote: what is left out, and the steps it is made in."""

from __future__ import annotations

import pytest

from consumerd.group import V07Rules
from consumerd.group import events as e
from consumerd.group import target_assignment as module
from consumerd.group.target_assignment import MAX_STREAMS_OF_TOPIC, TargetAssignmentBuilder
from consumerd.partition import TopicPartition
from consumerd.registry import (
    DialectError,
    FilterKind,
    RegistryError,
    StaticSubscription,
    Subscription,
    TopicFilter,
)
from consumerd.registry.topic_filter import _matches

ME = "g_m"
#: Takes more steps for a name than are allowed.
INTRICATE = "(?:a?){60}" * 30 + "b"


def builder(subscription: StaticSubscription | None = None) -> TargetAssignmentBuilder:
    return TargetAssignmentBuilder(ME, subscription or StaticSubscription({"t": 1}), V07Rules())


def snapshot(members: dict[str, str], count: int = 4) -> e.GroupSnapshot:
    return e.GroupSnapshot(members, None, {"t": {0: range(count)}}, {})


def test_leaves_out_members_with_the_most_streams_until_the_rest_fits() -> None:
    members = {f"g_hostile-{number}": '{ "t": 10000 }' for number in range(MAX_STREAMS_OF_TOPIC // 10_000 + 3)}
    made = builder()
    target = made.build(snapshot({**members, "g_a": '{ "t": 3 }'}, count=60_000))
    assert len(target.own) + len(target.others) == 60_000
    warnings = made.take_warnings()
    assert [each.split()[1] for each in warnings] == ["g_hostile-0", "g_hostile-1", "g_hostile-10", "g_hostile-11"]
    assert "all members together ask for more than 100000 streams, and it for 10000" in warnings[0]
    # The small members are what every member of ours keeps, whatever its own name is.
    other = TargetAssignmentBuilder("g_a", StaticSubscription({"t": 3}), V07Rules())
    others = other.build(snapshot({**members, ME: '{ "t": 1 }'}, count=60_000))
    assert target.own.keys() & others.own.keys() == set()
    assert target.own.keys() <= others.others
    assert others.own.keys() <= target.others


def test_steps_leave_the_result_for_the_build() -> None:
    members = {f"g_{number}": '{ "t": 1 }' for number in range(1000)}
    made, at_once = builder(), builder()
    steps = sum(1 for _ in made.steps(snapshot(members, count=2000)))
    assert 10 < steps < 1000
    assert not list(made.steps(snapshot(members, count=2000)))  # nothing is left to do
    assert made.build(snapshot(members, count=2000)) == at_once.build(snapshot(members, count=2000))


def test_steps_of_two_snapshots_may_alternate() -> None:
    first = snapshot({f"g_{number}": '{ "t": 1 }' for number in range(500)}, count=100)
    second = snapshot({f"g_{number}": '{ "t": 2 }' for number in range(300)}, count=70)
    made = builder()
    running = [made.steps(first), made.steps(second)]
    while running:
        for each in list(running):
            if next(each, "ended") == "ended":
                running.remove(each)
    for wanted in (first, second):
        assert made.build(wanted) == builder().build(wanted)


def test_a_small_group_takes_no_step_at_all() -> None:
    assert list(builder().steps(snapshot({"g_a": '{ "t": 1 }', "g_b": "*1*t.*"}))) == []


def test_steps_end_with_the_error_that_the_build_raises() -> None:
    found = snapshot({"g_a": '{"version":1,"subscription":{"t":1},"pattern":"static","timestamp":"1"}'})
    made = builder()
    assert list(made.steps(found)) == []
    for _ in range(2):
        with pytest.raises(DialectError, match=r"0\.8 or later"):
            made.build(found)


def test_each_intricate_filter_is_a_step_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_STEP", 2000)
    topic = "a" * 250
    members = {f"g_hostile-{number}": f"*1*{INTRICATE}{number}" for number in range(5)}
    made = builder(StaticSubscription({topic: 1}))
    found = e.GroupSnapshot(members, None, {topic: {0: range(2)}}, {})
    assert sum(1 for _ in made.steps(found)) >= 5
    assert made.build(found).own.keys() == {TopicPartition(topic, 0, 0), TopicPartition(topic, 0, 1)}


def test_a_filter_that_takes_too_many_steps_is_run_once_for_a_name() -> None:
    name, tried = "a" * 255, TopicFilter(FilterKind.WHITELIST, INTRICATE + "(?:once)?")
    for _ in range(3):
        with pytest.raises(RegistryError, match="takes more than 100000 steps"):
            tried.matches(name)
    found = _matches.cache_info()
    with pytest.raises(RegistryError):
        tried.matches(name)
    assert _matches.cache_info().misses == found.misses
    assert tried.steps_for(name) == 100_000
    assert TopicFilter(FilterKind.WHITELIST, "t.*").steps_for("topic") < 100


def test_reads_a_member_again_only_when_its_node_has_changed() -> None:
    read: list[bytes | str | None] = []

    class Counting(V07Rules):
        def parse(self, data: bytes | str | None) -> Subscription:
            read.append(data)
            return super().parse(data)

    made = TargetAssignmentBuilder(ME, StaticSubscription({"t": 1}), Counting())
    before, after = '{ "t": 1 }', '{ "t": 3 }'
    assert len(made.build(snapshot({"g_a": before})).own) == 2
    assert len(made.build(snapshot({"g_a": before}, count=6)).own) == 3
    assert read == [before]
    assert len(made.build(snapshot({"g_a": after}, count=8)).own) == 2
    assert read == [before, after]
