"""One partition at its leader: what responses mean for it."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from consumerd.fetch import FetchSettings
from consumerd.fetch.fetcher import PartitionResponse
from consumerd.fetch.response import FetchOutcome
from consumerd.fetch.v08.brokers import V08Brokers, V08Source
from consumerd.partition import TopicPartition
from consumerd.testing.clock import FakeClock

if TYPE_CHECKING:
    from consumerd.fetch import Lane

T0, U0 = (TopicPartition.numbered(topic, 0) for topic in "tu")


@pytest.fixture
def brokers() -> V08Brokers:
    nobody: Any = SimpleNamespace(stale=lambda topics: None)
    return V08Brokers(nobody, FetchSettings(), FakeClock(), random.Random(1), nobody)


def source(brokers: V08Brokers, partition: TopicPartition) -> V08Source:
    return brokers.source(partition, cast("Lane", None))


def empty() -> PartitionResponse:
    return PartitionResponse(1, 0, b"", 10, cast("Any", None), 0)


def test_names_the_permission_that_a_fetch_lacks(brokers: V08Brokers) -> None:
    assert source(brokers, T0).refusal(29) == (
        "a fetch of t/0: TOPIC_AUTHORIZATION_FAILED (error 29): the client lacks the permission Read on the topic 't'"
    )


def test_counts_partitions_that_may_not_be_read(brokers: V08Brokers) -> None:
    denied = brokers.services.counters.denied
    both = [source(brokers, partition) for partition in (T0, U0)]
    for each in both:
        each.refusal(6)
        assert denied == set()
    for _ in range(2):
        for each in both:
            each.refusal(29)
    assert denied == {T0, U0}
    both[0].classified(FetchOutcome.EMPTY, empty(), 0)
    assert denied == {U0}
    brokers.release(U0)
    assert denied == set()
