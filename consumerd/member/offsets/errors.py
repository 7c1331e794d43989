"""Errors of committed offsets."""

from __future__ import annotations

from typing import ClassVar

from consumerd.base.errors import BrokerError, ExitCode
from consumerd.net.client.errors import UnavailableError


class OffsetsUnavailableError(UnavailableError):
    """Offsets could not be read or written just now."""


class OffsetsHeldError(BrokerError):
    """A store rejects an offset of an owned partition: the group has other members there."""

    exit_code: ClassVar[ExitCode] = ExitCode.REFUSED

    def __init__(self, group: str, partition: object, store: str) -> None:
        super().__init__(
            f"cannot commit the offset of {partition} to {store} for group {group!r}: a group of this name has other "
            "members there that own it; stop them, rename this group, or keep its offsets elsewhere."
        )
