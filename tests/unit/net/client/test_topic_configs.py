"""The largest batches that topics take, and the session timeouts of groups, as the brokers' configuration has them."""

from __future__ import annotations

from typing import Any

import pytest

from consumerd.net.client.errors import BrokerRefusedError
from consumerd.net.client.topic_configs import group_session_timeout, message_limits
from consumerd.wire.v08.apis.topics import DESCRIBE_CONFIGS, TOPIC
from consumerd.wire.v08.error_codes import ErrorCode


class Broker:
    """A client and its channel: answers with the error and the value of the setting of each topic."""

    def __init__(self, topics: dict[str, tuple[int, str | None]]) -> None:
        self.topics = topics
        self.asked: list[Any] = []

    async def any_channel(self) -> Broker:
        return self

    async def call(self, api: Any, body: dict[str, Any]) -> dict[str, Any]:
        self.asked.append((api, body))
        other = {"name": "retention.ms", "value": "7"}
        results = [
            {
                "resource_name": topic,
                "error_code": error,
                "configs": [other, {"name": "max.message.bytes", "value": value}],
            }
            for topic, (error, value) in self.topics.items()
        ]
        return {"results": results}


async def test_message_limits_are_those_of_topics_that_exist_and_have_a_number() -> None:
    broker: Any = Broker(
        {"missing": (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None), "t": (0, "1048588"), "hidden": (0, None)}
        | {"odd": (0, "-1"), "arabic": (0, "٣"), "u": (0, "5")}
    )
    assert await message_limits(broker, ["t", "u"]) == {"t": 1048588, "u": 5}
    resources = [
        {"resource_type": TOPIC, "resource_name": topic, "configuration_keys": ["max.message.bytes"]}
        for topic in ("t", "u")
    ]
    assert broker.asked == [(DESCRIBE_CONFIGS, {"resources": resources})]


async def test_message_limits_without_permission_are_an_error() -> None:
    broker: Any = Broker({"t": (ErrorCode.TOPIC_AUTHORIZATION_FAILED, None)})
    with pytest.raises(BrokerRefusedError, match=r"the settings of t cannot be read: .*permission DescribeConfigs"):
        await message_limits(broker, ["t"])


async def test_session_timeout_of_a_group_is_in_seconds_and_unknown_where_the_broker_does_not_tell_it() -> None:
    class Settings:
        def __init__(self, code: int, *configs: dict[str, Any]) -> None:
            self.result = {"resource_name": "g", "error_code": code, "configs": list(configs)}

        async def call(self, api: Any, body: dict[str, Any]) -> dict[str, Any]:
            return {"results": [self.result]}

    name = "consumer.session.timeout.ms"
    told: Any = Settings(0, {"name": "other", "value": "1"}, {"name": name, "value": "6500"})
    assert await group_session_timeout(told, "g") == 6.5
    for value in (None, "", "-1", "٣"):
        silent: Any = Settings(0, {"name": name, "value": value})
        assert await group_session_timeout(silent, "g") is None
    refused: Any = Settings(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    with pytest.raises(BrokerRefusedError, match="the settings of group 'g' cannot be read"):
        await group_session_timeout(refused, "g")
