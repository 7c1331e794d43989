from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from consumerd.base.partition import TopicPartition
from consumerd.group.assignment import java_order
from consumerd.group.assignors import (
    Spelling,
    agrees_on_streams,
    java_hash,
    range_owners,
    range_shares,
    roundrobin_owners,
    roundrobin_shares,
)
from consumerd.wire.registry.subscription import StaticSubscription

NAMES = st.text("ab-_01\u00e9\U0001f600", min_size=1, max_size=4)
TOPICS = st.dictionaries(st.sampled_from(["a", "b", "b-1", "c.d"]), st.integers(1, 14), max_size=4)
STREAMS = st.dictionaries(st.sampled_from(["a", "b", "b-1", "c.d", "unknown"]), st.integers(1, 3), min_size=1)
OLD = st.dictionaries(NAMES, STREAMS.map(StaticSubscription), min_size=1, max_size=5)
NEW = st.dictionaries(NAMES, st.sets(st.sampled_from(["a", "b", "b-1", "c.d", "unknown"])), min_size=1, max_size=5)


@given(TOPICS, OLD, st.sampled_from(Spelling))
def test_assigns_every_required_partition_to_a_subscriber(
    topics: dict[str, int], members: dict[str, StaticSubscription], spelling: Spelling
) -> None:
    numbers = {topic: range(count) for topic, count in topics.items()}
    wanted = {
        TopicPartition.numbered(topic, number)
        for topic, found in numbers.items()
        for number in found
        if any(member.streams_for(topic) for member in members.values())
    }
    for owners in (range_owners(numbers, members), roundrobin_owners(numbers, members, spelling=spelling)):
        assert owners.keys() == wanted
        assert all(stream < members[owner].streams_for(one.topic) for one, (owner, stream) in owners.items())


@given(TOPICS, st.dictionaries(NAMES, st.integers(1, 3), min_size=1, max_size=5), st.sampled_from(Spelling))
def test_roundrobin_is_even_for_equal_subscriptions(
    topics: dict[str, int], streams: dict[str, int], spelling: Spelling
) -> None:
    members = {name: StaticSubscription(dict.fromkeys([*topics, "unknown"], count)) for name, count in streams.items()}
    assert agrees_on_streams(topics, members)
    owners = roundrobin_owners({topic: range(count) for topic, count in topics.items()}, members, spelling=spelling)
    shares = Counter(owners.values())
    everyone = [(name, number) for name, count in streams.items() for number in range(count)]
    assert max(shares[stream] for stream in everyone) - min(shares[stream] for stream in everyone) <= 1


@given(TOPICS, OLD, st.randoms())
def test_assignment_does_not_depend_on_the_order_of_input(
    topics: dict[str, int], members: dict[str, StaticSubscription], random: object
) -> None:
    numbers = {topic: range(count) for topic, count in topics.items()}
    turned = {topic: list(reversed(found)) for topic, found in reversed(numbers.items())}
    others = dict(reversed(members.items()))
    assert range_owners(numbers, members) == range_owners(turned, others)
    assert roundrobin_owners(numbers, members) == roundrobin_owners(turned, others)


@given(TOPICS, OLD)
def test_range_assigns_chunks_of_numbers(topics: dict[str, int], members: dict[str, StaticSubscription]) -> None:
    owners = range_owners({topic: range(count) for topic, count in topics.items()}, members)
    for topic, count in topics.items():
        order = sorted(
            ((name, number) for name, member in members.items() for number in range(member.streams_for(topic))),
            key=lambda stream: java_order(f"{stream[0]}-{stream[1]}"),
        )
        if order:
            places = [order.index(owners[TopicPartition.numbered(topic, number)]) for number in range(count)]
            assert places == sorted(places)
            sizes = [places.count(place) for place in range(len(order))]
            assert sizes == sorted(sizes, reverse=True)
            assert sizes[0] - sizes[-1] <= 1


@given(TOPICS, NEW)
def test_shares_hold_every_required_partition_once(topics: dict[str, int], members: dict[str, set[str]]) -> None:
    wanted = Counter(
        (topic, number)
        for topic, count in topics.items()
        for number in range(count)
        if any(topic in found for found in members.values())
    )
    for deal in (range_shares, roundrobin_shares):
        shares = deal(topics, members)
        assert shares.keys() == members.keys()
        assert all(topic in members[member] for member, share in shares.items() for topic in share)
        assert all(numbers == sorted(numbers) and numbers for share in shares.values() for numbers in share.values())
        dealt = Counter(
            (topic, number) for share in shares.values() for topic, numbers in share.items() for number in numbers
        )
        assert dealt == wanted


def test_static_members_come_first() -> None:
    members = {"a": {"t"}, "b": {"t"}, "c": {"t"}}
    shares = range_shares({"t": 4}, members, {"c": "z", "b": "y"})
    assert shares == {"b": {"t": [0, 1]}, "c": {"t": [2]}, "a": {"t": [3]}}
    assert roundrobin_shares({"t": 3}, members, {"c": "x"}) == {"c": {"t": [0]}, "a": {"t": [1]}, "b": {"t": [2]}}


def test_sorts_ten_after_nine() -> None:
    owners = range_owners({"t": range(11)}, {"a": StaticSubscription({"t": 1}), "b": StaticSubscription({"t": 1})})
    assert [owners[TopicPartition.numbered("t", number)][0] for number in range(11)] == ["a"] * 6 + ["b"] * 5


def test_hashes_strings_as_java_does() -> None:
    """As jshell says."""
    assert [java_hash(text) for text in ("", "a", "og.t1-0", "[og.t1,0]")] == [0, 97, -1571517706, 1552958913]
    assert java_hash("polygenelubricants") == -(2**31)


def test_roundrobin_orders_by_hash_not_by_number() -> None:
    """Brackets: "[t,10]" is longer than "[t,9]", and its hash far away."""
    members = {name: StaticSubscription({"topic": 1}) for name in ("a", "b")}
    for spelling in Spelling:
        owners = roundrobin_owners({"topic": range(12)}, members, spelling=spelling)
        order = sorted(range(12), key=lambda number: java_hash(spelling.value.format("topic", number)))
        assert [owners[TopicPartition.numbered("topic", number)][0] for number in order] == ["a", "b"] * 6
