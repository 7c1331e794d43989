"""Metrics of several partitions and several members in one series: what is added, and what is not."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from consumerd.base.errors import BrokerError
from consumerd.base.metrics.histogram import Histogram
from consumerd.base.partition import TopicPartition
from consumerd.member.consumer.owned_partition import OwnedView
from consumerd.member.consumer.partition_work import BatchInHand
from consumerd.member.consumer.running_member import RunningMember
from consumerd.member.consumer.stats import ConsumerStats
from consumerd.member.fetch.listener import FetchCounters
from consumerd.service.config.model import parse
from consumerd.service.daemon.monitor import Monitor
from consumerd.service.daemon.readings import read
from consumerd.testing.clock import FakeClock

ONE, TWO = (TopicPartition.numbered("t", number) for number in range(2))


class Member:
    """Owns partitions, with the offset and the age in seconds of the next message of each; their logs end at 100."""

    def __init__(self, clock: FakeClock, owned: dict[TopicPartition, tuple[int, int]], seconds: float) -> None:
        """`seconds`: how long ago the first partition's last message was handled, and twice that of each further."""
        self.settings = SimpleNamespace(group="g", fetch=SimpleNamespace(read_committed=False))
        self.ready, self.stopping = asyncio.Event(), asyncio.Event()
        self.ready.set()
        self.in_session = self.settled = True
        self.turns = self.waiting_events = 0
        self.blocked, self.unregistered = {ONE: object()}, [TopicPartition("u", 0, 0)]
        self.assigned = list(owned)
        self.registered = round(seconds)
        self.silent: set[TopicPartition] = set()
        self.budget = SimpleNamespace(used=1, limit=2)
        self.controls, self.fetched, self.stats = self, FetchCounters(fetches=3), ConsumerStats(commits=5, rebalances=2)
        self.stats.rebalance_seconds.observe(1.0)
        self._clock, self._owned = clock, owned
        for number, partition in enumerate(owned, 1):
            ended = clock.monotonic() - seconds * number
            self.stats.of(partition).handled(10, 10, ended - 1.0, ended)

    def views(self) -> list[OwnedView]:
        wall = self._clock.wall()
        return [
            OwnedView(each, 0, offset, offset - 1, True, 0, 0, None, round((wall - age) * 1000))
            for each, (offset, age) in self._owned.items()
        ]

    def in_hand(self) -> dict[TopicPartition, BatchInHand]:
        return {each: BatchInHand(self._clock.monotonic() - age, 0, 0, 1) for each, (_, age) in self._owned.items()}

    def brokers(self) -> int:
        return self.registered

    def known_end(self, partition: TopicPartition) -> None:
        return None

    async def log_end(self, partition: TopicPartition) -> int:
        if partition in self.silent:
            raise BrokerError("no answer")
        return 100


async def values(monitor: Monitor) -> dict[tuple[str, ...], Any]:
    """Each reading by its name without the prefix, and its labels after the group."""
    for part in monitor.subscriptions:
        part.handler_counts.failures["t"] = 4
        await part.look_at_lag()
        part.look_after_health()
    found = {}
    for metric, labels, value in read(monitor):
        key = (metric.name.removeprefix("consumerd_"), *labels[1:])
        assert key not in found, "a series has one value"
        found[key] = sum(value.counts) if isinstance(value, Histogram) else value
    return found


def made(*subscriptions: str, partition_labels: bool = True) -> tuple[Monitor, FakeClock]:
    tables = {
        "group": {"id": "g", "topics": {"t": 1}},
        "metrics": {"partition_labels": partition_labels},
        "subscriptions": [{"name": name, "topics": {name: 1}, "handler": {"name": "null"}} for name in subscriptions],
    }
    clock = FakeClock()
    return Monitor(parse(tables, "test", environment=False), clock), clock


async def test_series_of_a_topic_add_amounts_and_have_the_largest_of_times() -> None:
    monitor, clock = made(partition_labels=False)
    member = Member(clock, {ONE: (60, 300), TWO: (90, 200)}, seconds=20.0)
    monitor.watch(cast("RunningMember[Any]", member))
    found = await values(monitor)
    topic = ("t", "", "")
    assert {name: found[name, *topic] for name in ("lag", "messages_handled_total")} == {
        "lag": 50,
        "messages_handled_total": 20,
    }
    assert found["lag_seconds", *topic] == pytest.approx(300.0)
    assert found["since_handled_seconds", *topic] == pytest.approx(40.0)
    assert found["last_handled_timestamp_seconds", *topic] == pytest.approx(clock.wall() - 20.0)
    assert not [key for key in found if key[0] in ("position_offset", "committed_offset")]  # which have no sum


async def test_series_of_a_topic_has_no_lag_while_that_of_a_partition_is_unknown() -> None:
    monitor, clock = made(partition_labels=False)
    member = Member(clock, {ONE: (60, 300), TWO: (90, 200)}, seconds=20.0)
    monitor.watch(cast("RunningMember[Any]", member))
    member.silent = {TWO}
    found = await values(monitor)
    assert not [key for key in found if key[0] == "lag"]
    assert found["lag_seconds", "t", "", ""] == pytest.approx(300.0)
    assert found["lag_unknown_partitions",] == 2


async def test_ages_of_messages_are_shown_once_there_are_some() -> None:
    monitor, clock = made()
    member = Member(clock, {ONE: (60, 5)}, seconds=20.0)
    monitor.watch(cast("RunningMember[Any]", member))
    assert ("message_age_seconds", "t") not in await values(monitor)
    member.stats.topics["t"].aged(3, 0.5, 0.25)
    assert (await values(monitor))["message_age_seconds", "t"] == 3


async def test_partitions_whose_age_is_unknown_have_no_series_of_it() -> None:
    monitor, clock = made()
    member = Member(clock, {ONE: (60, -5), TWO: (100, -5)}, seconds=20.0)
    monitor.watch(cast("RunningMember[Any]", member))
    found = await values(monitor)
    assert {key[2:]: value for key, value in found.items() if key[0] == "lag_seconds"} == {("", "1"): 0.0}
    assert {key[2:]: value for key, value in found.items() if key[0] == "lag"} == {("", "0"): 40, ("", "1"): 0}


#: What the members of a process in one group have together, of two that have 1 and 3, or the same.
SUMS = {
    "assigned_partitions": 2,
    "owned_partitions": 2,
    "paused_partitions": 2,
    "blocked_claims": 2,
    "lag_unknown_partitions": 2,
    "rebalances_total": 4,
    "rebalance_duration_seconds": 2,
    "commits_total": 10,
    "fetches_total": 6,
    "handlers_hung": 1,
}


async def test_series_of_a_group_have_the_sums_and_the_worst_of_its_members() -> None:
    monitor, clock = made("other")
    other = TopicPartition.numbered("other", 0)
    members = [Member(clock, {ONE: (60, 300)}, 1.0), Member(clock, {other: (90, 2)}, 3.0)]
    for part, member in zip(monitor.subscriptions, members, strict=True):
        monitor.watch(cast("RunningMember[Any]", member), None, part)
    members[1].in_session = False
    found = await values(monitor)
    assert {name: found[name,] for name in SUMS} == SUMS
    worst = {"member_ready": 0, "session_up": 0, "registered_brokers": 1}
    assert {name: found[name,] for name in worst} == worst
    assert found["handler_busy_seconds",] == pytest.approx(300.0)
    assert found["handler_failures_total", "t"] == 8
    assert (found["handler_duration_seconds", "t"], found["handler_duration_seconds", "other"]) == (1, 1)
