"""A consumer of fixed partitions: the configuration assigns them, without a coordinator.

Strategy: the flow of messages is that of the other members, on a lease without end. Offsets are kept in Kafka or in
ZooKeeper under the group's name, in both, or nowhere: then each start begins where the initial policy, or the handler's
own position, says. Two processes with the same partitions both receive all of their messages: the operator must keep
them apart. Either store refuses commits while the group has members that coordinate by it, and then this one stops.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from random import Random
from typing import Literal, Unpack

import structlog

from consumerd.base.errors import NotFoundError
from consumerd.base.partition import TopicPartition
from consumerd.member.consumer.backends_v08 import ClusterBackend
from consumerd.member.consumer.errors import FixedGroupError
from consumerd.member.consumer.fence import FIXED_SESSION, Fence, FixedLease
from consumerd.member.consumer.running_member import MemberParts, RunningMember
from consumerd.member.consumer.settings import ConsumerSettings
from consumerd.net.client.cluster import ClusterClient

log = structlog.get_logger(__name__)


class FixedConsumer(RunningMember[Literal["stop"]]):
    """Consumes all of `partitions` until it is stopped. The caller closes the parts of `backend`."""

    def __init__(
        self,
        settings: ConsumerSettings,
        partitions: Sequence[TopicPartition],
        *,
        backend: ClusterBackend,
        rng: Random,
        **parts: Unpack[MemberParts],
    ) -> None:
        super().__init__(settings, stop_event="stop", **parts)
        self._assigned = sorted(set(partitions))
        self.fence = Fence(FixedLease(), self.clock, settings.lease_margin)
        pool = backend.pool(self, rng)
        store = backend.store(settings.group)
        self.cluster, self.brokers = backend.cluster, backend.brokers
        self._make_partitions(pool, store, self._refused)

    @property
    def assigned(self) -> list[TopicPartition]:
        """The partitions of the configuration."""
        return list(self._assigned)

    @property
    def settled(self) -> bool:
        return self.ready.is_set()

    def _background(self) -> list[Callable[[], Coroutine[None, None, None]]]:
        return [self._pool.run, *super()._background()]

    async def _main_loop(self) -> None:
        self._partitions.start(dict.fromkeys(self._assigned, 0), FIXED_SESSION, self._tasks)
        log.info("partitions_assigned", group=self.settings.group, partitions=[str(each) for each in self._assigned])
        self.stats.rebalances += 1
        self.ready.set()
        self.check_end()
        await self._queue.get()
        deadline = self.clock.monotonic() + self.settings.membership.drain_timeout
        await self._partitions.drain(self._assigned, deadline, lambda _: None)

    def _refused(self, partitions: frozenset[TopicPartition]) -> None:
        self.request_stop(FixedGroupError(self.settings.group, min(partitions)))


async def require_partitions(client: ClusterClient, partitions: Iterable[TopicPartition]) -> None:
    """Raise NotFoundError for a partition that its topic does not have. Raises BrokerError."""
    wanted = list(partitions)
    metadata = await client.topics(sorted({partition.topic for partition in wanted}))
    for partition in wanted:
        topic = metadata.topics.get(partition.topic)
        if topic is not None and topic.partitions and partition.partition not in topic.partitions:
            raise NotFoundError(
                f"the topic {partition.topic!r} has no partition {partition.partition}: it has "
                f"{len(topic.partitions)}, numbered from 0; see group.partitions."
            )
