"""Counters of a member: what was handled, committed and rebalanced. Plain numbers for logs, tools and metrics."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from consumerd.partition import TopicPartition


@dataclass(slots=True)
class ConsumerStats:
    """Counts since the member was made."""

    messages: int = 0
    #: Bytes of the log that were handled, as offsets count them.
    bytes: int = 0
    #: Offsets written to ZooKeeper.
    commits: int = 0
    #: Commits that ZooKeeper could not take at the time; their positions went out later, or were lost.
    failed_commits: int = 0
    #: Changes of what this member owns or shares, each seen as one decided assignment.
    rebalances: int = 0
    #: Partitions that were found to be owned by us no longer.
    lost_partitions: int = 0
    #: Per partition, messages handled.
    by_partition: dict[TopicPartition, int] = field(default_factory=dict)

    def handled(self, partition: TopicPartition, messages: int, size: int) -> None:
        """Count a batch of `messages` messages that filled `size` bytes of the log."""
        self.messages += messages
        self.bytes += size
        self.by_partition[partition] = self.by_partition.get(partition, 0) + messages

    def totals(self) -> dict[str, int]:
        """The counters without the table of partitions."""
        numbers = asdict(self)
        del numbers["by_partition"]
        return numbers
