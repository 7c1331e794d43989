"""Which offsets were handled, and where they are stored (ring 1)."""

from consumerd.offsets.store import CommitResult, ZooKeeperOffsetStore
from consumerd.offsets.tracker import HandledPrefix, Range

__all__ = ["CommitResult", "HandledPrefix", "Range", "ZooKeeperOffsetStore"]
