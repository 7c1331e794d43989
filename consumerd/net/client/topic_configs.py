"""Settings of topics, as brokers tell them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from consumerd.net.client.cluster import ClusterClient
from consumerd.net.client.errors import topic_error
from consumerd.wire.v08.apis.describe_configs import DESCRIBE_CONFIGS, TOPIC
from consumerd.wire.v08.message_types import DescribeConfigsRequest

_LIMIT: Final = "max.message.bytes"
#: Topics that one request names at most.
_MOST: Final = 1000


async def message_limits(client: ClusterClient, topics: Sequence[str]) -> dict[str, int]:
    """The largest record batch in bytes that each of the first 1,000 topics takes, `max.message.bytes`. One attempt.

    Topics that do not exist are left out. Raises UnsupportedApiError for brokers before 0.11, BrokerRefusedError
    without the permission DescribeConfigs, BrokerError.
    """
    body: DescribeConfigsRequest = {
        "resources": [
            {"resource_type": TOPIC, "resource_name": topic, "configuration_keys": [_LIMIT]} for topic in topics[:_MOST]
        ]
    }
    channel = await client.any_channel()
    answer = await channel.call(DESCRIBE_CONFIGS, body)
    limits = {}
    for result in answer["results"]:
        topic = result["resource_name"]
        what = f"the settings of {topic} cannot be read"
        if error := topic_error(result["error_code"], what, topic, "DescribeConfigs"):
            if error.retriable:  # as for a topic that does not exist
                continue
            raise error
        values = {config["name"]: config["value"] for config in result["configs"]}
        if (value := values.get(_LIMIT)) is not None and value.isascii() and value.isdigit():
            limits[topic] = int(value)
    return limits
