"""Choosing and making the store that keeps the offsets of a group.

Strategy: the store is requested by name; its parts (a session, a client, a membership, whether partitions are claimed
in ZooKeeper) come from the consumer. Of two stores the one that knows the group's members goes
first: ZooKeeper where partitions are claimed there, Kafka everywhere else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Literal

from consumerd.base.partition import UNKNOWN_LOG, LogId, TopicPartition
from consumerd.base.ports import ZooKeeper
from consumerd.base.settings.group import CommitSection
from consumerd.base.settings.setting import Tuned
from consumerd.member.offsets.claimed_store import ClaimedStore
from consumerd.member.offsets.guards import OwnedGuard, Ownership
from consumerd.member.offsets.store import (
    NO_NOTES,
    CommitResult,
    OffsetStore,
    TopicCreations,
    UnclaimedZooKeeperOffsetStore,
    ZooKeeperOffsetStore,
)

if TYPE_CHECKING:
    from consumerd.member.offsets.kafka_store import Membership
    from consumerd.member.offsets.store import Notes
    from consumerd.net.client.cluster import ClusterClient

Storage = Literal["zookeeper", "kafka", "both", "none"]


class OffsetSettings(CommitSection):
    """How offsets are committed, and the choice of the store."""

    storage: Storage = Tuned("kafka")

    @property
    def in_zookeeper(self) -> bool:
        """Whether a session is needed."""
        return self.storage in ("zookeeper", "both")

    @property
    def in_kafka(self) -> bool:
        """Whether a client of brokers is needed."""
        return self.storage in ("kafka", "both")


class NoOffsets:
    """Stores nothing and reports success: the handler stores offsets itself, or they are not needed."""

    keeps_for: float | None = None

    async def load(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return no offsets."""
        return {}

    async def peek(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return no offsets."""
        return {}

    async def changed(self, partitions: Iterable[TopicPartition]) -> frozenset[TopicPartition]:
        """Return nothing: without a store nothing is written by others."""
        return frozenset()

    async def is_new(self, partition: TopicPartition) -> bool:
        """Return False: every start is alike."""
        return False

    def log(self, partition: TopicPartition) -> LogId:
        """Return the unknown log."""
        return UNKNOWN_LOG

    async def commit(
        self, positions: Mapping[TopicPartition, int], *, session_id: int, notes: Notes = NO_NOTES
    ) -> CommitResult:
        """Report success."""
        return CommitResult(frozenset(positions), frozenset())

    def trace(self, partition: TopicPartition) -> None:
        """Return nothing: there is no stored offset."""


def make_store(
    settings: OffsetSettings,
    group: str,
    *,
    client: ClusterClient | None = None,
    zk: ZooKeeper | None = None,
    membership: Membership | None = None,
    claimed: bool = False,
    ownership: Ownership | None = None,
    topics: TopicCreations | None = None,
) -> OffsetStore:
    """Make the store of `group`. `settings` decide whether it needs `client`, `zk`. `membership`: with a coordinator.

    `claimed`: the group's members claim their partitions in ZooKeeper; `ownership` knows which are ours, and
    `topics` when topics were created, which shows offsets of former ones.
    """
    if settings.storage == "none":
        return NoOffsets()
    in_zookeeper: OffsetStore | None = None
    in_kafka: OffsetStore | None = None
    if settings.in_zookeeper:
        if zk is None:
            raise ValueError("offsets in ZooKeeper need a session")
        if claimed:
            in_zookeeper = ZooKeeperOffsetStore(zk, group, OwnedGuard(zk, group, ownership), topics)
        else:
            in_zookeeper = UnclaimedZooKeeperOffsetStore(zk, group)
    if settings.in_kafka:
        if client is None:
            raise ValueError("offsets in Kafka need a client")
        from consumerd.member.offsets.kafka_store import KafkaOffsetStore  # noqa: PLC0415 - a member of 0.7 never needs it

        in_kafka = KafkaOffsetStore(
            client,
            group,
            membership,
            metadata=settings.metadata,
            retention=settings.retention,
            version=settings.version,
        )
    if in_zookeeper is not None and in_kafka is not None:
        from consumerd.member.offsets.dual_store import DualOffsetStore  # noqa: PLC0415 - as above

        if claimed:
            return DualOffsetStore(group, in_zookeeper, in_kafka, "Kafka")
        return DualOffsetStore(group, in_kafka, in_zookeeper, "ZooKeeper")
    if in_kafka is not None and claimed:
        if zk is None:
            raise ValueError("partitions that are claimed in ZooKeeper need a session")
        return ClaimedStore(zk, group, in_kafka, ownership)
    store = in_zookeeper or in_kafka
    assert store is not None  # one of the two, as there are no other names
    return store
