"""Whether the log under a position is still the one that it was read from. Pure decisions, no I/O.

A position is an offset and what is known of its log (`LogId`). Three things show that a log is another one:

    topic id, zxid       The topic was created again: none of the log's messages was ever read. REPLACED.
    leader epoch (v08)   The leader tells where the epoch of the last message that was read ends in its log. It ends
                         before the position: that message is not in the log any more. If a later leader was elected
                         since, it had less of the log: TRUNCATED, and the two logs part where the epoch ends; where
                         the leader has no message of that epoch, not behind the epoch's first message. But the
                         leader of the epoch that wrote a message has the message, so if no later one was elected, the
                         log is that of another topic of this name: REPLACED.
                         The same if the leader's epoch is lower than the message's: epochs of a topic only grow.
    boundaries (0.7)     No message begins at the position, although one ended there when it was stored: REPLACED.

Sources: KIP-320 and KIP-516; what brokers answer was seen on 2.8.2, 3.9.1 and 4.1.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from consumerd.base.partition import LogId

if TYPE_CHECKING:
    from consumerd.net.client.epochs import EpochEnd


class LogChangeKind(StrEnum):
    """What happened to a log."""

    #: It is another one from its beginning on.
    REPLACED = "replaced"
    #: It was cut off, and may have grown again since.
    TRUNCATED = "truncated"


class LogChange(NamedTuple):
    """The log at a position is another one than when the position was stored."""

    kind: LogChangeKind
    #: The position, and its log.
    offset: int
    former: LogId
    #: The present log, as far as it is known.
    now: LogId
    #: TRUNCATED: where the two part, not after the position. REPLACED: None, the present log's beginning.
    divergence: int | None = None
    #: How it was noticed, for a sentence, where identities do not tell.
    reason: str | None = None
    #: REPLACED: the end of the former log when it was seen last.
    former_end: int | None = None

    @property
    def messages_gone(self) -> int | None:
        """How many messages are known to be gone, as offsets count them; None where it is unknown.

        TRUNCATED: those that were read and that the log has no more; at least one, so if the logs part at the position
        as far as is known, they part before it. REPLACED: those of the former log that were not read yet; of 0.7, whose
        offsets count bytes, no end is known.
        """
        if self.divergence is not None:
            return self.offset - self.divergence or None
        return None if self.former_end is None else max(0, self.former_end - self.offset)

    def __str__(self) -> str:
        """A sentence without subject: what happened to the log."""
        if self.reason is not None:
            return self.reason
        if self.kind is LogChangeKind.TRUNCATED and self.messages_gone is None:
            return f"({self.now}) parts from that of the position {self.offset} ({self.former}) before it"
        if self.kind is LogChangeKind.TRUNCATED:
            return f"was cut off at offset {self.divergence}: the position {self.offset} was read from {self.former}"
        return f"is another one ({self.now}) than that of the position {self.offset} ({self.former})"


def find_change(
    offset: int, former: LogId, now: LogId, leader_epoch: int, end: EpochEnd | None
) -> tuple[LogId, LogChange | None]:
    """Compare a position with the leader's log; return what is known of its log now, and the change, if there is one.

    `now`: the identity of the topic. `leader_epoch`: that of the present leader, -1 for unknown. `end`: the leader's
    answer for the epoch in `former`; None: it was not or cannot be asked.
    """
    beginning = LogId(now.topic_id, None, now.zxid)
    if former.replaced_by(now):
        return beginning, LogChange(LogChangeKind.REPLACED, offset, former, beginning)
    same = LogId(now.topic_id, former.leader_epoch, now.zxid, former.epoch_start)
    if end is None or former.leader_epoch is None:
        return same, None
    if end.end_offset < 0 and not 0 <= leader_epoch < former.leader_epoch:
        # The log has forgotten its epochs, as after a change to an older message format.
        return beginning, None
    # Brokers before 2.0 name no epoch. One that is lower shows that no message of the position's own is in the log.
    lower = 0 <= end.leader_epoch < former.leader_epoch
    if end.end_offset >= offset and not lower:
        return same, None
    if end.end_offset < 0 or 0 <= leader_epoch <= former.leader_epoch:
        return beginning, LogChange(LogChangeKind.REPLACED, offset, former, beginning)
    divergence = min(end.end_offset, offset)
    if lower and former.epoch_start is not None:
        divergence = min(divergence, former.epoch_start)
    parted = LogId(now.topic_id, end.leader_epoch if end.leader_epoch >= 0 else None, now.zxid)
    return parted, LogChange(LogChangeKind.TRUNCATED, offset, former, parted, divergence)


def not_a_boundary(offset: int, begins: int) -> LogChange:
    """The change of a log of 0.7 in which `offset` lies inside the message that begins at `begins`."""
    reason = f"is another one than that of the position: offset {offset} lies inside a message that begins at {begins}"
    return LogChange(LogChangeKind.REPLACED, offset, LogId(), LogId(), reason=reason)
