from __future__ import annotations

from collections import Counter
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from consumerd.group.assignment import assign, java_order, partitions_of
from consumerd.wire.registry.subscription import StaticSubscription

BROKERS = st.dictionaries(st.integers(0, 120), st.integers(1, 15), max_size=5)
MEMBERS = st.dictionaries(st.text("ab-_01\u00e9", min_size=1, max_size=4), st.integers(1, 5), min_size=1, max_size=6)


@given(BROKERS, MEMBERS)
def test_assigns_every_partition_once_in_shares_that_differ_by_one_at_most(
    brokers: dict[int, int], members: dict[str, int]
) -> None:
    owners = assign({"t": brokers}, {name: StaticSubscription({"t": streams}) for name, streams in members.items()})
    partitions = partitions_of("t", brokers)
    assert sorted(owners) == sorted(partitions)
    streams = sorted(
        ((name, number) for name, count in members.items() for number in range(count)),
        key=lambda stream: java_order(f"{stream[0]}-{stream[1]}"),
    )
    # Two streams may bear one name ("a" stream "b-1"? never: numbers have no dash), so each is counted apart.
    shares = [Counter(owners.values())[stream] for stream in streams]
    assert sum(shares) == len(partitions)
    assert all(before >= after for before, after in pairwise(shares))
    assert max(shares) - min(shares) <= 1
    # Chunks: in the order of names, owners follow one another in the order of the streams.
    order = [streams.index(owners[partition]) for partition in sorted(partitions, key=lambda each: each.name)]
    assert order == sorted(order)


@given(BROKERS, MEMBERS, st.randoms())
def test_assignment_does_not_depend_on_the_order_of_input(
    brokers: dict[int, int], members: dict[str, int], random: object
) -> None:
    subscriptions = {name: StaticSubscription({"t": streams}) for name, streams in members.items()}
    turned = dict(reversed(subscriptions.items()))
    assert assign({"t": brokers}, subscriptions) == assign({"t": dict(reversed(brokers.items()))}, turned)
