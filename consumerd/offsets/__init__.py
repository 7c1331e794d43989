"""Which offsets were handled, and where they are stored (ring 1)."""

from consumerd.offsets.tracker import HandledPrefix, Range

__all__ = ["HandledPrefix", "Range"]
