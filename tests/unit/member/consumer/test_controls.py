"""Requests of a program for its partitions, such as seek and pause."""

from __future__ import annotations

from typing import Any, cast

import pytest

from consumerd.base.errors import BrokerError
from consumerd.base.partition import TopicPartition
from consumerd.member.consumer.controls import PartitionControls
from consumerd.member.consumer.errors import NotAssignedError
from consumerd.member.offsets.store import ZooKeeperOffsetStore
from consumerd.testing.memory_zookeeper import MemoryZooKeeper
from consumerd.wire.registry.paths import offset_path, owner_path
from consumerd.wire.v07 import EARLIEST, LATEST

PLACE = TopicPartition("t", 0, 0)


async def test_reading_committed_offsets_does_not_affect_next_commit() -> None:
    server, unused = MemoryZooKeeper(), cast("Any", None)
    async with server.session() as zk:
        server.put(owner_path("g", PLACE), b"g_me-0", session_id=zk.session_id)
        store = ZooKeeperOffsetStore(zk, "g")
        await store.commit({PLACE: 10}, session_id=zk.session_id)
        server.put(offset_path("g", PLACE), b"20")
        assert await PartitionControls(unused, unused, store).committed(PLACE) == {PLACE: 20}
        await store.commit({PLACE: 12}, session_id=zk.session_id)
        assert server.tree.data(offset_path("g", PLACE)) == b"20"


class Partitions:
    """The partitions of a member: `b` is ours and its position is not known yet."""

    def __init__(self) -> None:
        self.positions: dict[TopicPartition, int | None] = {A: 100, B: None, C: 7}
        self.held: dict[TopicPartition, bool] = {}

    @property
    def partitions(self) -> list[TopicPartition]:
        return list(self.positions)

    def position(self, partition: TopicPartition) -> int | None:
        return self.positions.get(partition)

    def stream(self, partition: TopicPartition) -> int:
        return partition.partition + 10

    def pause(self, partition: TopicPartition, held: bool) -> bool:
        self.held[partition] = held
        return partition in self.positions

    def seek(self, partition: TopicPartition, offset: int) -> bool:
        if partition == C:  # it goes at this moment
            return False
        self.positions[partition] = offset
        return True

    async def commit_now(self) -> dict[TopicPartition, int]:
        return {A: 100}


class Brokers:
    """Answers with the end 120 of each log; the start is unknown."""

    def __init__(self) -> None:
        self.asked: list[tuple[TopicPartition, int, int]] = []
        #: Of logs with messages behind an open transaction.
        self.log_ends: dict[TopicPartition, int] = {}

    async def list_offsets(self, partition: TopicPartition, time: int, max_number: int) -> tuple[int, ...]:
        self.asked.append((partition, time, max_number))
        return (120, 60)[:max_number] if time == LATEST else ()

    def known_end(self, partition: TopicPartition) -> int | None:
        return self.log_ends.get(partition)

    async def log_end(self, partition: TopicPartition) -> int:
        return self.log_ends.get(partition, 120)


A, B, C, OTHER = (TopicPartition("t", 0, number) for number in range(4))


def made() -> tuple[PartitionControls, Partitions, Brokers]:
    partitions, brokers = Partitions(), Brokers()
    unused = cast("Any", None)
    return PartitionControls(cast("Any", partitions), cast("Any", brokers), unused), partitions, brokers


async def test_assignment_has_partitions_with_a_position() -> None:
    controls, partitions, _ = made()
    partitions.positions = dict(reversed(partitions.positions.items()))
    assert list(controls.assignment().items()) == [(A, 10), (C, 12)]
    assert controls.position(A) == 100
    for partition in (B, OTHER):
        with pytest.raises(NotAssignedError) as refused:
            controls.position(partition)
        assert refused.value.partition == partition


async def test_pauses_and_resumes_only_what_is_ours() -> None:
    controls, partitions, _ = made()
    controls.pause(A, C)
    assert partitions.held == {A: True, C: True}
    controls.resume(A)
    assert partitions.held == {A: False, C: True}
    for request in (controls.pause, controls.resume):
        with pytest.raises(NotAssignedError):
            request(A, OTHER)


async def test_seeks_to_offsets_and_to_the_end() -> None:
    controls, partitions, brokers = made()
    assert await controls.seek(A, 0) == 0
    assert partitions.positions[A] == 0
    assert brokers.asked == []
    assert await controls.seek(A, LATEST) == 120
    assert partitions.positions[A] == 120
    assert brokers.asked == [(A, LATEST, 1)]
    for partition in (B, C, OTHER):
        with pytest.raises(NotAssignedError):
            await controls.seek(partition, 5)
    invalid: Any
    for invalid in (-3, 5.5, "5", None):
        with pytest.raises(ValueError, match="an offset must be a number from 0 on, EARLIEST or LATEST, not"):
            await controls.seek(A, invalid)
    assert partitions.positions[A] == 120


async def test_names_a_broker_without_offsets() -> None:
    controls, _, brokers = made()
    with pytest.raises(BrokerError, match="broker 0 returned no offset of"):
        await controls.seek(A, EARLIEST)
    assert await controls.offsets_before(A, 1234) == ()  # no segment is that old
    assert await controls.offsets_before(A, 0, 5) == ()
    assert await controls.offsets_before(A, LATEST, 2) == (120, 60)
    assert [number for _, _, number in brokers.asked] == [1, 1, 5, 2]


async def test_lag_is_what_lies_behind_the_position() -> None:
    controls, partitions, brokers = made()
    assert await controls.end_offsets() == {A: 120, C: 120}
    assert brokers.asked == [(A, LATEST, 1), (C, LATEST, 1)]
    assert await controls.end_offsets(B) == {B: 120}
    assert await controls.lag() == {A: 20, C: 113}
    assert await controls.lag(C) == {C: 113}
    brokers.log_ends[C] = 140  # an open transaction begins at 120
    assert await controls.end_offsets(C) == {C: 120}
    assert await controls.lag() == {A: 20, C: 133}
    partitions.positions[A] = 130  # the log has been recreated
    assert await controls.lag(A) == {A: 0}
    assert await controls.commit() == {A: 100}
