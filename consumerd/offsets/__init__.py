"""Which offsets were handled, and where they are stored (ring 1)."""

from consumerd.offsets.errors import OffsetsUnavailableError
from consumerd.offsets.kafka_store import CommittedOffset, KafkaOffsetStore, Membership
from consumerd.offsets.store import CommitResult, ZooKeeperOffsetStore
from consumerd.offsets.tracker import HandledPrefix, Range

__all__ = [
    "CommitResult",
    "CommittedOffset",
    "HandledPrefix",
    "KafkaOffsetStore",
    "Membership",
    "OffsetsUnavailableError",
    "Range",
    "ZooKeeperOffsetStore",
]
