"""Errors of committed offsets."""

from __future__ import annotations

from consumerd.errors import BrokerError


class OffsetsUnavailableError(BrokerError):
    """Offsets could not be read or written just now; asking again later is safe and may help."""
