"""What a handler knows of the member that it works for, and what it may ask of it.

Strategy: the member brings its identity and `MemberPort`; the stages around the handler add its name, settings and
metrics (`consumerd.handlers.stages`). Outside of a member (`handlers test`, replays, tests) the same context is there,
with a port that owns nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import structlog

from consumerd.metrics.own import HandlerMetrics

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from consumerd.partition import TopicPartition
    from consumerd.ports import Clock


class MemberPort(Protocol):
    """What a handler may ask of its member."""

    @property
    def partitions(self) -> Iterable[TopicPartition]:
        """The partitions that are owned now, sorted."""
        ...

    async def commit(self) -> Mapping[TopicPartition, int]:
        """Commit what is handled; the offsets that are committed then."""
        ...

    def pause(self, partition: TopicPartition) -> None:
        """Fetch and deliver nothing of a partition."""
        ...

    def resume(self, partition: TopicPartition) -> None:
        """Go on with it."""
        ...


class _NoMember:
    partitions: tuple[TopicPartition, ...] = ()

    async def commit(self) -> Mapping[TopicPartition, int]:
        return {}

    def pause(self, partition: TopicPartition) -> None:
        return

    def resume(self, partition: TopicPartition) -> None:
        return


@dataclass(frozen=True, slots=True)
class HandlerContext:
    """What a handler gets in `start`, and may keep until `stop`."""

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

    async def commit(self) -> Mapping[TopicPartition, int]:
        """Commit now what is handled, of all partitions of the member; returns the committed offsets.

        Of a batch in hand that is what was marked (`Batch.mark`), up to the end of a compressed message. Raises
        ZooKeeperError or BrokerError, which in `handle` is a failure like any other. Without a member, it does nothing.
        """
        return await self.member.commit()

    def pause(self, partition: TopicPartition) -> None:
        """Deliver and fetch nothing of `partition` after the call in hand, until `resume`. It stays owned.

        Forgotten when the partition is assigned again. Raises NotAssignedError for one that is not owned.
        """
        self.member.pause(partition)

    def resume(self, partition: TopicPartition) -> None:
        """Go on after `pause`. Raises NotAssignedError for a partition that is not owned."""
        self.member.resume(partition)
