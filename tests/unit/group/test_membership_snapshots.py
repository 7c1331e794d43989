"""The schedule of snapshots: merged requests, pauses, and the times of retries and reconciliations."""

from __future__ import annotations

import pytest

from consumerd.base.partition import TopicPartition
from consumerd.group.membership_snapshots import Jitter, SnapshotRequest, SnapshotSchedule
from consumerd.group.membership_tables import MembershipSettings

P0 = TopicPartition("t", 0, 0)
#: No settling time, and the next reconciliation is far away: both would be random.
SETTINGS = MembershipSettings(retry_interval=0.5, retry_interval_max=2.0, settle=0.0, reconcile_interval=1e6)


def next_time(snapshots: SnapshotSchedule) -> float | None:
    """As a call, whose result a type checker does not take for what it was before."""
    return snapshots.next_time


def pending(snapshots: SnapshotSchedule) -> SnapshotRequest | None:
    return snapshots.pending


def schedule(settings: MembershipSettings = SETTINGS) -> SnapshotSchedule:
    return SnapshotSchedule(settings, Jitter("g_m"))


def test_merged_request_has_the_earlier_trigger_and_all_reads() -> None:
    early, late = SnapshotRequest(1.0, list_owners=True), SnapshotRequest(2.0, trigger_known=False, verify=False)
    merged = SnapshotRequest(1.0, trigger_known=False, verify=True, list_owners=True)
    assert early.merged(late) == late.merged(early) == merged
    assert late.merged(late) == late
    assert early.merged(None) is early


def test_trigger_of_a_merged_request_is_known_only_if_both_are() -> None:
    known, unknown = SnapshotRequest(1.0), SnapshotRequest(1.0, trigger_known=False)
    assert known.merged(known).trigger_known is True
    assert known.merged(unknown).trigger_known is unknown.merged(known).trigger_known is False


def test_spread_is_the_generator_of_numerical_recipes() -> None:
    jitter = Jitter("")
    published = (0x3C6EF35F, 0x47502932, 0xD1CCF6E9, 0xAAF95334, 0x6252E503)
    assert [jitter.factor(1.0) for _ in published] == [value / 2**31 for value in published]


def test_spread_stays_within_its_width() -> None:
    jitter = Jitter("\ud800")  # any name will do
    factors = [jitter.factor(0.25) for _ in range(1000)]
    assert 0.75 <= min(factors) < 0.76
    assert 1.24 < max(factors) <= 1.25


def test_nothing_is_due_before_the_first_request() -> None:
    snapshots = schedule()
    assert snapshots.idle
    assert next_time(snapshots) is None
    assert not snapshots.may_begin(1.0)
    snapshots.tick(1e9)
    assert snapshots.idle
    snapshots.cancel()
    assert snapshots.idle


def test_first_request_may_begin_at_once_and_one_is_in_progress_at_a_time() -> None:
    snapshots = schedule()
    snapshots.request(SnapshotRequest(0.0))
    assert not snapshots.idle
    assert snapshots.next_time == 0.0
    assert snapshots.may_begin(0.0)
    snapshots.begin(7, frozenset({P0}))
    assert not snapshots.idle
    assert pending(snapshots) is None
    snapshots.request(SnapshotRequest(1.0))
    assert not snapshots.may_begin(1.0)
    assert next_time(snapshots) is None  # its end is awaited, and no time


def test_end_of_another_snapshot_does_not_count() -> None:
    snapshots = schedule()
    assert snapshots.end(0, 1.0) is None
    snapshots.fail(0, 1.0)
    assert snapshots.idle
    snapshots.request(SnapshotRequest(0.0))
    snapshots.begin(7, frozenset({P0}))
    assert snapshots.end(6, 1.0) is None
    snapshots.fail(6, 1.0)
    assert snapshots.in_progress is not None
    ended = snapshots.end(7, 1.0)
    assert ended is not None
    assert (ended.ticket, ended.request, ended.verified) == (7, SnapshotRequest(0.0), frozenset({P0}))
    assert snapshots.end(7, 1.0) is None


def test_requests_after_a_snapshot_wait_for_the_settling_time() -> None:
    snapshots = schedule(MembershipSettings(settle=1.0))
    snapshots.request(SnapshotRequest(10.0))
    snapshots.begin(7, frozenset())
    snapshots.end(7, 10.0)
    snapshots.request(SnapshotRequest(10.0))
    at = snapshots.next_time
    assert at is not None
    assert 10.5 <= at <= 11.5
    assert not snapshots.may_begin(at - 0.001)
    assert snapshots.may_begin(at)
    snapshots.hurry()
    assert snapshots.may_begin(0.0)


def test_failed_snapshot_is_repeated_with_the_requests_since() -> None:
    snapshots = schedule()
    snapshots.request(SnapshotRequest(1.0, list_owners=True))
    snapshots.begin(7, frozenset({P0}))
    snapshots.request(SnapshotRequest(2.0, trigger_known=False))
    snapshots.fail(7, 3.0)
    assert snapshots.in_progress is None
    assert snapshots.pending == SnapshotRequest(1.0, trigger_known=False, list_owners=True)
    assert snapshots.next_time == 3.5


