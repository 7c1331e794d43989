"""Jafka itself: that its broker and its group members work as the tests with our daemon rely on."""

from __future__ import annotations

import asyncio
import contextlib
import struct
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from kazoo.exceptions import NoNodeError

if TYPE_CHECKING:
    from kazoo.client import KazooClient

    from tests.interop.conftest import JafkaBrokerFactory, JafkaConsumerFactory

pytestmark = [pytest.mark.interop, pytest.mark.zookeeper, pytest.mark.asyncio]


def message(payload: bytes) -> bytes:
    """A magic 1 message without compression, with its length (spec 003)."""
    return struct.pack(">ibbI", 6 + len(payload), 1, 0, zlib.crc32(payload)) + payload


def produce(topic: bytes, partition: int, *payloads: bytes) -> bytes:
    data = b"".join(map(message, payloads))
    body = struct.pack(">hh", 0, len(topic)) + topic + struct.pack(">ii", partition, len(data)) + data
    return struct.pack(">i", len(body)) + body


async def fetch(port: int, topic: bytes, partition: int, offset: int) -> tuple[int, bytes]:
    body = struct.pack(">hh", 1, len(topic)) + topic + struct.pack(">iqi", partition, offset, 1 << 20)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(struct.pack(">i", len(body)) + body)
        size, error = struct.unpack(">ih", await reader.readexactly(6))
        return error, await reader.readexactly(size - 2)
    finally:
        writer.transport.abort()


async def send(port: int, data: bytes) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    writer.write_eof()
    await writer.drain()
    writer.close()
    await writer.wait_closed()


async def until(condition: Callable[[], object], timeout: float = 120.0) -> None:
    async with asyncio.timeout(timeout):
        while not condition():
            await asyncio.sleep(0.02)


async def test_keeps_produced_messages_over_a_restart(
    zk: KazooClient, zk_root: str, jafka_broker: JafkaBrokerFactory
) -> None:
    broker = await jafka_broker(zk_root, broker_id=3, partitions=2)
    await send(broker.port, produce(b"t", 1, b"hello", b"", b"\xff"))
    expected = message(b"hello") + message(b"") + message(b"\xff")
    async with asyncio.timeout(120):
        while await fetch(broker.port, b"t", 1, 0) != (0, expected):
            await asyncio.sleep(0.02)
    assert await fetch(broker.port, b"t", 1, len(message(b"hello"))) == (0, message(b"") + message(b"\xff"))
    assert zk.get("/brokers/ids/3")[0].decode().endswith(f":127.0.0.1:{broker.port}")
    await until(lambda: zk.exists("/brokers/topics/t/3"))
    assert zk.get("/brokers/topics/t/3")[0] == b"2"
    # Data survive a restart on the same port.
    await broker.restart()
    assert await fetch(broker.port, b"t", 1, 0) == (0, expected)


async def test_two_jvm_members_share_a_group(
    zk: KazooClient, zk_root: str, jafka_broker: JafkaBrokerFactory, jafka_consumer: JafkaConsumerFactory
) -> None:
    broker = await jafka_broker(zk_root, partitions=2)
    payloads = [[b"%d:%d" % (partition, number) for number in range(50)] for partition in range(2)]
    for partition in range(2):
        await send(broker.port, produce(b"t", partition, *payloads[partition][:25]))
    first = await jafka_consumer(zk_root, "g", {"t": 1}, consumer_id="a")
    await until(lambda: len(first.messages()) == 50)
    await until(lambda: zk.exists("/consumers/g/offsets/t/0-1"))
    second = await jafka_consumer(zk_root, "g", {"t": 1}, consumer_id="b")
    await until(lambda: _owners(zk) == {"0-0": "g_a-0", "0-1": "g_b-0"})
    for partition in range(2):
        await send(broker.port, produce(b"t", partition, *payloads[partition][25:]))
    await until(lambda: {m.payload for m in second.messages()} >= set(payloads[1][25:]))
    await until(lambda: {m.payload for m in first.messages()} >= set(payloads[0]))
    await first.leave()
    await until(lambda: _owners(zk) == {"0-0": "g_b-0", "0-1": "g_b-0"})
    handled = first.messages() + second.messages()
    assert {m.payload for m in handled} == {*payloads[0], *payloads[1]}
    assert [m.payload for m in first.messages() if m.payload.startswith(b"0:")] == payloads[0]
    assert zk.get("/consumers/g/offsets/t/0-0")[0].decode() == str(sum(len(message(p)) for p in payloads[0]))


def _owners(zk: KazooClient) -> dict[str, str]:
    found = {}
    for name in zk.get_children("/consumers/g/owners/t"):
        with contextlib.suppress(NoNodeError):  # released between the two looks
            found[name] = zk.get(f"/consumers/g/owners/t/{name}")[0].decode()
    return found
