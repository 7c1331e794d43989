"""The error of a value that cannot be read."""

from __future__ import annotations


class DecodeError(ValueError):
    """The payload of a message is not what its decoder requires. The text says why, without quoting the payload."""
