"""The retry topics of a configuration, as the order by keys reads them: with a client of its own."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from random import Random

from consumerd.base.partition import TopicPartition
from consumerd.base.ports import Clock
from consumerd.handlers.dead_letters import failure_time
from consumerd.handlers.forward.target_log import TargetLog
from consumerd.handlers.retry_order import Bounds, RetryLogs, Waiting
from consumerd.member.offsets.kafka_store import KafkaOffsetStore
from consumerd.net.client.factory import find_broker
from consumerd.service.config.build import build_connection_settings
from consumerd.service.config.build_v08 import build_bootstrap, build_client_of
from consumerd.service.config.model import Config


class BrokerRetryLogs(RetryLogs):
    """Reads retry topics, and the offsets that the group of `config` has committed there."""

    def __init__(self, config: Config, *, clock: Clock, rng: Random) -> None:
        self._servers = build_bootstrap(config.kafka)
        self._timeout = config.kafka.connection_timeout
        self._client = build_client_of(
            config.kafka, build_connection_settings(config), clock=clock, rng=rng, bootstrap=self._servers
        )
        self._log = TargetLog(self._client)
        self._offsets = KafkaOffsetStore(self._client, config.group.id)

    async def start(self) -> None:
        """Raises BrokerError."""
        await find_broker(self._client, [f"{host}:{port}" for host, port in self._servers], self._timeout)

    async def stop(self) -> None:
        await self._client.close()

    async def bounds(self, topic: str) -> dict[TopicPartition, Bounds]:
        """Raises BrokerError, OffsetsUnavailableError."""
        partitions = [TopicPartition.numbered(topic, number) for number in await self._log.partitions(topic)]
        committed = await self._offsets.load(partitions)
        found = {}
        for partition in partitions:
            kept = await self._log.bounds(topic, partition.partition)
            found[partition] = Bounds(max(kept.start, committed.get(partition, kept.start)), kept.end)
        return found

    async def read(self, partition: TopicPartition, start: int, end: int) -> AsyncGenerator[list[Waiting]]:
        """Raises BrokerError, CorruptDataError."""
        async for records in self._log.read(partition.topic, partition.partition, start, end):
            yield [Waiting(each.offset, each.key, failure_time(each.headers) or 0.0) for each in records]
