"""Alive and ready are two things, and a handler that hangs is seen by its progress."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from consumerd.base.partition import TopicPartition
from consumerd.handlers.counts import HandlerCounts
from consumerd.member.consumer.owned_partition import OwnedView
from consumerd.member.consumer.partition_work import BatchInHand
from consumerd.service.daemon.health import STUCK_AFTER, UNREACHABLE_AFTER, Health
from consumerd.testing.clock import FakeClock

A, B = TopicPartition("t", 0, 0), TopicPartition("t", 0, 1)


class Member:
    """As much of a member as health looks at."""

    def __init__(self) -> None:
        self.ready, self.stopping = asyncio.Event(), asyncio.Event()
        self.ready.set()
        self.in_session = self.settled = True
        self.turns = self.waiting_events = 0
        self.batches: dict[TopicPartition, BatchInHand] = {}
        self.position: int | None = 0
        self.registered: int | None = 2
        self.settings = SimpleNamespace(group="g")

    def views(self) -> list[OwnedView]:
        return [OwnedView(each, 0, self.position, 0, False, 0, 0, self.batches.get(each)) for each in (A, B)]

    def brokers(self) -> int | None:
        return self.registered

    def in_hand(self) -> dict[TopicPartition, BatchInHand]:
        return self.batches


def made() -> tuple[Health, Any, FakeClock]:
    clock, member = FakeClock(), Member()
    health = Health(clock, hung_after=10.0)
    assert health.unready == ["starting"]
    health.watch(member)  # type: ignore[arg-type]
    return health, member, clock


def test_readiness_follows_the_state_of_the_member() -> None:
    health, member, _ = made()
    assert health.unready == []
    member.in_session = False
    assert health.unready == ["session_lost"]
    member.settled = False
    assert health.unready == ["session_lost", "rebalancing"]
    member.ready.clear()
    assert health.unready == ["joining"]
    member.stopping.set()
    assert health.unready == ["stopping"]
    assert health.sick is None


def test_partition_without_a_start_offset_is_not_consumed_yet() -> None:
    health, member, _ = made()
    member.position = None
    assert health.unready == ["rebalancing"]


def test_a_full_disk_is_a_reason() -> None:
    counts, clock = HandlerCounts(), FakeClock()
    health = Health(clock, hung_after=10.0, counts=counts)
    health.watch(Member())  # type: ignore[arg-type]
    counts.disk_full = 2
    assert health.unready == ["disk_full"]
    counts.disk_full = 0
    assert health.unready == []


def test_only_a_batch_without_progress_is_hung() -> None:
    health, member, clock = made()
    began = clock.monotonic()
    for second in range(12):
        member.batches = {A: BatchInHand(began, 0, 0, 100), B: BatchInHand(began, 0, second, 100)}
        health.look()
        clock.jump(1.0)
    assert health.hung == [A]
    assert health.unready == ["handler_hung"]
    assert health.sick is None
    member.batches[A] = BatchInHand(clock.monotonic(), 100, 0, 100)
    health.look()
    assert health.hung == []
    member.batches = {}
    health.look()
    assert health.busy() == {}


def test_age_of_a_batch_counts_from_its_delivery() -> None:
    health, member, clock = made()
    member.batches = {A: BatchInHand(clock.monotonic(), 0, 0, 1)}
    clock.jump(10.0)
    health.look()
    assert health.hung == [A]


def test_member_that_does_not_read_its_queue_is_not_alive() -> None:
    health, member, clock = made()
    health.look()
    member.waiting_events = 3
    for _ in range(int(STUCK_AFTER)):
        clock.jump(1.0)
        member.turns += 1
        health.look()
    words = [health.sick]
    for _ in range(int(STUCK_AFTER)):
        clock.jump(1.0)
        health.look()
    words.append(health.sick)
    member.turns += 1
    health.look()
    assert [*words, health.sick] == [None, "member_stuck", None]


@pytest.mark.parametrize("waiting_events", [0, 3])
def test_member_of_a_process_that_was_frozen_is_alive(waiting_events: int) -> None:
    """At the first probe, before anything else has run, and at the next ones, before the main loop has."""
    health, member, clock = made()
    health.look()
    member.waiting_events = waiting_events
    clock.jump(1.0)
    health.look()
    clock.jump(10 * STUCK_AFTER)
    words = [health.sick]
    member.waiting_events = 3
    health.look()
    words.append(health.sick)
    clock.jump(1.0)
    health.look()
    assert [*words, health.sick] == [None, None, None]


def test_handler_of_a_process_that_was_frozen_is_not_hung_before_a_look() -> None:
    health, member, clock = made()
    member.batches = {A: BatchInHand(clock.monotonic(), 0, 0, 100)}
    health.look()
    clock.jump(1000.0)
    assert health.unready == []
    member.batches = {}  # it ends as soon as it runs
    health.look()
    assert health.unready == []


def test_stopping_member_is_alive_while_its_handlers_run() -> None:
    health, member, clock = made()
    member.waiting_events = 1
    member.stopping.set()
    for _ in range(2 * int(STUCK_AFTER)):
        clock.jump(1.0)
        health.look()
    assert health.sick is None


def test_logs_a_handler_that_hangs_when_it_begins_and_when_it_ends() -> None:
    health, member, clock = made()
    began = clock.monotonic()
    member.batches = {A: BatchInHand(began, 0, 0, 100), B: BatchInHand(began, 0, 0, 100)}
    with capture_logs() as logs:
        for second in range(20):
            member.batches[B] = BatchInHand(began, 0, min(second, 5), 100)
            health.look()
            clock.jump(1.0)
        member.batches = {}
        health.look()
    hung = {"event": "handler_hung", "log_level": "warning", "group": "g"}
    assert logs == [
        {**hung, "partitions": ["t/0-0"], "seconds": 10.0},
        {**hung, "partitions": ["t/0-1"], "seconds": 10.0},
        {"event": "handler_progressed", "log_level": "info", "group": "g"},
    ]


def test_one_line_names_few_of_many_partitions_that_hang() -> None:
    health, member, clock = made()
    member.batches = {TopicPartition("t", 0, each): BatchInHand(clock.monotonic(), 0, 0, 1) for each in range(50)}
    clock.jump(10.0)
    with capture_logs() as logs:
        health.look()
    (line,) = logs
    assert (len(line["partitions"]), line["more"]) == (20, 30)


def test_member_without_registered_brokers_is_not_ready_after_a_minute() -> None:
    health, member, clock = made()
    with capture_logs() as logs:
        for registered, seconds in ((None, UNREACHABLE_AFTER), (0, UNREACHABLE_AFTER - 1)):
            member.registered = registered
            health.look()
            clock.jump(seconds)
            health.look()
            assert health.unready == []
        clock.jump(1.0)
        health.look()
        assert health.unready == ["brokers_unreachable"]
        member.registered = 1
        health.look()
        assert health.unready == []
    assert [(line["event"], line["log_level"], line.get("reason")) for line in logs] == [
        ("brokers_unreachable", "warning", "no broker has been registered for 60 s"),
        ("brokers_reachable", "info", None),
    ]
