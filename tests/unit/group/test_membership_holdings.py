"""The partitions of a member by state and by the ticket of what is under way for them."""

from __future__ import annotations

from consumerd.base.partition import TopicPartition
from consumerd.group.membership_holdings import Holdings
from consumerd.group.membership_tables import Hold, HoldCause

P0, P1 = (TopicPartition("t", 0, number) for number in range(2))


def test_counts_a_partition_in_its_present_state_only() -> None:
    holdings = Holdings()
    holding = holdings.new(P0, 0)
    assert holdings.count(Hold.FREE) == 1
    holdings.move(holding, HoldCause.CLAIM, 1)
    assert (holdings.count(Hold.FREE), holdings.count(Hold.CLAIMING)) == (0, 1)
    holdings.move(holding, HoldCause.BLOCKED)
    assert holdings.count(*Hold) == 0
    assert len(holdings) == 0


def test_partition_without_an_action_under_way_waits_for_no_ticket() -> None:
    holdings = Holdings()
    holding = holdings.new(P0, 0)
    holdings.move(holding, HoldCause.CLAIM, 1)
    assert holdings.waiting_for(1) == [holding]
    holdings.move(holding, HoldCause.CLAIMED)
    assert holdings.waiting_for(1) == holdings.waiting_for(0) == []
    assert holdings.waiting_among(0, [P0]) == []


def test_forgets_a_ticket_when_its_last_partition_was_answered() -> None:
    holdings = Holdings()
    for partition in (P0, P1):
        holdings.move(holdings.new(partition, 0), HoldCause.CLAIM, 1)
    first, second = holdings.waiting_among(1, [P1, P0])
    assert (first.partition, second.partition) == (P0, P1)
    holdings.move(first, HoldCause.CLAIMED)
    assert holdings.waiting_for(1) == [second]
    holdings.move(second, HoldCause.CLAIMED)
    assert holdings._by_ticket == {}  # a member that runs for months uses millions of tickets
