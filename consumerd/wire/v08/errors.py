"""What this protocol can refuse beside `consumerd.wire.errors`."""

from __future__ import annotations

from consumerd.wire.errors import WireError


class UnsupportedVersionError(WireError):
    """An API key or a version of it that no schema here describes."""
