"""Handled offsets and the stores of committed ones (ring 1)."""

from consumerd.offsets.choice import NoOffsets, OffsetSettings, Storage, make_store
from consumerd.offsets.claimed_store import ClaimedStore
from consumerd.offsets.dual_store import DualOffsetStore
from consumerd.offsets.errors import OffsetsHeldError, OffsetsUnavailableError
from consumerd.offsets.kafka_store import CommittedOffset, KafkaOffsetStore, Membership
from consumerd.offsets.store import CommitResult, OffsetStore, UnclaimedZooKeeperOffsetStore, ZooKeeperOffsetStore
from consumerd.offsets.tracker import HandledPrefix

__all__ = [
    "ClaimedStore",
    "CommitResult",
    "CommittedOffset",
    "DualOffsetStore",
    "HandledPrefix",
    "KafkaOffsetStore",
    "Membership",
    "NoOffsets",
    "OffsetSettings",
    "OffsetStore",
    "OffsetsHeldError",
    "OffsetsUnavailableError",
    "Storage",
    "UnclaimedZooKeeperOffsetStore",
    "ZooKeeperOffsetStore",
    "make_store",
]
