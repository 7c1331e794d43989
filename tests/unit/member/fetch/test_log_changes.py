"""Decisions on whether a log is still the one that a position was read from."""

from __future__ import annotations

import pytest

from consumerd.base.partition import UNKNOWN_LOG, LogId
from consumerd.member.fetch.log_changes import LogChange, LogChangeKind, find_change, not_a_boundary
from consumerd.net.client.epochs import EpochEnd

OLD, NEW = b"o" * 16, b"n" * 16
TRUNCATED, REPLACED = LogChangeKind.TRUNCATED, LogChangeKind.REPLACED


def end(leader_epoch: int, end_offset: int) -> EpochEnd:
    return EpochEnd(0, leader_epoch, end_offset)


def test_another_topic_id_is_another_log_whatever_its_epochs() -> None:
    former, now = LogId(OLD, 3), LogId(NEW)
    found, change = find_change(100, former, now, 5, end(3, 200))
    assert found == LogId(NEW)
    assert change == LogChange(REPLACED, 100, former, LogId(NEW))
    assert change.divergence is None


def test_counts_messages_that_are_gone_where_that_is_known() -> None:
    truncated = LogChange(TRUNCATED, 150, LogId(OLD, 4), LogId(OLD, 4), 100)
    replaced = LogChange(REPLACED, 100, LogId(OLD), LogId(NEW))
    assert truncated.messages_gone == 50
    assert replaced.messages_gone is None
    assert replaced._replace(former_end=130).messages_gone == 30
    assert replaced._replace(former_end=100).messages_gone == 0
    assert not_a_boundary(100, 90).messages_gone is None


def test_topic_node_that_was_created_after_the_offset_was_stored_is_another_log() -> None:
    assert find_change(100, LogId(zxid=7), LogId(zxid=8), -1, None)[1] is not None
    # The node is older than what was stored, or as old as the fetcher knows it.
    assert find_change(100, LogId(zxid=8), LogId(zxid=7), -1, None) == (LogId(zxid=7), None)
    assert find_change(100, LogId(zxid=7), LogId(zxid=7), -1, None) == (LogId(zxid=7), None)


def test_topic_id_counts_more_than_the_transaction() -> None:
    """A copied ZooKeeper has other transactions."""
    assert find_change(100, LogId(OLD, None, 7), LogId(OLD, None, 8), 0, None)[1] is None


@pytest.mark.parametrize("former", [UNKNOWN_LOG, LogId(leader_epoch=4), LogId(OLD, 4, 7)])
def test_nothing_follows_from_what_is_not_known(former: LogId) -> None:
    assert find_change(100, former, LogId(), 9, None)[1] is None


def test_position_within_its_epoch_is_of_the_log() -> None:
    former = LogId(OLD, 4, 7)
    assert find_change(100, former, LogId(OLD, None, 6), 9, end(4, 100)) == (LogId(OLD, 4, 6), None)


def test_log_of_a_later_leader_that_ends_before_the_position_was_cut_off() -> None:
    former = LogId(OLD, 4)
    found, change = find_change(150, former, LogId(OLD), 5, end(4, 100))
    assert change == LogChange(TRUNCATED, 150, former, LogId(OLD, 4), 100)
    assert found == LogId(OLD, 4)


def test_log_without_any_message_of_the_epoch_parts_at_the_position_at_latest() -> None:
    """Messages of a lower epoch stand where the position's were: none of those before it is sure to be the same."""
    _, change = find_change(100, LogId(OLD, 4), LogId(OLD), 6, end(3, 180))
    assert change is not None
    assert (change.kind, change.divergence, change.now.leader_epoch) == (TRUNCATED, 100, 3)
    assert change.messages_gone is None, "at least one, and not known how many"
    assert str(change) == (
        "(topic id b29vb29vb29vb29vb29vbw, leader epoch 3) parts from that of the position 100 "
        "(topic id b29vb29vb29vb29vb29vbw, leader epoch 4) before it"
    )


