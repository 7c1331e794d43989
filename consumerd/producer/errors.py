"""Errors of producing."""

from __future__ import annotations

from typing import ClassVar

from consumerd.errors import BrokerError, ConsumerdError, ExitCode, NotFoundError


class MessageSizeTooLargeError(ConsumerdError):
    """A message is larger than brokers accept; they would drop it without a word (golden notes, 1)."""

    exit_code: ClassVar[ExitCode] = ExitCode.USAGE


class NoBrokerError(BrokerError):
    """There is no live broker to send to."""


class NoPartitionError(NotFoundError):
    """The partition that was asked for is none of the topic's."""


class UncertainError(BrokerError):
    """The connection ended before the broker confirmed: it has stored all, some or nothing of what was sent."""
