"""Topics created and deleted by requests (0.10.1 and later), which the controller carries out.

Strategy: an attempt is repeated where no broker answered it, or another one is the controller. After an attempt without
an answer, a topic to create that exists as it was planned, or one to delete that does not, is its result.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from consumerd.base.errors import BrokerError, NotFoundError
from consumerd.net.client.channel import Channel
from consumerd.net.client.cluster import ClusterClient
from consumerd.net.client.errors import BrokerRefusedError, error_of
from consumerd.net.client.metadata import metadata_body
from consumerd.net.client.retrying import UnansweredAttempts, passes
from consumerd.operate.admin.errors import ArgumentError
from consumerd.operate.admin.v08.topic_nodes import TopicChanges, TopicPlan, require_alive
from consumerd.wire.v08.apis import CREATE_TOPICS, DELETE_TOPICS, METADATA
from consumerd.wire.v08.error_codes import ErrorCode
from consumerd.wire.v08.errors import UnsupportedApiError
from consumerd.wire.v08.schema import Api

if TYPE_CHECKING:
    from consumerd.wire.v08.message_types import (
        CreateTopicsRequest,
        CreateTopicsRequestTopic,
        CreateTopicsResponseTopic,
        DeleteTopicsRequest,
        DeleteTopicsResponseResponse,
    )

#: From this version of CREATE_TOPICS on -1 stands for the brokers' defaults.
_DEFAULTS_SINCE: Final = 4
#: From this version of CREATE_TOPICS on a topic can be checked without being created.
_VALIDATE_SINCE: Final = 1
_BY_NAME_OR_ID: Final = 6
_NOT_CONTROLLER: Final = 41
_REQUEST_TIMED_OUT: Final = 7


class TopicsByRequests(TopicChanges):
    """Sends requests to the brokers of `client`."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client

    async def create(self, plan: TopicPlan, *, timeout: float, check_only: bool = False) -> list[int]:
        """As of `TopicChanges`, when the controller has created it; brokers check since 0.10.2.

        Raises UnsupportedApiError for brokers before 0.10.1.
        """

        async def attempt(channel: Channel) -> None:
            version = channel.versions.pick(CREATE_TOPICS, at_least=_VALIDATE_SINCE if check_only else 0)
            body: CreateTopicsRequest = {"topics": [_topic(plan, version)], "timeout_ms": int(timeout * 1000)}
            if version >= _VALIDATE_SINCE:
                body["validate_only"] = check_only
            answer = await channel.call(CREATE_TOPICS, body, version=version, timeout=2 * timeout)
            _judge(answer["topics"], f"the topic {plan.name!r} was not created", timeout)

        if plan.assignment is not None:
            require_alive(plan.assignment, (await self._client.retrying("metadata", self._client.refresh)).nodes)
        unanswered = UnansweredAttempts()
        try:
            await self._at_controller(CREATE_TOPICS, attempt, unanswered)
        except BrokerRefusedError as error:
            exists = error.code == ErrorCode.TOPIC_ALREADY_EXISTS
            if check_only or not (exists and unanswered and await self._is_there(plan)):
                raise
        return []

    async def wait_until_known(self, topics: Sequence[str]) -> None:
        """Return when each live broker knows of leaders of created topics, some time after the controller created them.

        Raises BrokerError if that takes longer than the client retries.
        """

        async def ask(node_id: int) -> None:
            channel = await self._client.node_channel(node_id)
            version = channel.versions.pick(METADATA)
            answer = await channel.call(METADATA, metadata_body(version, topics), version=version)
            known = {
                each["name"]: [each["error_code"], *(part["error_code"] for part in each["partitions"])]
                for each in answer["topics"]
            }
            for topic in topics:
                code = next(filter(None, known.get(topic, [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION])), 0)
                if error := error_of(code, f"broker {node_id} does not know the new topic {topic!r} yet"):
                    raise error

        for node_id in (await self._client.retrying("metadata", self._client.refresh)).nodes:
            await self._client.retrying(f"new topics at broker {node_id}", partial(ask, node_id))

    async def delete(self, topic: str, *, timeout: float) -> bool:
        """As of `TopicChanges`, when the controller has deleted it. Raises UnsupportedApiError before 0.10.1."""

        async def attempt(channel: Channel) -> None:
            version = channel.versions.pick(DELETE_TOPICS)
            body: DeleteTopicsRequest = {"timeout_ms": int(timeout * 1000)}
            if version < _BY_NAME_OR_ID:
                body["topic_names"] = [topic]
            else:
                body["topics"] = [{"name": topic}]
            answer = await channel.call(DELETE_TOPICS, body, version=version, timeout=2 * timeout)
            _judge(answer["responses"], f"the topic {topic!r} was not deleted", timeout)

        unanswered = UnansweredAttempts()
        try:
            await self._at_controller(DELETE_TOPICS, attempt, unanswered)
        except BrokerRefusedError as error:
            if error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                if unanswered:
                    return True
                raise NotFoundError(f"there is no topic {topic!r}; see `consumerd topics list`") from error
            raise
        return True

    async def _is_there(self, plan: TopicPlan) -> bool:
        """Whether the topic has as many partitions as planned: then it is not another one of this name."""
        planned = plan.partitions if plan.assignment is None else len(plan.assignment)
        metadata = await self._client.retrying("metadata", lambda: self._client.refresh([plan.name], never_create=True))
        found = metadata.topics.get(plan.name)
        return found is not None and planned in (None, len(found.partitions))

    async def _at_controller(
        self,
        api: Api[Any, Any],
        attempt: Callable[[Channel], Awaitable[None]],
        unanswered: UnansweredAttempts,
    ) -> None:
        def is_repeated(error: BrokerError) -> bool:
            return error.code == _NOT_CONTROLLER if isinstance(error, BrokerRefusedError) else passes(error)

        async def once() -> None:
            metadata = await self._client.refresh()
            node_id = metadata.controller
            channel = await (self._client.any_channel() if node_id is None else self._client.node_channel(node_id))
            try:
                with unanswered:
                    await attempt(channel)
            except UnsupportedApiError as error:
                if channel.versions.has(api):
                    raise
                raise UnsupportedApiError(
                    f"broker {channel.address} (Kafka {channel.versions.release.value}) creates and deletes no topics "
                    "on request, which began with 0.10.1: give --zookeeper instead of --bootstrap-server"
                ) from error

        await self._client.retrying(api.name, once, passes=is_repeated)


