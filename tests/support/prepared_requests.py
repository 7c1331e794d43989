"""Requests that encode themselves (`consumerd.net.client.channel.PreparedRequest`), read as a broker reads them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import MappingProxyType, SimpleNamespace
from typing import Any, Self

from consumerd.net.client.channel import PreparedRequest
from consumerd.net.client.metadata import ClusterMetadata, Node, PartitionMetadata, TopicMetadata
from consumerd.wire.v08 import decode_request
from consumerd.wire.v08.schema import NO_UUID, Api


def request_body(api: Api[Any, Any], body: dict[str, Any] | PreparedRequest[Any]) -> dict[str, Any]:
    """The fields of a request."""
    return body if isinstance(body, dict) else decode_request(api, body.encode(1, "test")[4:]).body


class Posting:
    """A client and channel in one that serves what is posted as what is called."""

    async def call(self, api: Api[Any, Any], body: Any, **options: Any) -> dict[str, Any]:
        """The fields of a response."""
        raise NotImplementedError

    #: The ids of topics.
    topic_ids: Mapping[str, bytes] = MappingProxyType({})

    def known_topic_id(self, topic: str) -> bytes:
        """The id of a topic, if it has one."""
        return self.topic_ids.get(topic, NO_UUID)

    def open_node_channel(self, node_id: int) -> Self | None:
        """The connection is open."""
        del node_id
        return self

    def post(self, api: Api[Any, Any], body: Any, settle: Callable[[Any], object], **options: Any) -> bool:
        """Send a request. The response comes in a later turn of the loop."""

        def settled(called: asyncio.Task[dict[str, Any]]) -> None:
            if not called.cancelled():
                settle(called.exception() or called.result())

        asyncio.ensure_future(self.call(api, body, **options)).add_done_callback(settled)
        return True


def client_settings() -> SimpleNamespace:
    """What a producer reads of a client's settings."""
    return SimpleNamespace(
        max_request_bytes=1 << 20, retry_backoff_min=0.01, connection=SimpleNamespace(socket_timeout=5.0)
    )


def one_broker(partitions: int) -> ClusterMetadata:
    """The metadata of one broker that leads a topic `t`."""
    parts = {n: PartitionMetadata(0, 0, (0,), (0,), 0) for n in range(partitions)}
    return ClusterMetadata({0: Node(0, "memory", 1)}, {"t": TopicMetadata(0, parts)})


class OneBroker(Posting):
    """A client of one broker, which leads a topic `t`, and the channel to it."""

    def __init__(self, partitions: int, *, idempotent: bool = False) -> None:
        self.settings = client_settings()
        self.versions = SimpleNamespace(pick=lambda *_, **__: 9, has=lambda _: idempotent)
        self.address = "memory:1"
        self.metadata = one_broker(partitions)

    def known_leader(self, topic: str, partition: int) -> Node:
        """The broker."""
        node = self.metadata.leader(topic, partition)
        assert node is not None
        return node

    async def node_channel(self, node_id: int) -> Self:
        """The channel."""
        return self
