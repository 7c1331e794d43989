"""Counts of the messages that a mirror sent, and that its target confirmed, by topic."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class TargetCounts:
    """Messages on their way to another cluster since the start, each by the topic of the source."""

    #: Messages that were sent, each as often as it was.
    sent: Counter[str] = field(default_factory=Counter)
    #: Messages that the target confirmed.
    confirmed: Counter[str] = field(default_factory=Counter)
