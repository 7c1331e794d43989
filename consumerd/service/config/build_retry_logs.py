"""The retry topics of a configuration, as the order by keys reads them: with a client of its own.

Strategy: offsets are read from the store that the members of the group commit to, and brokers are found as members find
them: by `kafka.bootstrap`, or, where the group is in ZooKeeper, by what is registered there. A ZooKeeper server that
lags behind has former offsets, with which keys wait for longer.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from random import Random
from typing import NamedTuple

from consumerd.base.partition import TopicPartition
from consumerd.base.ports import Clock
from consumerd.handlers.dead_letters import failure_time
from consumerd.handlers.forward.target_log import TargetLog
from consumerd.handlers.retry_order import Bounds, RetryLogs, Waiting
from consumerd.member.offsets.choice import make_store
from consumerd.member.offsets.store import OffsetStore
from consumerd.service.config.build import build_offset_settings, open_session
from consumerd.service.config.build_dead_letters import opened_client, registered_brokers
from consumerd.service.config.build_v08 import build_bootstrap
from consumerd.service.config.model import Config


class _Opened(NamedTuple):
    log: TargetLog
    offsets: OffsetStore
    stack: AsyncExitStack


class BrokerRetryLogs(RetryLogs):
    """Reads retry topics, and the offsets that the group of `config` has committed there."""

    def __init__(self, config: Config, *, clock: Clock, rng: Random) -> None:
        self._config = config
        self._clock = clock
        self._rng = rng
        self._opened: _Opened | None = None

    async def start(self) -> None:
        """Raises BrokerError, ZooKeeperError, ConfigError."""
        config = self._config
        async with AsyncExitStack() as stack:
            session = None
            if config.needs_session:
                session = await open_session(stack, config.zookeeper, self._clock, self._rng)
            if session is not None and config.group.coordination == "zookeeper":
                addresses = await registered_brokers(config, session)
            else:
                addresses = build_bootstrap(config.kafka)
            client = await opened_client(config, addresses, stack, self._clock, self._rng)
            store = make_store(build_offset_settings(config), config.group.id, client=client, zk=session)
            self._opened = _Opened(TargetLog(client), store, stack.pop_all())

    async def stop(self) -> None:
        if self._opened is not None:
            await self._opened.stack.aclose()

    @property
    def _parts(self) -> tuple[TargetLog, OffsetStore]:
        assert self._opened is not None  # it is started
        return self._opened.log, self._opened.offsets

    async def bounds(self, topic: str) -> dict[TopicPartition, Bounds]:
        """Raises BrokerError, OffsetsUnavailableError, ZooKeeperError, RegistryError."""
        log, store = self._parts
        numbers = await log.partitions(topic)
        partitions = {number: TopicPartition.numbered(topic, number) for number in numbers}
        committed = await store.peek(partitions.values())
        kept = await log.all_bounds(topic, numbers)
        return {
            partition: Bounds(max(kept[number].start, committed.get(partition, 0)), kept[number].end)
            for number, partition in partitions.items()
        }

    async def read(self, partition: TopicPartition, start: int, end: int) -> AsyncGenerator[list[Waiting]]:
        """Raises BrokerError, CorruptDataError."""
        async for records in self._parts[0].read(partition.topic, partition.partition, start, end):
            yield [Waiting(each.offset, each.key, failure_time(each.headers) or 0.0) for each in records]
