"""The requests of a synchronous producer that does not wait for confirmation, with each codec."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from consumerd.base import native
from consumerd.base.clock import SystemClock
from consumerd.producer import MessageSizeTooLargeError, Producer, ProducerData, ProducerSettings, StaticRouter
from consumerd.wire.v07 import Codec, decode_request
from tests.support.codecs import installed_native_codec

CODECS = [None, installed_native_codec()]
SMALL = {"max_message_bytes": 50, "max_request_bytes": 200}
BATCHES: list[list[Any]] = [
    [b"a"],
    [b"a", "text", bytearray(b"b")],
    [b""] * 3,
    [bytes([number]) * 30 for number in range(9)],
    [b"x" * 50] * 3,
]


class _Connection:
    """Keeps what is sent."""

    closed = False

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    async def send(self, frame: bytes) -> None:
        self.sent.append(frame)

    async def close(self) -> None:
        pass

    def abort(self) -> None:
        pass


async def send(connection: _Connection, batches: Sequence[Sequence[Any]], **options: Any) -> None:
    """Send `batches`, with one call for each and one for all."""

    async def connect(host: str, port: int) -> Any:
        return connection

    rng = random.Random(1)
    producer = Producer(
        StaticRouter([("broker", 9092)], rng=rng),
        connect=connect,
        clock=SystemClock(),
        rng=rng,
        settings=ProducerSettings(confirm=False, **options),
    )
    try:
        for batch in batches:
            await producer.send("events", batch, partition=3)
        await producer.send_all([ProducerData("events", batch) for batch in batches])
    finally:
        await producer.sender.close()


@pytest.mark.parametrize(
    "options", [{}, SMALL, {"magic": 0}, {"codec": Codec.GZIP}, {"codec": Codec.GZIP, "compressed_topics": {"other"}}]
)
async def test_sends_the_same_bytes_with_both_codecs(options: dict[str, Any]) -> None:
    pure, by_native = _Connection(), _Connection()
    for codec, connection in zip(CODECS, (pure, by_native), strict=True):
        with native.using(codec):
            await send(connection, BATCHES, **options)
    assert by_native.sent == pure.sent
    assert len(pure.sent) > len(BATCHES)


@pytest.mark.parametrize("codec", CODECS, ids=["pure", "native"])
async def test_request_has_at_most_the_bytes_that_the_broker_reads(codec: native.NativeCodec | None) -> None:
    whole, larger = [b"x" * 80] * 2, [b"x" * 81] * 2
    for batch, lengths in ((whole, [198]), (larger, [109] * 2)):
        connection = _Connection()
        with native.using(codec):
            await send(connection, [batch], max_request_bytes=200)
        assert [len(frame) - 4 for frame in connection.sent[: len(lengths)]] == lengths
        assert all(len(frame) - 4 <= 200 for frame in connection.sent)


async def test_takes_data_that_was_sent_from_the_list() -> None:
    connection = _Connection()

    async def connect(host: str, port: int) -> Any:
        return connection

    rng = random.Random(1)
    router = StaticRouter([("broker", 9092)], rng=rng)
    settings = ProducerSettings(confirm=False)
    producer = Producer(router, connect=connect, clock=SystemClock(), rng=rng, settings=settings)
    for number in (1, 2):
        pending = [ProducerData("t", [b"a"])] * number
        await producer.sender.send(pending)
        assert pending == []
    both: Any = decode_request(connection.sent[1][4:])
    assert len(both.produces) == 2  # not joined unless they shall be
    await producer.sender.close()


@pytest.mark.parametrize("codec", CODECS, ids=["pure", "native"])
async def test_sends_nothing_of_a_batch_with_a_message_that_is_too_large(codec: native.NativeCodec | None) -> None:
    with native.using(codec):
        connection = _Connection()
        with pytest.raises(MessageSizeTooLargeError, match="has 51 bytes and the limit is 50"):
            await send(connection, [[b"small", b"x" * 51]], **SMALL)
        assert not connection.sent


@pytest.mark.parametrize("codec", CODECS, ids=["pure", "native"])
async def test_sends_what_a_list_had_when_it_was_given(codec: native.NativeCodec | None) -> None:
    payloads = [b"a", b"b"]

    class Changing(StaticRouter):
        async def route(self, *wanted: Any) -> Any:
            payloads.append(b"later")
            return await super().route(*wanted)

    connection, rng = _Connection(), random.Random(1)

    async def connect(host: str, port: int) -> Any:
        return connection

    settings = ProducerSettings(confirm=False)
    router = Changing([("broker", 9092)], rng=rng)
    with native.using(codec):
        producer = Producer(router, connect=connect, clock=SystemClock(), rng=rng, settings=settings)
        await producer.send("events", payloads, partition=0)
        await producer.sender.close()
    assert len(payloads) > 2
    assert b"later" not in connection.sent[0]
