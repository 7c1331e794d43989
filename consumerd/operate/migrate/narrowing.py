"""From a range whose sums differ to the messages that do: missing, changed, duplicated, out of order, foreign.

Strategy: the messages of a few ranges at a time, as numbers by their places, against every message of the target that
claims to be one of theirs, read from the stretch in which such messages were seen. So memory is bounded by the size of
a range times how many are looked at together, not by the sizes of the logs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from consumerd.base.partition import TopicPartition
from consumerd.operate.migrate.findings import ExampleMessages, MessageCounts
from consumerd.operate.migrate.ranges import SourceRange
from consumerd.operate.migrate.sums import MessagePosition, message_number

if TYPE_CHECKING:
    from consumerd.handlers.forward.identity import SourceIdentity


@dataclass(slots=True)
class SuspectRange:
    """A range with its messages."""

    partition: TopicPartition
    range: SourceRange
    #: The messages of the source, in order.
    expected: dict[MessagePosition, int] = field(default_factory=dict)
    seen: set[MessagePosition] = field(default_factory=set)
    counts: MessageCounts = field(default_factory=MessageCounts)

    def see(
        self,
        identity: SourceIdentity,
        payload: bytes | None,
        furthest: MessagePosition | None,
        examples: ExampleMessages,
    ) -> None:
        """Add a message of the target that claims to be of this range; `furthest`: the furthest one before it there."""
        position, counts = identity.place, self.counts
        number = self.expected.get(position)
        if number is None:
            counts.foreign += 1
            examples.add("foreign", f"{identity}: the source has no such message")
            return
        if position in self.seen:
            counts.duplicated += 1
            examples.add("duplicated", identity)
            return
        self.seen.add(position)
        if number != message_number(position, identity.crc, payload):
            counts.changed += 1
            examples.add("changed", identity)
        else:
            counts.there += 1
        if furthest is not None and position < furthest:
            counts.out_of_order += 1
            examples.add("out of order", f"{identity}: after offset {furthest[0]} index {furthest[1]}")

    def finish(self, examples: ExampleMessages) -> MessageCounts:
        """Count the missing messages, once all of the target was read."""
        missing = [position for position in self.expected if position not in self.seen]
        self.counts.source = len(self.expected)
        self.counts.missing = len(missing)
        examples.extend("missing", (f"{self.partition} offset {offset} index {index}" for offset, index in missing))
        return self.counts
