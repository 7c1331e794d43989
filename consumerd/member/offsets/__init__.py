"""Handled offsets and the stores of committed ones (ring 1)."""

from typing import TYPE_CHECKING

from consumerd.base.lazy import lazy_names
from consumerd.member.offsets.choice import NoOffsets, OffsetSettings, Storage, make_store
from consumerd.member.offsets.claimed_store import ClaimedStore
from consumerd.member.offsets.errors import OffsetsHeldError, OffsetsUnavailableError
from consumerd.member.offsets.store import (
    CommitResult,
    OffsetStore,
    Trace,
    UnclaimedZooKeeperOffsetStore,
    ZooKeeperOffsetStore,
)
from consumerd.member.offsets.tracker import HandledPrefix

if TYPE_CHECKING:
    from consumerd.member.offsets.dual_store import DualOffsetStore
    from consumerd.member.offsets.kafka_store import CommittedOffset, KafkaOffsetStore, Membership
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "consumerd.member.offsets.dual_store": "DualOffsetStore",
            "consumerd.member.offsets.kafka_store": "CommittedOffset KafkaOffsetStore Membership",
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