@pytest.mark.parametrize(("epoch_start", "parts_at"), [(70, 70), (100, 100)])
def test_log_without_any_message_of_the_epoch_parts_where_the_epoch_began(epoch_start: int, parts_at: int) -> None:
    former = LogId(OLD, 4, None, epoch_start)
    _, change = find_change(100, former, LogId(OLD), 6, end(3, 180))
    assert change == LogChange(TRUNCATED, 100, former, LogId(OLD, 3), parts_at)
    _, change = find_change(100, former, LogId(OLD), 6, end(4, 90))
    assert change is not None
    assert change.divergence == 90, "the leader has messages of the epoch"
    assert find_change(100, former, LogId(OLD), 6, end(4, 100)) == (former, None)


def test_brokers_that_name_no_epoch_tell_the_end_alone() -> None:
    assert find_change(100, LogId(leader_epoch=4), LogId(), 6, end(-1, 100))[1] is None
    _, change = find_change(101, LogId(leader_epoch=4), LogId(), 6, end(-1, 100))
    assert change is not None
    assert (change.kind, change.divergence, change.now.leader_epoch) == (TRUNCATED, 100, None)


@pytest.mark.parametrize("leader_epoch", [0, 3, 4])
def test_leader_of_the_positions_own_epoch_without_its_message_leads_another_log(leader_epoch: int) -> None:
    """The epochs of a topic that was created again begin at 0 again."""
    found, change = find_change(300, LogId(leader_epoch=4), LogId(), leader_epoch, end(leader_epoch, 100))
    assert change is not None
    assert (change.kind, change.divergence, found) == (REPLACED, None, LogId())


def test_leader_of_a_lower_epoch_leads_another_log() -> None:
    """A broker does not have the end of an epoch above its log's."""
    found, change = find_change(300, LogId(leader_epoch=4), LogId(), 0, end(-1, -1))
    assert change is not None
    assert (change.kind, change.divergence, found) == (REPLACED, None, LogId())


def test_log_that_has_no_epochs_any_more_forgets_them() -> None:
    """Its message format changed: FETCH tells whether the offset is in range."""
    assert find_change(100, LogId(OLD, 4), LogId(OLD), 6, end(-1, -1)) == (LogId(OLD), None)


@pytest.mark.parametrize(
    ("position", "former", "leader", "found", "kind", "now", "divergence"),
    [
        (100, 4, 6, end(4, 0), TRUNCATED, 4, 0),
        (100, 4, 6, end(0, 0), TRUNCATED, 0, 0),
        (100, 4, 6, end(0, 100), TRUNCATED, 0, 100),
        (0, 0, 0, end(0, 0), None, 0, None),
        (1, 0, 0, end(0, 0), REPLACED, None, None),
        (1, 0, 1, end(0, 0), TRUNCATED, 0, 0),
        (100, 4, 4, end(-1, -1), None, None, None),
        (100, 4, 3, end(-1, -1), REPLACED, None, None),
        (100, 4, -1, end(-1, -1), None, None, None),
        (100, 4, -1, end(4, 99), TRUNCATED, 4, 99),
    ],
)
def test_compares_logs_whose_offsets_and_epochs_begin_at_zero(
    position: int,
    former: int,
    leader: int,
    found: EpochEnd,
    kind: LogChangeKind | None,
    now: int | None,
    divergence: int | None,
) -> None:
    before = LogId(OLD, former, 7)
    log, change = find_change(position, before, LogId(OLD, None, 6), leader, found)
    assert log == LogId(OLD, now, 6)
    assert change == (None if kind is None else LogChange(kind, position, before, log, divergence))


def test_changes_are_sentences() -> None:
    assert str(find_change(150, LogId(leader_epoch=4), LogId(), 5, end(4, 100))[1]) == (
        "was cut off at offset 100: the position 150 was read from leader epoch 4"
    )
    assert str(find_change(150, LogId(OLD), LogId(NEW), 5, None)[1]) == (
        "is another one (topic id bm5ubm5ubm5ubm5ubm5ubg) than that of the position 150"
        " (topic id b29vb29vb29vb29vb29vbw)"
    )
    assert str(not_a_boundary(1000, 999)) == (
        "is another one than that of the position: offset 1000 lies inside a message that begins at 999"
    )
