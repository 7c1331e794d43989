"""The target's topics: their numbers of partitions, and the creation of missing ones.

Strategy: a topic is looked up before a feed's first message; one that is missing is created if a number of partitions
was given. Another process may create it first, which is fine. Before the first message the feed also checks
that the target supports headers, so that a target that is too old is reported at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import structlog

from consumerd.handlers.forward.errors import NoHeadersError, NoTopicError
from consumerd.net.client.cluster import ClusterClient
from consumerd.net.client.errors import error_of
from consumerd.net.client.metadata import MISSING_TOPIC
from consumerd.wire.v08.apis import CREATE_TOPICS, PRODUCE
from consumerd.wire.v08.error_codes import ErrorCode

if TYPE_CHECKING:
    from consumerd.wire.v08.message_types import CreateTopicsRequest

log = structlog.get_logger(__name__)

#: The first version of PRODUCE with record batches, which have headers.
_HEADERS_SINCE: Final = 3
#: The first version of CREATE_TOPICS that knows the brokers' defaults.
_DEFAULTS_SINCE: Final = 4
_TIMEOUT_MS: Final = 30_000


class ForwardTopics:
    """The topics of the cluster behind `client`.

    `partitions` and `replication_factor` are those of created ones, as in `ForwardSettings`.
    """

    def __init__(
        self,
        client: ClusterClient,
        *,
        partitions: int | Mapping[str, int] | None = None,
        replication_factor: int | None = None,
    ) -> None:
        self._client = client
        self._partitions = partitions
        self._replication_factor = replication_factor
        self._making = asyncio.Lock()

    async def require_headers(self) -> None:
        """Raise NoHeadersError where a broker is too old for headers; BrokerError while none can be reached."""
        channel = await self._client.any_channel()
        if not channel.versions.has(PRODUCE, _HEADERS_SINCE):
            raise NoHeadersError(
                f"the target's broker {channel.address} is older than 0.11 and does not support headers, which "
                "hold the source identity of messages: set headers = false (--no-headers), or upgrade the brokers."
            )

    async def count(self, topic: str) -> int:
        """The number of partitions; a missing topic is created if partitions are configured.

        Raises NoTopicError where it is neither there nor to be created, BrokerRefusedError, BrokerError.
        """
        found = await self._look(topic)
        if found:
            return found
        partitions = self._partitions.get(topic) if isinstance(self._partitions, Mapping) else self._partitions
        if partitions is None:
            raise NoTopicError(
                f"the target has no topic {topic!r}: create it, or set its number of partitions "
                "(partitions = ..., --partitions)."
            )
        async with self._making:
            return await self._look(topic) or await self._create(topic, partitions)

    async def _look(self, topic: str) -> int:
        """The number of partitions; 0 for a missing topic."""
        known = self._client.metadata.topics.get(topic)
        if known is not None and known.partitions:
            return len(known.partitions)

        async def ask() -> int:
            described = (await self._client.refresh([topic])).topics.get(topic, MISSING_TOPIC)
            error = error_of(described.error, f"the target has no metadata for topic {topic!r}")
            if error is not None and error.code != MISSING_TOPIC.error and not described.partitions:
                raise error
            return len(described.partitions)

        return await self._client.retrying(f"partitions of {topic}", ask)

    async def _create(self, topic: str, partitions: int) -> int:
        await self._client.retrying(f"create {topic}", lambda: self._ask_to_create(topic, partitions))

        async def there() -> int:
            count = await self._look(topic)
            if not count:
                raise error_of(ErrorCode.LEADER_NOT_AVAILABLE, f"topic {topic!r} was created and is not available yet")  # type: ignore[misc]  # no success
            return count

        count = await self._client.retrying(f"partitions of {topic}", there)
        self._look_at_replicas(topic)
        return count

    def _look_at_replicas(self, topic: str) -> None:
        """Warn of a single replica by default, where a cluster of several brokers can keep more."""
        metadata = self._client.metadata
        replicas = min(len(each.replicas) for each in metadata.topics[topic].partitions.values())
        if replicas == 1 < len(metadata.nodes) and self._replication_factor is None:
            log.warning(
                "topic_has_one_replica",
                topic=topic,
                reason="the brokers' default.replication.factor is 1: losing a broker loses its messages",
                remedy="add replicas (kafka-reassign-partitions); create topics with --replication-factor",
            )

    async def _ask_to_create(self, topic: str, partitions: int) -> None:
        await self._client.refresh()
        controller = self._client.metadata.controller
        channel = await (self._client.any_channel() if controller is None else self._client.node_channel(controller))
        version = channel.versions.pick(CREATE_TOPICS)
        replicas = self._replication_factor
        if replicas is None and version < _DEFAULTS_SINCE:
            raise NoTopicError(
                f"the target has no topic {topic!r}, and its brokers (before 2.4) have no default replication factor: "
                "set replication_factor (--replication-factor)."
            )
        body: CreateTopicsRequest = {
            "topics": [
                {
                    "name": topic,
                    "num_partitions": partitions,
                    "replication_factor": -1 if replicas is None else replicas,
                }
            ],
            "timeout_ms": _TIMEOUT_MS,
        }
        answer = await channel.call(CREATE_TOPICS, body, version=version)
        for described in answer["topics"]:
            error = error_of(
                described["error_code"], f"the topic {topic!r} was not created", described.get("error_message")
            )
            if error is not None and error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                raise error
        log.info("topic_created", topic=topic, partitions=partitions)
