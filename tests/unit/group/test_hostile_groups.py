"""The target assignment of groups whose nodes a hostile client wrote: what is left out, and the steps it is made in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from consumerd.base.partition import TopicPartition
from consumerd.group import events as e
from consumerd.group import target_assignment as module
from consumerd.group.assignment import Assignment
from consumerd.group.assignors import Wanted
from consumerd.group.rules import Topics, V07Rules
from consumerd.group.target_assignment import MAX_STREAMS_OF_TOPIC, TargetAssignmentBuilder
from consumerd.wire.registry.errors import DialectError, RegistryError
from consumerd.wire.registry.subscription import FilterSubscription, StaticSubscription, Subscription
from consumerd.wire.registry.topic_filter import FilterKind, TopicFilter, _matches

ME = "g_m"
#: Takes more steps for a name than are allowed.
INTRICATE = "(?:a?){60}" * 30 + "b"


def builder(subscription: Subscription | None = None, rules: V07Rules | None = None) -> TargetAssignmentBuilder:
    return TargetAssignmentBuilder(ME, subscription or StaticSubscription({"t": 1}), rules or V07Rules())


def snapshot(members: dict[str, str], count: int = 4) -> e.MembershipSnapshot:
    return e.MembershipSnapshot(members, None, {"t": {0: range(count)}}, {})


@dataclass
class Step:
    """What was done in one step."""

    read: int = 0
    matched: int = 0
    #: Topics whose partitions were assigned.
    assigned: int = 0


class Watched(V07Rules):
    """Counts what is done in each step."""

    def __init__(self) -> None:
        self.step = Step()

    def parse(self, data: bytes | str | None) -> Subscription:
        self.step.read += 1
        return super().parse(data)

    def streams_for(self, subscription: FilterSubscription, topic: str) -> int:
        self.step.matched += 1
        return super().streams_for(subscription, topic)

    def owners(self, topics: Topics, members: Mapping[str, Wanted]) -> Assignment:
        self.step.assigned += len(topics)
        return super().owners(topics, members)


def steps_of(
    members: Mapping[str, str], topics: Mapping[str, int], subscription: Subscription | None = None
) -> list[Step]:
    """Return what each step does, without the last one, which ends early."""
    rules = Watched()
    found = e.MembershipSnapshot(members, None, {topic: {0: range(count)} for topic, count in topics.items()}, {})
    steps = []
    for _ in builder(subscription, rules).steps(found):
        steps.append(rules.step)
        rules.step = Step()
    return steps


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


@pytest.fixture
def ten_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic has at most ten streams."""
    monkeypatch.setattr(module, "MAX_STREAMS_OF_TOPIC", 10)


@pytest.mark.usefixtures("ten_streams")
def test_leaves_out_no_member_while_all_fit() -> None:
    made = builder()
    target = made.build(snapshot({"g_a": '{ "t": 4 }', "g_b": '{ "t": 5 }'}, count=10))
    assert len(target.own) == 1
    assert made.take_warnings() == []


@pytest.mark.usefixtures("ten_streams")
def test_member_that_is_left_out_is_assigned_nothing_and_the_rest_fits_exactly() -> None:
    made = builder()
    members = {"g_a": '{ "t": 9 }', "g_b": '{ "t": 6 }', "g_c": '{ "t": 3 }'}
    assert len(made.build(snapshot(members, count=10)).own) == 1  # one for each stream of g_b, g_c and ours
    (warning,) = made.take_warnings()
    assert "member g_a is excluded" in warning


@pytest.mark.usefixtures("ten_streams")
def test_never_leaves_out_itself_or_members_of_other_topics() -> None:
    made = builder(StaticSubscription({"t": 20}))
    members = {"g_a": '{ "t": 1 }', "g_b": '{ "u": 1 }'}
    assert len(made.build(snapshot(members)).own) == 4
    (warning,) = made.take_warnings()
    assert "member g_a is excluded" in warning


def test_leaves_out_a_member_whose_filter_cannot_be_applied_to_a_topic_with_one_warning() -> None:
    topic = "a" * 250
    made = builder(StaticSubscription({topic: 1}))
    for count in (2, 3):
        found = e.MembershipSnapshot({"g_a": f"*1*{INTRICATE}"}, None, {topic: {0: range(count)}}, {})
        assert len(made.build(found).own) == count
    (warning,) = made.take_warnings()
    assert f"member g_a is excluded from the assignment of topic '{topic}'" in warning


