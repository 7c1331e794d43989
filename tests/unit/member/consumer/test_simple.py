"""The low-level consumer against our broker, through a proxy that breaks connections."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from consumerd import (
    EARLIEST,
    LATEST,
    ConnectorStateError,
    FetchRefusedError,
    FetchRequest,
    InvalidFetchSizeError,
    OffsetOutOfRangeError,
    SimpleConsumer,
    UnknownRefusalError,
    WrongPartitionError,
)
from consumerd.base.clock import SystemClock
from consumerd.member.consumer.simple import InvalidMessageError, refusal
from consumerd.net.connect import connect
from consumerd.net.errors import ConnectError, ConnectionClosedError, RequestTimeoutError
from consumerd.storage.broker.config import BrokerConfig
from consumerd.storage.broker.server import Broker
from consumerd.testing.fault_proxy import FaultProxy
from consumerd.wire.errors import EncodeError, FrameError
from consumerd.wire.v07 import (
    BatchEnd,
    Codec,
    ErrorCode,
    FetchResponse,
    MultiFetchResponse,
    OffsetsResponse,
    ProduceRequest,
    encode_message_set,
)

PLAIN = encode_message_set([b"one", b"two"])
ZIPPED = encode_message_set([b"three", b"four"], codec=Codec.GZIP)
END = len(PLAIN) + len(ZIPPED)
#: An int32.
LARGEST = (1 << 31) - 1


class Scene:
    def __init__(self, broker: Broker, proxy: FaultProxy) -> None:
        self.broker = broker
        self.proxy = proxy

    def consumer(self, **settings: Any) -> SimpleConsumer:
        return SimpleConsumer("127.0.0.1", self.proxy.port, **settings)


@pytest_asyncio.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    config = BrokerConfig(log_dir=tmp_path, port=0, use_zookeeper=False, flush_messages=1, partitions=2)
    async with Broker(config, clock=SystemClock(), rng=random.Random(1)) as broker:
        connection = await connect("127.0.0.1", broker.port)
        await connection.send(ProduceRequest("t", 1, PLAIN).encode())
        await connection.send(ProduceRequest("t", 1, ZIPPED).encode())
        await connection.close()
        async with FaultProxy("127.0.0.1", broker.port) as proxy, SimpleConsumer("127.0.0.1", broker.port) as consumer:
            async with asyncio.timeout(60):
                while await consumer.get_offsets_before("t", 1, LATEST, 1) != (END,):
                    await asyncio.sleep(0.001)
            yield Scene(broker, proxy)


async def test_fetches_messages(scene: Scene) -> None:
    async with scene.consumer() as consumer:
        batch = await consumer.fetch("t", 1, 0, 1 << 20)
        assert list(batch) == [b"one", b"two", b"three", b"four"]
        assert (batch.start_offset, batch.next_offset, batch.end) == (0, END, BatchEnd.COMPLETE)
        assert [(m.offset, m.index, m.next_offset) for m in batch.messages()][2:] == [
            (len(PLAIN), 0, len(PLAIN)),
            (len(PLAIN), 1, END),
        ]
        assert list(await consumer.fetch("t", 1, END, 1 << 20)) == []
        assert list(await consumer.fetch("nobody-has-it", 1, 77, 1 << 20)) == []
        short = await consumer.fetch("t", 1, 0, 10)
        assert (list(short), short.end, short.needed) == ([], BatchEnd.PARTIAL, len(PLAIN) // 2)
        assert list(await consumer.fetch("t", 1, 0, 0)) == []


async def test_raises_error_class_of_code(scene: Scene) -> None:
    async with scene.consumer() as consumer:
        with pytest.raises(OffsetOutOfRangeError, match=f"'t', partition 1, from offset {END + 1}") as raised:
            await consumer.fetch("t", 1, END + 1, 1 << 20)
        assert (raised.value.code, raised.value.request) == (1, FetchRequest("t", 1, END + 1, 1 << 20))
        with pytest.raises(WrongPartitionError):
            await consumer.fetch("t", 2, 0, 1 << 20)
        with pytest.raises(UnknownRefusalError, match="legal"):
            await consumer.fetch("a/b", 0, 0, 1 << 20)
        for size in (-1, LARGEST - 1, 1 << 31):  # with the error code no longer than an int32 can say
            with pytest.raises(InvalidFetchSizeError):
                await consumer.fetch("t", 1, 0, size)
            with pytest.raises(InvalidFetchSizeError):
                await consumer.multifetch([FetchRequest("t", 1, 0, size)])
        with pytest.raises(EncodeError):
            await consumer.fetch("t", 1, 1 << 63, 1)
        assert scene.proxy.open_connections == 1  # none of this ended the connection
    for code in ErrorCode:
        if code:
            assert refusal(FetchRequest("t", 0, 0, 1), code).code is code
    assert isinstance(refusal(FetchRequest("t", 0, 0, 1), ErrorCode.INVALID_MESSAGE), InvalidMessageError)


async def test_multifetches(scene: Scene) -> None:
    async with scene.consumer() as consumer:
        good, bad, empty = await consumer.multifetch(
            [FetchRequest("t", 1, len(PLAIN), 1 << 20), FetchRequest("t", 9, 0, 1), FetchRequest("t", 0, 0, 1)]
        )
        assert list(good.batch) == [b"three", b"four"]
        assert good.error is None
        assert isinstance(bad.error, WrongPartitionError)
        with pytest.raises(WrongPartitionError):
            _ = bad.batch
        assert len(empty.batch) == 0
        assert repr(good) == f"FetchResult(request={good.request!r}, error=None)"  # without the messages
        assert empty.request == FetchRequest("t", 0, 0, 1)
        assert await consumer.multifetch([]) == []


async def test_lists_offsets(scene: Scene) -> None:
    async with scene.consumer() as consumer:
        assert await consumer.get_offsets_before("t", 1, LATEST, 5) == (END, 0)
        assert await consumer.get_offsets_before("t", 1, EARLIEST, 1) == (0,)
        assert await consumer.get_offsets_before("t", 1, 0, 1) == ()
        assert await consumer.get_offsets_before("t", 1, 1 << 50, 10) == (END, 0)
        with pytest.raises(ConnectionClosedError):  # a broker closes the connection: twice
            await consumer.get_offsets_before("t", 7, LATEST, 1)
        assert await consumer.get_offsets_before("t", 1, EARLIEST, 1) == (0,)


@pytest.mark.parametrize("rst", [False, True])
async def test_retries_request_once_over_new_connection(scene: Scene, rst: bool) -> None:
    async with scene.consumer() as consumer:
        assert list(await consumer.fetch("t", 1, len(PLAIN), 1 << 20)) == [b"three", b"four"]
        scene.proxy.delay(0.05)
        asking = asyncio.create_task(consumer.multifetch([FetchRequest("t", 1, 0, 1 << 20)]))
        beside = asyncio.create_task(consumer.fetch("t", 1, len(PLAIN), 1 << 20))
        await asyncio.sleep(0.02)
        scene.proxy.heal()
        scene.proxy.cut(rst=rst)
        (result,) = await asking
        assert len(result.batch) == 4
        assert len(await beside) == 2
        assert scene.proxy.open_connections == 1  # the two share the new one


async def test_reconnects_after_idle_disconnect(scene: Scene) -> None:
    async with scene.consumer() as consumer:
        scene.proxy.cut()
        assert len(await consumer.fetch("t", 1, 0, 1 << 20)) == 4


async def test_gives_up_after_second_attempt(scene: Scene) -> None:
    async with scene.consumer(timeout=0.05) as consumer:
        scene.proxy.stall()
        with pytest.raises(RequestTimeoutError):
            await consumer.fetch("t", 1, 0, 1 << 20)
        scene.proxy.heal()
        assert len(await consumer.fetch("t", 1, 0, 1 << 20)) == 4
        scene.proxy.refuse()
        scene.proxy.cut()
        with pytest.raises(ConnectError):
            await consumer.fetch("t", 1, 0, 1 << 20)
        scene.proxy.heal()
        assert len(await consumer.fetch("t", 1, 0, 1 << 20)) == 4
    with pytest.raises(ConnectorStateError, match="closed"):
        await consumer.fetch("t", 1, 0, 1)


async def test_connects_on_demand() -> None:
    consumer = SimpleConsumer("127.0.0.1", 1)
    with pytest.raises(ConnectError):
        await consumer.fetch("t", 0, 0, 1)
    with pytest.raises(ConnectError):
        async with consumer:
            pass
    await consumer.close()


class Scripted:
    """A connection that gives one answer to everything."""

    closed = False

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.closes = 0
        self.limits: list[int | None] = []

    async def __call__(self, host: str, port: int) -> Any:
        return self

    async def request(self, frame: bytes, *, max_response: int | None = None, timeout: float | None = None) -> bytes:
        self.limits.append(max_response)
        await asyncio.sleep(0)
        return self.body

    async def close(self) -> None:
        self.closes += 1


@pytest.mark.parametrize("body", [b"", b"\0", b"\0\0\0\0\0\1", b"\0\0\0\0\0\1" + struct.pack(">q", -5)])
async def test_closes_connection_on_invalid_response(body: bytes) -> None:
    scripted = Scripted(body)
    consumer = SimpleConsumer("h", 1, connect=scripted)
    both = [consumer.get_offsets_before("t", number, LATEST, 1) for number in range(2)]
    results = await asyncio.gather(*both, return_exceptions=True)
    assert [isinstance(result, FrameError) for result in results] == [True, True]
    assert scripted.closes == 1  # the two shared it


async def test_closes_its_connection() -> None:
    scripted = Scripted(b"\0\0" + PLAIN)
    async with SimpleConsumer("h", 1, connect=scripted) as consumer:
        await consumer.fetch("t", 0, 0, 100)
        assert scripted.closes == 0
    assert scripted.closes == 1


async def test_limits_responses_to_the_longest_that_may_come() -> None:
    scripted = Scripted(b"\0\0")
    consumer = SimpleConsumer("h", 1, connect=scripted)
    filled = FetchResponse(ErrorCode.NONE, b"x" * 100)
    await consumer.fetch("t", 0, 0, 100)
    assert scripted.limits.pop() == length(filled)
    scripted.body = MultiFetchResponse(ErrorCode.NONE, (filled, filled)).encode()[4:]
    await consumer.multifetch([FetchRequest("t", number, 0, 100) for number in range(2)])
    assert scripted.limits.pop() == length(MultiFetchResponse(ErrorCode.NONE, (filled, filled)))
    await consumer.multifetch([FetchRequest("t", number, 0, LARGEST - 2) for number in range(2)])
    assert scripted.limits.pop() == LARGEST
    scripted.body = OffsetsResponse(ErrorCode.NONE, ()).encode()[4:]
    for number, offsets in ((0, (1,)), (1, (1,)), (3, (1, 2, 3))):
        await consumer.get_offsets_before("t", 0, LATEST, number)
        assert scripted.limits.pop() == length(OffsetsResponse(ErrorCode.NONE, offsets))
    await consumer.get_offsets_before("t", 0, LATEST, LARGEST)
    assert scripted.limits.pop() == LARGEST


def length(response: FetchResponse | MultiFetchResponse | OffsetsResponse) -> int:
    """Bytes after the frame's length."""
    return len(response.encode()) - 4


async def test_raises_error_of_whole_multifetch() -> None:
    consumer = SimpleConsumer("h", 1, connect=Scripted(b"\0\3"))
    results = await consumer.multifetch([FetchRequest("t", 0, 0, 1), FetchRequest("t", 1, 0, 1)])
    assert [type(result.error) for result in results] == [WrongPartitionError, WrongPartitionError]


async def test_batch_reports_corrupt_message() -> None:
    consumer = SimpleConsumer("h", 1, connect=Scripted(b"\0\0" + PLAIN + b"\0\0\0\x07\x01\0AAAAx"))
    batch = await consumer.fetch("t", 0, 100, 1 << 20)
    assert (list(batch), batch.end, batch.next_offset) == ([b"one", b"two"], BatchEnd.CORRUPT, 100 + len(PLAIN))
    assert batch.problem
    assert issubclass(OffsetOutOfRangeError, FetchRefusedError)
