"""Handled offsets and the stores of committed ones (ring 1)."""

from typing import TYPE_CHECKING

from consumerd.lazy import lazy_names
from consumerd.offsets.choice import NoOffsets, OffsetSettings, Storage, make_store
from consumerd.offsets.claimed_store import ClaimedStore
from consumerd.offsets.errors import OffsetsHeldError, OffsetsUnavailableError
from consumerd.offsets.store import (
    CommitResult,
    OffsetStore,
    Trace,
    UnclaimedZooKeeperOffsetStore,
    ZooKeeperOffsetStore,
)
from consumerd.offsets.tracker import HandledPrefix

if TYPE_CHECKING:
    from consumerd.offsets.dual_store import DualOffsetStore
    from consumerd.offsets.kafka_store import CommittedOffset, KafkaOffsetStore, Membership
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "consumerd.offsets.dual_store": "DualOffsetStore",
            "consumerd.offsets.kafka_store": "CommittedOffset KafkaOffsetStore Membership",
        },
    )

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
    "Trace",
    "UnclaimedZooKeeperOffsetStore",
    "ZooKeeperOffsetStore",
    "make_store",
]
