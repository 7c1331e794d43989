"""The times of the membership machine, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MembershipSettings:
    """All in seconds. M1 to M5 are the rules measured beside JVM members (notes on mixed groups)."""

    #: All drains of one rebalance end this long after its trigger (M2: a JVM peer looks for the last time after 6 s),
    #: or, where that is over before the first snapshot shows what to drain, this long after the snapshot.
    drain_timeout: float = 4.0
    #: Between attempts to claim what others still hold (M1), to register, and to repeat whatever failed; twice as long
    #: after each attempt in vain, up to `retry_interval_max`: a watch on what is in the way tells sooner.
    retry_interval: float = 0.2
    retry_interval_max: float = 2.0
    #: Between two snapshots, half of it more or less, so that a burst of changes costs a few and not one each. The
    #: first change after a quiet time is looked at without delay.
    settle: float = 0.1
    #: Between checks of decided / owned / ZooKeeper, since watches get lost; up to a tenth more or less.
    reconcile_interval: float = 30.0
    #: A release later than this after the trigger is followed by a nudge (M3).
    nudge_after: float = 5.0
    #: A peer that has not claimed its own after this long has given up (a JVM member: 8 s after the trigger).
    patience: float = 10.0
