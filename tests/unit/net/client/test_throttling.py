"""The silence that a broker demands because of a quota."""

from __future__ import annotations

import asyncio
from typing import Any

from consumerd.net.client.channel import Channel
from consumerd.net.client.settings import ClientSettings
from consumerd.testing.clock import FakeClock
from consumerd.wire.v08 import ResponseHeader, ResponseMessage, encode_response
from consumerd.wire.v08.apis import HEARTBEAT
from consumerd.wire.v08.message_types import HeartbeatRequest
from consumerd.wire.v08.versions import BrokerRelease, BrokerVersions

BODY: HeartbeatRequest = {"group_id": "g", "generation_id": 1, "member_id": "m"}


class Connection:
    """Answers each request at once, with the next of `silences` (ms)."""

    closed = False
    in_flight = 0

    def __init__(self, version: int, *silences: int) -> None:
        self.version = version
        self.silences = list(silences)
        self.sent = 0

    async def request(self, frame: bytes, **_: Any) -> bytes:
        answer: dict[str, Any] = {"error_code": 0}
        if self.version >= 1:
            answer["throttle_time_ms"] = self.silences.pop(0) if self.silences else 0
        header = ResponseHeader(self.sent)
        self.sent += 1
        return encode_response(HEARTBEAT, self.version, ResponseMessage(header, answer))[4:]


def channel_of(connection: Any, clock: FakeClock) -> Channel:
    versions = BrokerVersions("h:9", BrokerRelease.V0_10_OR_NEWER, {HEARTBEAT.key: (0, connection.version)})
    return Channel(connection, "h:9", versions, ClientSettings(), clock)


async def test_waits_a_minute_at_most() -> None:
    clock, connection = FakeClock(), Connection(3, 1 << 30)
    channel = channel_of(connection, clock)
    await channel.call(HEARTBEAT, BODY)
    waiting = asyncio.create_task(channel.call(HEARTBEAT, BODY))
    await clock.advance(60.0)
    await waiting


async def test_does_not_wait_again_where_the_broker_has_waited_itself() -> None:
    clock, connection = FakeClock(), Connection(1, 1500)
    channel = channel_of(connection, clock)
    for _ in range(2):
        await channel.call(HEARTBEAT, BODY)
    assert clock.sleeps == []
