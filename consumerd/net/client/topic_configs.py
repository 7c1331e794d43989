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
    found = {}
    for topic, code, settings in await _described(await client.any_channel(), TOPIC, topics[:_MOST], keys):
        if error := topic_error(code, f"the settings of {topic} cannot be read", topic, "DescribeConfigs"):
            if error.retriable:  # as for a topic that does not exist
                continue
            raise error
        found[topic] = settings
    return found


async def _described(
    channel: Channel, kind: int, names: Sequence[str], keys: Sequence[str]
) -> list[tuple[str, int, dict[str, str | None]]]:
    """Each name that the broker tells of, with its error code and the values of `keys`."""
    body: DescribeConfigsRequest = {
        "resources": [
            {"resource_type": kind, "resource_name": name, "configuration_keys": list(keys)} for name in names
        ]
    }
    answer = await channel.call(DESCRIBE_CONFIGS, body)
    return [
        (result["resource_name"], result["error_code"], {each["name"]: each["value"] for each in result["configs"]})
        for result in answer["results"]
    ]


def _is_number(value: str) -> bool:
    return value.isascii() and value.isdigit()


async def group_session_timeout(channel: Channel, group: str) -> float | None:
    """The seconds of silence after which members of a group of the consumer protocol are removed; None if not told.

    One attempt. Raises UnsupportedApiError, BrokerRefusedError without the permission DescribeConfigs on the group,
    BrokerError.
    """
    for _, code, settings in await _described(channel, GROUP, [group], [_SESSION_TIMEOUT]):
        if error := error_of(code, f"the settings of group {group!r} cannot be read"):
            raise error
        value = settings.get(_SESSION_TIMEOUT)
        if value is not None and _is_number(value):
            return int(value) / 1000
    return None