def test_does_not_warn_of_topics_to_which_this_member_does_not_subscribe() -> None:
    made = builder(FilterSubscription(TopicFilter(FilterKind.WHITELIST, "t.*"), 1))
    topics = {"t": {0: range(1)}, "a" * 250: {0: range(1)}}
    target = made.build(e.MembershipSnapshot({"g_z": f"*1*{INTRICATE}"}, None, topics, {}))
    assert target.own.keys() == {TopicPartition("t", 0, 0)}
    assert made.take_warnings() == []


def test_remembers_a_limited_number_of_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_REMEMBERED", 5)
    made = builder()

    def warned(number: int) -> bool:
        made.build(snapshot({f"g_{number}": "not a subscription"}))
        made.build(snapshot({}))
        return bool(made.take_warnings())

    assert [warned(number) for number in (1, 2, 3, 1, 2, 3)] == [True] * 3 + [False] * 3
    assert all(warned(number) for number in range(10, 20))  # a peer with new ids all the time
    assert warned(1)


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


def test_reads_many_members_in_each_step() -> None:
    steps = [step for step in steps_of({f"g_{n}": '{ "t": 1 }' for n in range(1000)}, {"t": 1}) if step.read]
    assert len(steps) > 4
    assert all(50 <= step.read <= 200 for step in steps[:-1])  # each takes some 20 microseconds


def test_reads_each_long_filter_in_a_step_of_its_own() -> None:
    def steps(text: str) -> list[Step]:
        return steps_of({f"g_{n}": text for n in range(10)}, {"t": 1})

    assert steps('{ "t": 1 }'.ljust(1000)) == []
    for text in ("*1*" + "a|b" * 333, "*1*" + "a|b" * 333 + "("):  # the second one is found invalid at its end
        assert [step.read for step in steps(text)][:10] == [1] * 10


@pytest.mark.parametrize("own", [True, False])
def test_applies_a_filter_to_many_topics_in_steps_of_some_milliseconds(own: bool) -> None:
    wanted = TopicFilter(FilterKind.WHITELIST, "u|" + "t?" * 40 + "[0-9]+")
    topics = {f"t{number:03}": 0 for number in range(400)}
    if own:
        steps = steps_of({}, topics, FilterSubscription(wanted, 1))
    else:
        steps = steps_of({"g_a": f"*1*{wanted.text}"}, topics, StaticSubscription(dict.fromkeys(topics, 1)))
    milliseconds = [step.matched * wanted.steps_for("t000") * 0.5e-3 for step in steps if step.matched]
    assert len(milliseconds) > 5
    assert all(1.0 <= each <= 4.0 for each in milliseconds[:-1])


def test_looks_up_many_static_subscriptions_in_each_step() -> None:
    topics = {f"t{number}": 1 for number in range(200)}
    steps = steps_of({f"g_{n}": '{ "u": 1 }' for n in range(199)}, topics, StaticSubscription(dict.fromkeys(topics, 1)))
    looked_up = [step for step in steps if not step.read and not step.assigned]
    assert 10 <= len(looked_up) <= 60  # 200 topics times 200 members, each in less than a microsecond


@pytest.mark.parametrize(
    ("members", "streams", "partitions"),
    [
        pytest.param(150, 1, 1, id="members"),
        pytest.param(0, 1500, 1, id="streams"),
        pytest.param(0, 1, 700, id="partitions"),
    ],
)
def test_assigns_each_large_topic_in_a_step_of_its_own(members: int, streams: int, partitions: int) -> None:
    topics = {f"t{number}": partitions for number in range(20)}
    others = {f"g_{number}": '{ "u": 1 }' for number in range(members)}
    steps = steps_of(others, topics, StaticSubscription(dict.fromkeys(topics, streams)))
    assert [step.assigned for step in steps if step.assigned] == [1] * 20


def test_assigns_many_small_topics_in_each_step() -> None:
    topics = {f"t{number}": 1 for number in range(1000)}
    steps = steps_of({}, topics, StaticSubscription(dict.fromkeys(topics, 1)))
    assigned = [step.assigned for step in steps if step.assigned]
    assert len(assigned) > 4
    assert all(20 <= count <= 200 for count in assigned[1:-1])


def test_each_intricate_filter_is_a_step_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_STEP", 2000)
    topic = "a" * 250
    members = {f"g_hostile-{number}": f"*1*{INTRICATE}{number}" for number in range(5)}
    made = builder(StaticSubscription({topic: 1}))
    found = e.MembershipSnapshot(members, None, {topic: {0: range(2)}}, {})
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
