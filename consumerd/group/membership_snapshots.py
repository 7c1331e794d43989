"""The schedule of snapshots: the time of the next one, and the reads that it has to include.

Strategy: requests are merged until a snapshot can be taken; one is in progress at a time. What happens while it is in
progress requests another one, since the reads may have come too early. The first request after a quiet time is served
at once, those that follow wait for the settling time, so a burst of triggers costs a few snapshots. Failed snapshots
and blocked claims are repeated less and less often.
"""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32

from consumerd.base.partition import TopicPartition
from consumerd.group.membership_tables import MembershipSettings

#: A snapshot that fails is repeated after up to this many retry intervals (5 s by default).
_LONGEST_FAILURE_PAUSE = 25


@dataclass(frozen=True, slots=True)
class SnapshotRequest:
    """The reason for a snapshot, and the reads that it has to include."""

    #: Time of the change that caused the request: drains are measured from here.
    trigger: float
    #: False if the change may have happened any time before: a lost watch, a suspended session.
    trigger_known: bool = True
    #: `verify`: read the owner nodes of our partitions. `list_owners`: list all owner nodes.
    verify: bool = True
    list_owners: bool = False

    def merged(self, other: SnapshotRequest | None) -> SnapshotRequest:
        """Return one request that serves both."""
        if other is None:
            return self
        return SnapshotRequest(
            min(self.trigger, other.trigger),
            self.trigger_known and other.trigger_known,
            self.verify or other.verify,
            self.list_owners or other.list_owners,
        )


@dataclass(frozen=True, slots=True)
class SnapshotInProgress:
    """A snapshot that is being taken."""

    ticket: int
    request: SnapshotRequest
    #: The partitions to verify. The answer cannot be about an earlier ownership: nothing is claimed between request
    #: and answer.
    verified: frozenset[TopicPartition]


class Jitter:
    """Factors around 1 that follow from a name alone, so that members with equal news do not all act at once."""

    def __init__(self, name: str) -> None:
        self._state = crc32(name.encode("utf-8", "surrogatepass"))

    def factor(self, width: float) -> float:
        """Return the next one, from 1 - `width` to 1 + `width`: a linear congruential generator is random enough."""
        self._state = (self._state * 1664525 + 1013904223) % 2**32
        return 1.0 + width * (self._state / 2**31 - 1.0)


class SnapshotSchedule:
    """The pending request, the snapshot in progress, and the times of the next retry and reconciliation."""

    def __init__(self, settings: MembershipSettings, jitter: Jitter) -> None:
        self._settings = settings
        self._jitter = jitter
        self.pending: SnapshotRequest | None = None
        self.in_progress: SnapshotInProgress | None = None
        self._not_before = 0.0
        self._failures = 0
        self._retries = 0
        self._retry_at: float | None = None
        self._reconcile_at: float | None = None

    @property
    def idle(self) -> bool:
        """Whether no snapshot is pending or in progress."""
        return self.pending is None and self.in_progress is None

    @property
    def next_time(self) -> float | None:
        """The time at which `tick` has something to do, or the pending request may begin; None for no such time."""
        times = [at for at in (self._retry_at, self._reconcile_at) if at is not None]
        if self.pending is not None and self.in_progress is None:
            times.append(self._not_before)
        return min(times, default=None)

    def may_begin(self, now: float) -> bool:
        """Whether a request is pending, none is in progress, and the last snapshot was long enough ago."""
        return self.pending is not None and self.in_progress is None and now >= self._not_before

    def request(self, request: SnapshotRequest) -> None:
        """Take a snapshot as soon as the settling time allows."""
        self.pending = request.merged(self.pending)

    def hurry(self) -> None:
        """Do not wait for the settling time: no other member waits as well."""
        self._not_before = 0.0

    def retry(self, now: float) -> None:
        """Take another one after a while. The last one was recent, so nothing is verified again."""
        if self._retry_at is None:
            pause = self._settings.retry_interval * 2.0 ** min(self._retries, 20)
            self._retry_at = now + min(pause, self._settings.retry_interval_max)
            self._retries += 1

    def retried_well(self) -> None:
        """Reset the retry interval: the repeated attempt succeeded."""
        self._retries = 0

    def reconcile_within(self, now: float, seconds: float) -> None:
        """Reconcile after `seconds`, if not due before."""
        at = now + seconds
        self._reconcile_at = at if self._reconcile_at is None else min(self._reconcile_at, at)

    def tick(self, now: float) -> None:
        """Request the snapshots that are due."""
        if self._retry_at is not None and now >= self._retry_at:
            self._retry_at = None
            self.request(SnapshotRequest(now, verify=False))
        if self._reconcile_at is not None and now >= self._reconcile_at:
            self._reconcile_at = None
            self.request(SnapshotRequest(now, trigger_known=False, list_owners=True))

    def begin(self, ticket: int, verified: frozenset[TopicPartition]) -> None:
        """Note that the pending request is in progress."""
        assert self.pending is not None
        self.in_progress = SnapshotInProgress(ticket, self.pending, verified)
        self.pending = None

    def end(self, ticket: int, now: float) -> SnapshotInProgress | None:
        """Note that the snapshot was taken; return it, or None if it is obsolete."""
        ended = self.in_progress
        if ended is None or ended.ticket != ticket:
            return None
        self.in_progress = None
        self._failures = 0
        self._retry_at = None
        self._not_before = now + self._settings.settle * self._jitter.factor(0.5)
        self.reconcile_within(now, self._settings.reconcile_interval * self._jitter.factor(0.1))
        return ended

    def fail(self, ticket: int, now: float) -> None:
        """Note that the snapshot failed and is still needed. Does nothing for one that is obsolete."""
        failed = self.in_progress
        if failed is None or failed.ticket != ticket:
            return
        self.cancel()
        pause = self._settings.retry_interval * min(2.0 ** min(self._failures, 20), _LONGEST_FAILURE_PAUSE)
        self._not_before = now + pause
        self._failures += 1

    def cancel(self) -> None:
        """Do not wait for the snapshot in progress (the connection is gone); its request stays."""
        if self.in_progress is not None:
            self.request(self.in_progress.request)
            self.in_progress = None

    def forget(self) -> None:
        """Drop all requests: the session is over, or the member leaves."""
        self.pending = self.in_progress = None
        self._retry_at = self._reconcile_at = None
        self._not_before = 0.0
        self._failures = self._retries = 0
