"""The context of a handler: the identity of its member, and the calls that it may make to the member.

Strategy: the member brings its identity and `MemberPort`; the stages around the handler add its name, settings and
metrics (`consumerd.handlers.handler_stages`). Outside of a member (`handlers test`, replays, tests) the same context is
there, with a port that owns nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

import structlog

from consumerd.base.metrics.own import HandlerMetrics
from consumerd.base.partition import TopicPartition
from consumerd.base.ports import Clock


class MemberPort(Protocol):
    """The calls of a handler to its member; the answers here are those without one."""

    @property
    def partitions(self) -> Iterable[TopicPartition]:
        """The partitions that are owned now, sorted."""
        return ()

    async def cluster(self) -> str | None:
        """Return the name of the cluster; None where nothing tells it."""
        return None

    async def commit(self) -> Mapping[TopicPartition, int]:
        """Commit the handled offsets; return the committed offsets."""
        return {}

    async def committed(self, partition: TopicPartition) -> int | None:
        """Return the committed offset of a partition; None for none."""
        return None

    def pause(self, partition: TopicPartition) -> None:
        """Fetch and deliver nothing of a partition."""
        return

    def resume(self, partition: TopicPartition) -> None:
        """Resume it."""
        return


class _NoMember(MemberPort):
    """Owns nothing."""


@dataclass(frozen=True, slots=True)
class HandlerContext:
    """The argument of a handler's `start`, which it may keep until `stop`."""

    group: str
    consumer_id: str
    clock: Clock
    #: As the configuration has it.
    name: str = field(default="handler", compare=False)
    #: The table `[handler]` with its defaults, read-only. Its `options` may be secret: it is not shown.
    config: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}), compare=False, repr=False)
    #: Shown by /metrics, under the handler's name.
    metrics: HandlerMetrics = field(default_factory=HandlerMetrics, compare=False, repr=False)
    member: MemberPort = field(default_factory=_NoMember, compare=False, repr=False)

    @property
    def log(self) -> Any:
        """A structlog logger, bound to the handler's name, group and consumer id."""
        return structlog.get_logger(self.name).bind(handler=self.name, group=self.group, consumer=self.consumer_id)

    @property
    def partitions(self) -> tuple[TopicPartition, ...]:
        """The partitions that the member owns now, sorted; none outside of a member."""
        return tuple(self.member.partitions)

    async def cluster(self) -> str | None:
        """Return a name for the cluster that the messages come from: the same for all members, and after restarts.

        Since Kafka 0.10.1 the cluster's id, before that a text such as `zk-4-18f3a2c1b00`, for the tree in ZooKeeper.
        None without a member, and for groups of 0.9 and 0.10.0 that brokers coordinate. Ask while a batch is handled:
        before, nothing may be known. Raises ZooKeeperError.
        """
        return await self.member.cluster()

    async def commit(self) -> Mapping[TopicPartition, int]:
        """Commit the handled offsets of all partitions of the member now; return the committed offsets.

        Of a batch being handled, marked messages count (`Batch.mark`), up to the end of a compressed message. Raises
        ZooKeeperError or BrokerError, which in `handle` is a failure like any other. Without a member, it does nothing.
        """
        return await self.member.commit()

    async def committed(self, partition: TopicPartition) -> int | None:
        """Return the committed offset of an owned partition, also before its first message; None for none.

        Waits until the store answers. Raises permanent errors of brokers. Without a member there is none.
        """
        return await self.member.committed(partition)

    def pause(self, partition: TopicPartition) -> None:
        """Deliver and fetch nothing of `partition` after the current call, until `resume`. It stays owned.

        Forgotten when the partition is assigned again. Raises NotAssignedError for one that is not owned.
        """
        self.member.pause(partition)

    def resume(self, partition: TopicPartition) -> None:
        """Continue after `pause`. Raises NotAssignedError for a partition that is not owned."""
        self.member.resume(partition)