def test_pauses_after_failures_double_up_to_25_retry_intervals_until_one_succeeds() -> None:
    snapshots = schedule()
    snapshots.request(SnapshotRequest(0.0))

    def pause() -> float:
        snapshots.begin(7, frozenset())
        snapshots.fail(7, 100.0)
        assert snapshots.next_time is not None
        return snapshots.next_time - 100.0

    assert [pause() for _ in range(7)] == [0.5, 1.0, 2.0, 4.0, 8.0, 12.5, 12.5]
    snapshots.begin(7, frozenset())
    snapshots.end(7, 100.0)
    snapshots.request(SnapshotRequest(0.0))
    assert pause() == 0.5
    assert pause() == 1.0
    snapshots.forget()
    snapshots.request(SnapshotRequest(0.0))
    assert snapshots.may_begin(0.0)
    assert pause() == 0.5


def test_retries_double_up_to_the_longest_interval_and_verify_nothing() -> None:
    snapshots = schedule()
    pauses = []
    for attempt in range(5):
        now = 100.0 * attempt
        snapshots.retry(now)
        snapshots.retry(now + 0.1)  # one is due already
        at = snapshots.next_time
        assert at is not None
        pauses.append(at - now)
        snapshots.tick(at - 0.001)
        assert pending(snapshots) is None
        snapshots.tick(at)
        assert snapshots.pending == SnapshotRequest(at, verify=False)
        snapshots.pending = None
        assert next_time(snapshots) is None
    assert pauses == [0.5, 1.0, 2.0, 2.0, 2.0]
    snapshots.retried_well()
    snapshots.retry(1000.0)
    assert snapshots.next_time == 1000.5
    snapshots.forget()
    assert next_time(snapshots) is None
    snapshots.retry(1000.0)
    assert snapshots.next_time == 1000.5


def test_snapshot_makes_a_due_retry_needless() -> None:
    snapshots = schedule(MembershipSettings(retry_interval=0.5, reconcile_interval=1e6))
    snapshots.request(SnapshotRequest(0.0))
    snapshots.begin(7, frozenset())
    snapshots.retry(0.0)
    snapshots.end(7, 0.1)
    snapshots.tick(10.0)
    assert snapshots.idle


def test_reconciliation_surveys_all_owners_and_the_earliest_time_counts() -> None:
    snapshots = schedule()
    snapshots.reconcile_within(10.0, 5.0)
    snapshots.reconcile_within(10.0, 6.0)
    assert snapshots.next_time == 15.0
    snapshots.reconcile_within(10.0, 4.0)
    assert snapshots.next_time == 14.0
    snapshots.tick(13.9)
    assert snapshots.idle
    snapshots.tick(14.0)
    assert snapshots.pending == SnapshotRequest(14.0, trigger_known=False, list_owners=True)
    snapshots.begin(7, frozenset())
    assert next_time(snapshots) is None
    snapshots.reconcile_within(20.0, 4.0)
    snapshots.forget()
    assert next_time(snapshots) is None
    assert snapshots.idle


def test_every_snapshot_is_followed_by_a_reconciliation_a_tenth_more_or_less_later() -> None:
    snapshots = schedule(MembershipSettings(reconcile_interval=30.0))
    times = []
    for _ in range(200):
        snapshots.request(SnapshotRequest(0.0))
        snapshots.begin(7, frozenset())
        snapshots.end(7, 100.0)
        assert snapshots.next_time is not None
        times.append(snapshots.next_time - 100.0)
        snapshots.forget()
    assert 27.0 <= min(times) < 27.3
    assert 32.7 < max(times) <= 33.0
    assert len(set(times)) == 200  # members that hear the same do not read in step


def test_cancelled_snapshot_stays_requested() -> None:
    snapshots = schedule()
    snapshots.request(SnapshotRequest(1.0, list_owners=True))
    snapshots.begin(7, frozenset())
    snapshots.cancel()
    assert (snapshots.in_progress, snapshots.pending) == (None, SnapshotRequest(1.0, list_owners=True))
    assert snapshots.may_begin(1.0)


def test_settling_times_vary_by_half() -> None:
    snapshots = schedule(MembershipSettings(settle=1.0))
    times = []
    for _ in range(200):
        snapshots.request(SnapshotRequest(0.0))
        snapshots.begin(7, frozenset())
        snapshots.end(7, 100.0)
        snapshots.request(SnapshotRequest(0.0))
        assert snapshots.next_time is not None
        times.append(snapshots.next_time - 100.0)
        snapshots.forget()
    assert min(times) == pytest.approx(0.5, abs=0.05)
    assert max(times) == pytest.approx(1.5, abs=0.05)
