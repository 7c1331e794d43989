"""Settings of topics and groups, as brokers tell them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from consumerd.net.client.channel import Channel
from consumerd.net.client.cluster import ClusterClient
from consumerd.net.client.errors import error_of, topic_error
from consumerd.wire.v08.apis.topics import DESCRIBE_CONFIGS, GROUP, TOPIC

if TYPE_CHECKING:
    from consumerd.wire.v08.message_types import DescribeConfigsRequest

_LIMIT: Final = "max.message.bytes"
_SESSION_TIMEOUT: Final = "consumer.session.timeout.ms"
#: Topics that one request names at most.
_MOST: Final = 1000


async def message_limits(client: ClusterClient, topics: Sequence[str]) -> dict[str, int]:
    """The largest record batch in bytes that each of the first 1,000 topics takes, `max.message.bytes`.

    Raises as `topic_settings`.
    """
    found = await topic_settings(client, topics, [_LIMIT])
    limits = {topic: settings.get(_LIMIT) for topic, settings in found.items()}
    return {topic: int(value) for topic, value in limits.items() if value is not None and _is_number(value)}


async def topic_settings(
    client: ClusterClient, topics: Sequence[str], keys: Sequence[str]
) -> dict[str, dict[str, str | None]]:
    """The values of `keys`, as far as brokers tell them, of the first 1,000 topics. One attempt.

    Topics that do not exist are left out. Raises UnsupportedApiError for brokers before 0.11, BrokerRefusedError
    without the permission DescribeConfigs, BrokerError.
    """
    body: DescribeConfigsRequest = {
        "resources": [
            {"resource_type": TOPIC, "resource_name": topic, "configuration_keys": list(keys)}
            for topic in topics[:_MOST]
        ]
    }
    channel = await client.any_channel()
    answer = await channel.call(DESCRIBE_CONFIGS, body)
    found = {}
    for result in answer["results"]:
        topic = result["resource_name"]
        what = f"the settings of {topic} cannot be read"
        if error := topic_error(result["error_code"], what, topic, "DescribeConfigs"):
            if error.retriable:  # as for a topic that does not exist
                continue
            raise error
        found[topic] = {config["name"]: config["value"] for config in result["configs"]}
    return found


def _is_number(value: str) -> bool:
    return value.isascii() and value.isdigit()


async def group_session_timeout(channel: Channel, group: str) -> float | None:
    """The seconds of silence after which members of a group of the consumer protocol are removed; None if not told.

    One attempt. Raises UnsupportedApiError, BrokerRefusedError without the permission DescribeConfigs on the group,
    BrokerError.
    """
    body: DescribeConfigsRequest = {
        "resources": [{"resource_type": GROUP, "resource_name": group, "configuration_keys": [_SESSION_TIMEOUT]}]
    }
    answer = await channel.call(DESCRIBE_CONFIGS, body)
    for result in answer["results"]:
        if error := error_of(result["error_code"], f"the settings of group {group!r} cannot be read"):
            raise error
        for config in result["configs"]:
            value = config["value"]
            if config["name"] == _SESSION_TIMEOUT and value is not None and _is_number(value):
                return int(value) / 1000
    return None
