"""Counts of a handler: calls that failed, were repeated or wait for a disk, and messages given up or copied."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class HandlerCounts:
    """The results of the failures of a handler: counts since the start, each by topic."""

    #: Attempts that failed or timed out.
    failures: Counter[str] = field(default_factory=Counter)
    #: Attempts that were repeated after a failure.
    retries: Counter[str] = field(default_factory=Counter)
    #: Messages that were given up and not kept.
    skipped: Counter[str] = field(default_factory=Counter)
    #: Messages that were given up and written as dead letters.
    dead_lettered: Counter[str] = field(default_factory=Counter)
    #: Messages that failed, and were written to a retry topic.
    deferred: Counter[str] = field(default_factory=Counter)
    #: Messages that the decoder could not decode; each is skipped or dead-lettered, too, if the daemon continues.
    undecodable: Counter[str] = field(default_factory=Counter)
    #: Calls that wait at this moment for room on a full disk.
    disk_full: int = 0


@dataclass(slots=True)
class TargetCounts:
    """Messages on their way to another cluster since the start, each by the topic of the source."""

    #: Messages that were sent, each as often as it was.
    sent: Counter[str] = field(default_factory=Counter)
    #: Messages that the target confirmed.
    confirmed: Counter[str] = field(default_factory=Counter)
