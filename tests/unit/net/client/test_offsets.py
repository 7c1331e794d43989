"""One request for the offsets of partitions, as each version of brokers knows it, and its answers."""

from __future__ import annotations

from typing import Any

import pytest

from consumerd.net.client.offsets import ListedOffsets, list_offsets
from consumerd.wire.errors import FrameError
from consumerd.wire.v07 import LATEST
from consumerd.wire.v08 import ResponseHeader, ResponseMessage, decode_request, encode_response
from consumerd.wire.v08.apis import LIST_OFFSETS
from consumerd.wire.v08.messages import decode_response, encode_request
from consumerd.wire.v08.versions import BrokerRelease, BrokerVersions


class OneVersion:
    """A channel to a broker of one version of the API, which answers with `parts`; both ways go over the codec."""

    address = "h:9"

    api: Any = LIST_OFFSETS
    #: The field of the answer that holds the name of a topic.
    name = "name"

    def __init__(self, version: int, *parts: dict[str, Any]) -> None:
        self.versions = BrokerVersions("h:9", BrokerRelease.V0_10_OR_NEWER, {self.api.key: (version, version)})
        self.parts = parts
        self.asked: dict[str, Any] = {}

    async def call(self, api: Any, body: dict[str, Any], *, version: int) -> Any:
        frame = encode_request(api, version, body, correlation_id=1, client_id="c")
        self.asked = decode_request(api, frame[4:]).body
        answer = {"topics": [{self.name: "t", "partitions": self.parts}]}
        data = encode_response(api, version, ResponseMessage(ResponseHeader(1), answer))
        return decode_response(api, version, data[4:]).body


async def ask(channel: Any, **options: Any) -> dict[tuple[str, int], ListedOffsets]:
    return await list_offsets(channel, [("t", 0), ("t", 1)], LATEST, **options)


async def test_lists_segment_starts_before_0_10_1() -> None:
    channel = OneVersion(
        0,
        {"partition_index": 0, "error_code": 0, "old_style_offsets": [7, 3]},
        {"partition_index": 1, "error_code": 6, "old_style_offsets": []},
    )
    assert await ask(channel, read_committed=True, max_number=2) == {
        ("t", 0): ListedOffsets(0, (7, 3), by_segment=True),
        ("t", 1): ListedOffsets(6, (), by_segment=True),
    }
    (topic,) = channel.asked["topics"]
    assert [(part["partition_index"], part["max_num_offsets"]) for part in topic["partitions"]] == [(0, 2), (1, 2)]


@pytest.mark.parametrize("version", range(1, LIST_OFFSETS.versions[1] + 1))
async def test_lists_at_most_one_offset_since_0_10_1(version: int) -> None:
    parts = [
        {"partition_index": 0, "error_code": 0, "offset": 7},
        {"partition_index": 1, "error_code": 0, "offset": -1},
    ]
    channel = OneVersion(version, *parts)
    expected = {
        ("t", 0): ListedOffsets(0, (7,), by_segment=False),
        ("t", 1): ListedOffsets(0, (), by_segment=False),
    }
    assert await ask(channel, read_committed=True, max_number=2) == expected
    assert channel.asked.get("isolation_level", 0) == (version >= 2)
    assert await ask(channel) == expected
    assert channel.asked.get("isolation_level", 0) == 0


async def test_lists_the_offset_of_an_empty_log() -> None:
    channel = OneVersion(0, {"partition_index": 0, "error_code": 0, "old_style_offsets": [0]})
    assert (await ask(channel))["t", 0].offsets == (0,)
    assert [part["max_num_offsets"] for part in channel.asked["topics"][0]["partitions"]] == [1, 1]


async def test_rejects_negative_offset_without_error_code() -> None:
    with pytest.raises(FrameError, match="broker h:9 answered with offset -7 of t/1"):
        await ask(OneVersion(5, {"partition_index": 1, "error_code": 0, "offset": -7}))
    told = await ask(OneVersion(5, {"partition_index": 1, "error_code": 6, "offset": -7}))
    assert told["t", 1].error == 6
