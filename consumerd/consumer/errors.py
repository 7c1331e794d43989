"""What keeps a member out of its group, and what the users of its streams are told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumerd.errors import ConsumerdError, ExitCode, HandlerFailedError, NotFoundError, ZooKeeperError, reason_of

if TYPE_CHECKING:
    from consumerd.partition import TopicPartition


class GroupRefusedError(ZooKeeperError):
    """The group speaks another dialect of ZooKeeper's nodes than we do, or both."""

    def __init__(self, group: str, reason: str) -> None:
        super().__init__(f"cannot join group {group!r}: {reason}")


class FixedGroupError(ConsumerdError):
    """Offsets of fixed partitions are refused, because the group has members that coordinate."""

    exit_code = ExitCode.REFUSED

    def __init__(self, group: str, partition: TopicPartition) -> None:
        super().__init__(
            f"the offset of {partition} cannot be kept under group {group!r}: that group has members that share "
            "partitions out, or the handler gave the partition up; fixed partitions need a group of their own."
        )


class ConsumerTimeoutError(ConsumerdError):
    """No message came for as long as the consumer timeout says. The stream can be iterated again."""

    exit_code = ExitCode.OK

    def __init__(self, seconds: float) -> None:
        super().__init__(f"no message came within {seconds:g} s; iterate again to go on waiting")


class ConnectorStateError(ConsumerdError):
    """A connector or stream was used as it cannot be: streams made twice, or used before or after its life."""

    exit_code = ExitCode.USAGE


class NotAssignedError(NotFoundError):
    """The partition is not this member's, or not yet."""

    def __init__(self, partition: TopicPartition) -> None:
        super().__init__(f"{partition} is not assigned to this consumer; see assignment()")
        self.partition = partition


class ListenerFailedError(HandlerFailedError):
    """A rebalance listener raised."""

    def __init__(self, method: str, error: BaseException) -> None:
        super().__init__(f"the rebalance listener's {method} failed ({reason_of(error)})")
