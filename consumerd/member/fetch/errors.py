"""Errors that end the fetching of a partition. Broken connections are not among them: they are retried."""

from __future__ import annotations

from typing import Any, get_args

from consumerd.base.errors import BrokerError, CorruptDataError
from consumerd.base.partition import TopicPartition
from consumerd.base.settings.processing import BadMessagePolicy, OutOfRangePolicy
from consumerd.member.fetch.log_changes import LogChange
from consumerd.wire.registry.values import MAX_OFFSET


def _others(policy: Any) -> str:
    """The values of a policy other than `fail`."""
    *first, last = [each for each in get_args(policy) if each != "fail"]
    return f"{', '.join(first)} or {last}"


class LaneClosedError(Exception):
    """The lane was closed: its partition is not ours any more. Control flow of the owner, never shown to users."""


class BrokerUnknownError(BrokerError):
    """The broker has no address in ZooKeeper at present."""

    def __init__(self, broker: int) -> None:
        super().__init__(f"broker {broker} is not registered in ZooKeeper; is it running?")
        self.broker = broker


class OffsetRefusedError(BrokerError):
    """The broker does not have the offset, and the policy is to fail."""

    def __init__(self, partition: TopicPartition, offset: int) -> None:
        super().__init__(
            f"{partition} has no offset {offset} on its broker (deleted by retention, or never written); set the"
            f" group's offset to one that exists, or set fetch.out_of_range to {_others(OutOfRangePolicy)}"
        )
        self.partition = partition
        self.offset = offset


class BrokerAnswerError(BrokerError):
    """A broker answered a fetch with an error code, or holds bytes that are not messages."""


class NoBoundaryError(BrokerAnswerError):
    """The log has bytes that are not messages: where messages begin after them is unknown."""


class LogChangedError(BrokerError):
    """The log of a partition is another one than that of the position, and the policy is to stop."""

    def __init__(self, partition: TopicPartition, change: LogChange) -> None:
        super().__init__(
            f"the log of {partition} {change}; set the group's offset to one of the present log, or set"
            " fetch.log_changed to continue"
        )
        self.partition = partition
        self.change = change


class OffsetBeyondError(BrokerError):
    """A broker sent a message that ends at an offset that no log can have."""

    def __init__(self, partition: TopicPartition, broker: int, offset: int, next_offset: int) -> None:
        super().__init__(
            f"broker {broker} sent messages at offset {offset} of {partition} that end at {next_offset}, beyond the"
            f" largest offset, {MAX_OFFSET}: its log is damaged, or it is not a Kafka broker; check the log with"
            " `consumerd log verify`, and set the group's offset to one that exists"
        )
        self.partition = partition
        self.broker = broker
        self.offset = offset


class MessageTooLargeError(CorruptDataError):
    """A message does not fit into the largest fetch allowed, and the policy is to fail."""

    def __init__(self, partition: TopicPartition, offset: int, needed: int | None, limit: int) -> None:
        size = f"needs {needed} bytes" if needed is not None else "needs more"
        super().__init__(
            f"the message at offset {offset} of {partition} {size}, and fetch.max_size is {limit}; raise it, or set"
            f" fetch.oversize to {_others(BadMessagePolicy)}"
        )
        self.partition = partition
        self.offset = offset
        self.needed = needed


class CorruptPartitionError(CorruptDataError):
    """A message is corrupt, and the policy is to fail."""

    def __init__(self, partition: TopicPartition, offset: int, problem: str) -> None:
        super().__init__(
            f"{partition} is corrupt at offset {offset} ({problem}); move the group's offset past it, or set"
            f" fetch.corrupt to {_others(BadMessagePolicy)}"
        )
        self.partition = partition
        self.offset = offset
