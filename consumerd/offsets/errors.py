"""Errors of committed offsets."""

from __future__ import annotations

from typing import ClassVar

from consumerd.client import UnavailableError
from consumerd.errors import BrokerError, ExitCode


class OffsetsUnavailableError(UnavailableError):
    """Offsets could not be read or written just now."""


class OffsetsHeldError(BrokerError):
    """A store refuses what is ours by what another one says: the group has members of another kind, too."""

    exit_code: ClassVar[ExitCode] = ExitCode.REFUSED

    def __init__(self, group: str, partition: object, store: str) -> None:
        super().__init__(
            f"the offset of {partition} cannot be kept in {store} under group {group!r}: other members of a group of "
            "this name own it there; stop them, give this group another name, or keep its offsets elsewhere."
        )
