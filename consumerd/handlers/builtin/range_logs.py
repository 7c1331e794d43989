"""The logs whose ranges are in the folder of one partition. Pure decisions, no I/O.

    <start>-<end>.ndjson                    the folder's first log
    <start>-<end>.log-2.ndjson              the log that came after it under the same name, and so on
    .log-<number>-<start>-<epoch>-<id>      an empty file: from `start` on, the log has this leader epoch and topic id

Strategy. The topic id of a batch tells whether its log is the one that was stored last (`LogId`). Another one gets the
next number, and files of its own: those of the former log stay, and the new log may have the same offsets. The position
is where the files of the last log end. Its id and epoch are in the last note before that end: a note is written before
the first file that it is about, so one without files says nothing, and is removed at the next takeover.

A log without an id (brokers before 2.8), or one that follows files without one (older versions of this program wrote no
notes), cannot be distinguished from the one before it. Whether a batch below the position is a repetition is then
decided as before: the very same range with the very same bytes as the last one that this process wrote is one. Anything
else would be a former range in a new form, or messages of another log, and is an error: nothing is dropped, nothing
overwritten.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise
from typing import Final, NamedTuple

import structlog

from consumerd.base.partition import UNKNOWN_LOG, LogId
from consumerd.handlers.api import SinkPosition
from consumerd.handlers.messages import Batch

log = structlog.get_logger(__name__)

_RANGE: Final = re.compile(r"([0-9]{20})-([0-9]{20})(?:\.log-([1-9][0-9]{0,8}))?(\.[a-z]+)")
_NOTE: Final = re.compile(r"\.log-([1-9][0-9]{0,8})-([0-9]{20})-([0-9]{0,10})-([A-Za-z0-9_-]{22})?")


class StoredRange(NamedTuple):
    """A file: a range of the log with this number."""

    number: int
    start: int
    end: int


class StoredLog(NamedTuple):
    """The log that a folder has the last ranges of."""

    number: int = 1
    #: The end of its ranges; None while there is none.
    end: int | None = None
    #: What is known of the log there.
    log: LogId = UNKNOWN_LOG

    @property
    def position(self) -> SinkPosition | None:
        """Where to resume."""
        return None if self.end is None else SinkPosition(self.end, self.log.topic_id_text, self.log.leader_epoch)

    def at(self, batch: Batch) -> StoredLog:
        """The log that the batch belongs to, as it is before it: this one, or the one after it, which has no ranges."""
        if self.end is not None and self.log.replaced_by(batch.log):
            return StoredLog(self.number + 1)
        return self

    def with_batch(self, batch: Batch) -> StoredLog:
        """The same log when the batch is stored."""
        return StoredLog(self.number, batch.next_offset, self._known(batch))

    def note(self, batch: Batch) -> str | None:
        """The name of the note that has to be there before the batch; None where it says nothing new."""
        known = self._known(batch)
        if known in (UNKNOWN_LOG, self.log):
            return None
        epoch = "" if known.leader_epoch is None else known.leader_epoch
        return f".log-{self.number}-{batch.start_offset:020}-{epoch}-{known.topic_id_text or ''}"

    def range_name(self, batch: Batch, suffix: str) -> str:
        """The name of the batch's file."""
        infix = "" if self.number == 1 else f".log-{self.number}"
        return f"{batch.start_offset:020}-{batch.next_offset:020}{infix}{suffix}"

    def _known(self, batch: Batch) -> LogId:
        """What is known at the batch. Not ZooKeeper's number: that of another ensemble would mean nothing."""
        return LogId(batch.log.topic_id or self.log.topic_id, batch.log.leader_epoch)


def ranges_among(names: Iterable[str], suffix: str) -> list[StoredRange]:
    """The ranges that names of files stand for, sorted; other names belong to other programs."""
    found = (_RANGE.fullmatch(name) for name in names)
    matches = (match for match in found if match and match[4] == suffix)
    return sorted(StoredRange(int(match[3] or 1), int(match[1]), int(match[2])) for match in matches)


def last_log(folder: object, names: Iterable[str], suffix: str) -> tuple[StoredLog, list[str]]:
    """The last log of a folder, and the notes that no file follows.

    Overlaps, which another program must have made, are only reported.
    """
    names = list(names)
    found = ranges_among(names, suffix)
    for one, other in pairwise(found):
        if one.number == other.number and other.start < one.end:
            log.warning("overlapping_ranges", folder=str(folder), first=one[1:], second=other[1:])
    number = max((each.number for each in found), default=1)
    end = max((each.end for each in found if each.number == number), default=None)
    known, start, pending = UNKNOWN_LOG, -1, []
    for name in names:
        if not (match := _NOTE.fullmatch(name)):
            continue
        at = int(match[1]), int(match[2])
        if end is None or at >= (number, end):
            pending.append(name)
        elif at[0] == number and at[1] > start:
            known, start = LogId.from_text(match[4], int(match[3]) if match[3] else None), at[1]
    return StoredLog(number, end, known), pending
