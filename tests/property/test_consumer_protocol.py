"""The machine of the consumer protocol against a model of the coordinator: what never happens, and what always does.

Machines that are broken on purpose must be caught.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumerd.base.partition import TopicPartition
from consumerd.group.consumer_protocol import ConsumerProtocolMember
from tests.property.consumer_group import Group

SEEDS = st.integers(0, 2**32)


@settings(max_examples=60, deadline=None)
@given(seed=SEEDS)
def test_no_partition_is_delivered_twice_and_all_are_owned_in_the_end(seed: int) -> None:
    Group(seed).play()


class StartsAtOnce(ConsumerProtocolMember):
    """Begins what an earlier answer named, while a heartbeat that did not name it is under way."""

    def _start(self) -> None:
        self._answered = True
        super()._start()


class ForgetsDrains(ConsumerProtocolMember):
    """Says that it has released what handlers still hold."""

    def _drain(self, partitions: frozenset[TopicPartition]) -> None:
        super()._drain(partitions)
        for partition in partitions:
            del self._held[partition]


class LongLease(ConsumerProtocolMember):
    """Counts its lease without the rebalance timeout."""

    @property
    def lease_until(self) -> float:
        return self._confirmed_at + self._settings.session_timeout if self.session_id else -1.0


class LateLease(ConsumerProtocolMember):
    """Counts its lease from the answer."""

    @property
    def lease_until(self) -> float:
        return super().lease_until + 2.0


class KeepsAll(ConsumerProtocolMember):
    """Takes a rejection for a hiccup."""

    def _lose(self) -> None:
        self.generation = 0
        self._urgent = True


@pytest.mark.parametrize(
    ("broken", "seed"), [(ForgetsDrains, 0), (LongLease, 0), (LateLease, 10), (KeepsAll, 0), (StartsAtOnce, 10)]
)
def test_broken_machine_is_caught(broken: type[ConsumerProtocolMember], seed: int) -> None:
    def play() -> None:
        for number in range(seed, seed + 20):
            Group(number, broken).play()

    with pytest.raises(AssertionError):
        play()
