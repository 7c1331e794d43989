"""Errors of producing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from consumerd.base.errors import BrokerError, ConfigError, ConsumerdError, ExitCode, NotFoundError


class MessageSizeTooLargeError(ConsumerdError):
    """A message is larger than brokers accept; they would drop it silently (golden notes, 1)."""

    exit_code: ClassVar[ExitCode] = ExitCode.USAGE


class EncodingError(ConsumerdError):
    """A message cannot be made into bytes."""

    exit_code: ClassVar[ExitCode] = ExitCode.USAGE


class PartitionerError(ConsumerdError):
    """A partitioner cannot place a key, or returns a partition that does not exist."""

    exit_code: ClassVar[ExitCode] = ExitCode.USAGE


class NoBrokerError(BrokerError):
    """There is no live broker to send to."""


class NoPartitionError(NotFoundError):
    """The requested partition does not exist in the topic."""


class UncertainError(BrokerError):
    """The connection ended before the broker confirmed: all, some or none of the messages are stored."""


class Missing(NamedTuple):
    """Messages that a broker did not refuse and that cannot be read from it."""

    topic: str
    partition: int
    messages: int


class NotArrivedError(BrokerError):
    """Verification did not find all messages. `missing` has their numbers by partition; the rest arrived."""

    exit_code: ClassVar[ExitCode] = ExitCode.CHECK_FAILED

    def __init__(self, broker: str, missing: Sequence[Missing], seconds: float) -> None:
        places = ", ".join(f"{m.messages} in {m.topic}-{m.partition}" for m in missing)
        super().__init__(
            f"messages sent to broker {broker} could not be read back within {seconds:g} s ({places}): they are "
            "not flushed yet (log.flush.interval), were dropped for their size (max.message.size), or are lost."
        )
        self.missing = tuple(missing)


class QueueFullError(ConsumerdError):
    """The queue of an asynchronous producer had no room. The first `accepted` messages of the call are in it."""

    exit_code: ClassVar[ExitCode] = ExitCode.BROKER

    def __init__(self, size: int, seconds: float, accepted: int) -> None:
        waited = f" for {seconds:g} s" if seconds else ""
        super().__init__(f"the queue of {size} messages was full{waited}: send less, or increase queue_size.")
        self.accepted = accepted


class TransactionAbortedError(BrokerError):
    """The transaction failed: readers of committed messages get nothing of it."""


class TransactionUncertainError(BrokerError):
    """The coordinator did not answer: the transaction is committed or aborted, as it was asked for, or aborted later.

    The producer finds out with its next transaction, which begins after this one has ended either way.
    """


class ProducerFencedError(BrokerError):
    """The transactional id belongs to another producer by now, or may not be used: this producer can send nothing."""


class ProducerClosedError(RuntimeError):
    """The producer is closed, or was never started: a mistake of the calling code, which no operator can mend."""


class NotSentError(BrokerError):
    """An asynchronous producer dropped messages that it had accepted: `count` of them since the last report."""

    def __init__(self, count: int, cause: str) -> None:
        messages = "1 queued message was" if count == 1 else f"{count} queued messages were"
        super().__init__(f"{messages} not sent or not confirmed; first error: {cause}")
        self.count = count


class PluginError(ConfigError):
    """A partitioner, encoder or other part that was named cannot be loaded."""
