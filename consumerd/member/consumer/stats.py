"""Counters of a member: what was handled, committed and rebalanced. Plain numbers for logs, tools and metrics.

Strategy: the code that works on a partition holds its `PartitionStats` and adds to them once a batch; nothing is
looked up, summed, copied or formatted until they are read.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from consumerd.base.metrics.histogram import AGES, DURATIONS, SIZES, Histogram
from consumerd.base.partition import NO_BROKER, TopicPartition
from consumerd.member.fetch.log_changes import LogChange

#: Number of rebalances that are kept as records.
REMEMBERED: Final = 50


@dataclass(slots=True)
class TopicStats:
    """Batches of one topic."""

    #: Seconds that a batch was in the handler, retries included.
    durations: Histogram = field(default_factory=lambda: Histogram(DURATIONS))
    #: Messages of a batch.
    sizes: Histogram = field(default_factory=lambda: Histogram(SIZES))
    #: Seconds from a message's timestamp until its batch was handled; not of those without one.
    ages: Histogram = field(default_factory=lambda: Histogram(AGES))

    def aged(self, messages: int, first: float, last: float) -> None:
        """Count the ages of a batch's messages by those of its first and last; 0 where a clock is ahead."""
        self.ages.observe_evenly(messages, max(0.0, first), max(0.0, last))


class SeenLogChange(NamedTuple):
    """A log that became another one. `at`: the time on the member's clock."""

    change: LogChange
    #: The offset of the present log at which the member continued.
    continued_at: int
    at: float


@dataclass(slots=True)
class PartitionStats:
    """Counts of one partition, over all times that it was ours."""

    topic: TopicStats
    messages: int = 0
    #: What offsets count: bytes of the log in 0.7, messages since 0.8.
    bytes: int = 0
    #: Time at which its messages were handled last, on the member's clock; None: not yet.
    handled_at: float | None = None
    #: The last time that its log became another one.
    log_change: SeenLogChange | None = None

    def handled(self, messages: int, size: int, began: float, ended: float) -> None:
        """Count a batch of `messages` messages that filled `size` bytes of the log; times on the member's clock."""
        self.messages += messages
        self.bytes += size
        self.handled_at = ended
        topic = self.topic
        topic.durations.observe(ended - began)
        topic.sizes.observe(messages)


@dataclass(frozen=True, slots=True)
class Rebalance:
    """One change of the assignment. Times on the member's clock."""

    ended: float
    #: Seconds until all of it was consumed.
    seconds: float
    #: The number of partitions that are ours now, those that are new, and those that are gone.
    partitions: int
    gained: tuple[TopicPartition, ...]
    lost: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class CommitAttempt:
    """One request to the offset store. Times on the member's clock."""

    began: float
    ended: float
    #: Offsets that were written, and those of partitions that are no longer ours.
    committed: int
    lost: int
    #: The reason why nothing was written.
    error: BaseException | None = None


class StatsObserver(Protocol):
    """Called right after something was counted, on the loop. Must neither block nor raise."""

    def committed(self, result: CommitAttempt) -> None:
        """A request to the offset store has ended."""
        ...

    def rebalanced(self, rebalance: Rebalance) -> None:
        """A rebalance has ended."""
        ...


@dataclass(slots=True)
class ConsumerStats:
    """Counts since the member was made."""

    #: Offsets written to ZooKeeper.
    commits: int = 0
    #: Commits that ZooKeeper could not take at the time; their positions went out later, or were lost.
    failed_commits: int = 0
    #: Changes of what this member owns or shares, each seen as one decided assignment.
    rebalances: int = 0
    #: Partitions that were found to be no longer ours.
    lost_partitions: int = 0
    partitions: dict[TopicPartition, PartitionStats] = field(default_factory=dict)
    topics: dict[str, TopicStats] = field(default_factory=dict)
    rebalance_seconds: Histogram = field(default_factory=lambda: Histogram(DURATIONS))
    #: The last ones, the newest last.
    history: deque[Rebalance] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    observer: StatsObserver | None = None

    @property
    def messages(self) -> int:
        """Messages that were handled."""
        return sum(each.messages for each in self.partitions.values())

    @property
    def bytes(self) -> int:
        """Bytes of the log that were handled, as offsets of 0.7 count them."""
        return sum(each.bytes for partition, each in self.partitions.items() if partition.broker != NO_BROKER)

    def of(self, partition: TopicPartition) -> PartitionStats:
        """Return the counts of a partition, created on first use."""
        found = self.partitions.get(partition)
        if found is None:
            topic = self.topics.setdefault(partition.topic, TopicStats())
            found = self.partitions[partition] = PartitionStats(topic)
        return found

    def rebalanced(self, rebalance: Rebalance) -> None:
        """Note a rebalance that has ended."""
        self.rebalance_seconds.observe(rebalance.seconds)
        self.history.append(rebalance)
        if self.observer is not None:
            self.observer.rebalanced(rebalance)

    def committed(self, began: float, ended: float, *, committed: int, lost: int) -> None:
        """Count a commit; times on the member's clock."""
        self.commits += committed
        if self.observer is not None:
            self.observer.committed(CommitAttempt(began, ended, committed, lost))

    def commit_failed(self, began: float, ended: float, failed: int, error: BaseException) -> None:
        """Count the offsets of a commit that `error` ended."""
        self.failed_commits += failed
        if self.observer is not None:
            self.observer.committed(CommitAttempt(began, ended, 0, 0, error))

    def totals(self) -> dict[str, int]:
        """Return the counters that are one number each. Bytes are known of partitions of 0.7 alone."""
        in_bytes = any(partition.broker != NO_BROKER for partition in self.partitions)
        return {
            "messages": self.messages,
            **({"bytes": self.bytes} if in_bytes else {}),
            "commits": self.commits,
            "failed_commits": self.failed_commits,
            "rebalances": self.rebalances,
            "lost_partitions": self.lost_partitions,
        }
