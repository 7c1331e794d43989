"""How one log behaves: when it rolls, flushes and deletes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from consumerd.storage.retention import DeletePolicy


@dataclass(frozen=True, slots=True)
class LogSettings:
    """How one log behaves. Defaults are those of 0.7.2 (golden notes, 8)."""

    #: A segment larger than this (strictly) is rolled before the next append. log.file.size
    segment_bytes: int = 1 << 30
    #: A segment whose first append is older than this is rolled before the next append. log.roll.hours
    roll_seconds: float = 168 * 3600.0
    #: Flush when so many messages (leaves of compressed ones counted) are unflushed. log.flush.interval
    flush_messages: int = 500
    #: Flush when the last flush is older than this. log.default.flush.interval.ms, topic.flush.intervals.ms
    flush_seconds: float = 3.0
    #: What may be deleted, asked in this order. 0.7.2 keeps 168 hours by default: too dangerous for a broker that
    #: is started on an archive, so here nothing is deleted unless it is configured.
    delete_policies: tuple[DeletePolicy, ...] = ()
