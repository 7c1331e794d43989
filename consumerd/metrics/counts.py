"""What a handler's failures came to, by topic."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class HandlerCounts:
    """Counts since the start, each by topic. Kept by whoever applies the failure policy."""

    #: Attempts that failed or timed out.
    failures: Counter[str] = field(default_factory=Counter)
    #: Attempts that were repeated after a failure.
    retries: Counter[str] = field(default_factory=Counter)
    #: Messages that were given up and not kept.
    skipped: Counter[str] = field(default_factory=Counter)
    #: Messages that were given up and written as dead letters.
    dead_lettered: Counter[str] = field(default_factory=Counter)
    #: Messages that the decoder could not decode; each is skipped or dead-lettered, too, if the daemon goes on.
    undecodable: Counter[str] = field(default_factory=Counter)