def _topic(plan: TopicPlan, version: int) -> CreateTopicsRequestTopic:
    partitions, replication = plan.partitions, plan.replication
    if plan.assignment is not None:
        partitions = replication = -1
    elif version < _DEFAULTS_SINCE and (partitions is None or replication is None):
        raise ArgumentError(
            "brokers before 2.4 have no defaults for topics that are created on request: "
            "give --partitions and --replication-factor"
        )
    return {
        "name": plan.name,
        "num_partitions": -1 if partitions is None else partitions,
        "replication_factor": -1 if replication is None else replication,
        "assignments": [
            {"partition_index": number, "broker_ids": list(replicas)}
            for number, replicas in (plan.assignment or {}).items()
        ],
        "configs": [{"name": key, "value": value} for key, value in plan.config.items()],
    }


def _judge(
    results: Sequence[CreateTopicsResponseTopic | DeleteTopicsResponseResponse], what: str, timeout: float
) -> None:
    if len(results) != 1:
        raise BrokerError(f"{what}: the broker returned {len(results)} topics instead of one")
    code, said = results[0]["error_code"], results[0].get("error_message")
    if code == _REQUEST_TIMED_OUT:
        said = (
            f"the controller did not finish within {timeout:g} s and may still go on; see `consumerd topics describe` "
            "(brokers delete no topics unless delete.topic.enable is true, the default since 1.0)"
        )
    if error := error_of(code, what, said):
        raise error
