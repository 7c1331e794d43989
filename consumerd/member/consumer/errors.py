"""Errors of group members and of the streams, listeners and partitions of the library's consumers."""

from __future__ import annotations

from consumerd.base.errors import ConsumerdError, ExitCode, HandlerFailedError, NotFoundError, ZooKeeperError, reason_of
from consumerd.base.partition import TopicPartition


class GroupRefusedError(ZooKeeperError):
    """The group uses another dialect of ZooKeeper's nodes than this member, or both."""

    def __init__(self, group: str, reason: str) -> None:
        super().__init__(f"cannot join group {group!r}: {reason}")


class FixedGroupError(ConsumerdError):
    """Offsets of fixed partitions are rejected because the group has members that share partitions."""

    exit_code = ExitCode.REFUSED

    def __init__(self, group: str, partition: TopicPartition) -> None:
        super().__init__(
            f"cannot commit the offset of {partition} to group {group!r}: the group has other members, or the handler "
            "gave up the partition; fixed partitions need a group of their own."
        )


class ConsumerTimeoutError(ConsumerdError):
    """No message arrived within the consumer timeout. The stream can be iterated again."""

    exit_code = ExitCode.OK

    def __init__(self, seconds: float) -> None:
        super().__init__(f"no message arrived within {seconds:g} s; iterate again to continue waiting")


class ConnectorStateError(ConsumerdError):
    """A connector or stream was misused: streams created twice, or used before start or after shutdown."""

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
