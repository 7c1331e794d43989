"""The record of an owned partition: its view, its end, and when its position is due."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from consumerd.base.budget import ByteBudget
from consumerd.base.partition import TopicPartition
from consumerd.member.consumer.owned_partition import OwnedPartition, OwnedView
from consumerd.member.consumer.partition_work import BatchInHand, PartitionWork
from consumerd.member.fetch.lane import Lane
from consumerd.wire.v07 import decode_batch, encode_message_set

TP = TopicPartition("t", 0, 1)


def owned(position: int | None, in_hand: BatchInHand | None = None) -> OwnedPartition:
    """A partition of stream 2; its start is not known yet without a position."""
    made = OwnedPartition(TP, 2, 7)
    if position is not None:
        work = SimpleNamespace(position=position, in_hand=in_hand, next_timestamp=7, end=lambda: None)
        made.work = cast("PartitionWork", work)
    return made


def test_shows_a_partition_whose_start_is_not_known() -> None:
    assert owned(None).view() == OwnedView(TP, 2, None, None, paused=False, queued=0, held_bytes=0, in_hand=None)


def test_shows_what_waits_and_what_the_handler_has() -> None:
    batch = BatchInHand(1000.0, 10, 0, 1)
    one = owned(10, batch)
    one.committed, one.paused = 5, True
    budget = ByteBudget(1 << 20)
    one.lane = Lane(TP, budget, max_bytes=1 << 20)
    messages = decode_batch(encode_message_set([b"x"]), 10)
    one.lane.put(messages, one.lane.budget.charge(messages.memory_bytes))
    assert one.view() == OwnedView(TP, 2, 10, 5, True, 1, messages.memory_bytes, batch, next_timestamp=7)


@pytest.mark.parametrize(
    ("position", "end", "beyond", "at_end"),
    [
        (None, 10, None, False),
        (10, None, None, False),
        (9, 10, None, False),
        (10, 10, None, True),
        (11, 10, None, True),
        # It started beyond the end of a log that was created again: only what is read from it since then counts.
        (12, 10, 12, False),
        (9, 10, 12, False),
        (10, 10, 12, True),
    ],
)
def test_is_at_the_end_when_all_messages_of_its_claim_are_handled(
    position: int | None, end: int | None, beyond: int | None, at_end: bool
) -> None:
    one = owned(position)
    if end is not None:
        one.end = end
    if beyond is not None:
        one.beyond = beyond
    assert one.at_end is at_end


@pytest.mark.parametrize(
    ("position", "committed", "written_at", "kept", "due"),
    [
        (None, 5, None, 60.0, False),
        (6, 5, 1000.0, None, True),
        (6, 5, 1000.0, 60.0, True),
        (4, 5, 1000.0, None, True),
        (5, 5, None, None, False),
        (5, 5, None, 60.0, True),
        (5, 5, 970.5, 60.0, False),
        (5, 5, 970.0, 60.0, True),
    ],
)
def test_is_due_when_it_moved_or_the_store_may_forget_it(
    position: int | None, committed: int, written_at: float | None, kept: float | None, due: bool
) -> None:
    one = owned(position)
    one.committed = committed
    if written_at is not None:
        one.written_at = written_at
    assert one.is_due(1000.0, kept) is due
