"""Our producer sends what Kafka 0.7.2's synchronous producer was recorded to send (wire/client_captures.json).

Byte for byte where the payload is plain; compressed ones after decompression, since compressors differ. Connections 1
to 3 used a list of brokers, connection 5 a ZooKeeper; connection 4 is the asynchronous producer's.
"""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

import pytest

from consumerd.clock import SystemClock
from consumerd.net import ConnectionClosedError
from consumerd.producer import Producer, ProducerData, ProducerSettings, StaticRouter, ZooKeeperRouter
from consumerd.wire.v07 import (
    Codec,
    ErrorCode,
    FetchRequest,
    FetchResponse,
    MultiProduceRequest,
    ProduceRequest,
    decode_batch,
    decode_request,
    iter_outer,
)
from consumerd.zk import Session

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from consumerd.producer import Router

pytestmark = pytest.mark.asyncio

Sent = tuple[str, int, list[tuple[int, Codec | None]], list[bytes]]


class Recorder:
    """A connection that writes down what it is given and confirms everything."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.closed = False

    async def __call__(self, host: str, port: int) -> Recorder:
        return self

    async def request(self, frame: bytes, *, max_response: int | None = None, timeout: float | None = None) -> bytes:
        assert isinstance(decode_request(frame[4:]), FetchRequest)
        return FetchResponse(ErrorCode.NONE, b"").encode()[4:]

    async def send(self, frame: bytes) -> None:
        self.frames.append(frame)

    async def wait_closed(self) -> None:
        raise AssertionError("not expected here")

    async def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def raise_if_closed(self) -> None:
        if self.closed:
            raise ConnectionClosedError("closed")


def recorded(golden: Path, connection: int) -> list[bytes]:
    captures = json.loads((golden / "kafka-0.7.2" / "wire" / "client_captures.json").read_bytes())
    return [
        bytes.fromhex(c["frame"])
        for c in captures
        if c["conn"] == connection and c.get("dir") == "c2s" and "frame" in c
    ]


def producer(router: Router, recorder: Recorder, codec: Codec = Codec.NONE) -> Producer:
    settings = ProducerSettings(codec=codec)
    return Producer(router, connect=recorder, clock=SystemClock(), rng=random.Random(1), settings=settings)


def static() -> StaticRouter:
    return StaticRouter([("127.0.0.1", 9092)], rng=random.Random(1))


def decoded(frame: bytes) -> list[Sent]:
    request = decode_request(frame[4:])
    entries: Sequence[object] = request.produces if isinstance(request, MultiProduceRequest) else [request]
    found: list[Sent] = []
    for entry in entries:
        assert isinstance(entry, ProduceRequest)
        outer = [(m.magic, m.codec) for m in iter_outer(entry.messages)]
        found.append((entry.topic, entry.partition, outer, decode_batch(entry.messages, 0).payloads))
    return found


async def test_plain_batches_one_and_several(golden: Path) -> None:
    recorder = Recorder()
    async with producer(static(), recorder) as ours:
        await ours.send("sn-a", [b"one"])
        await ours.send("sn-a", [b"two", b"three", b"four"])
        await ours.send_all([ProducerData("sn-a", [b"five"]), ProducerData("sn-b", [b"six", b"seven"])])
        await ours.send_all([ProducerData("sn-a", [b"eight"]), ProducerData("sn-a", [b"nine"])])
    assert recorder.frames == recorded(golden, 1)
    assert recorder.closed


@pytest.mark.parametrize(("connection", "topic", "codec"), [(2, "sn-gz", Codec.GZIP), (3, "sn-sn", Codec.SNAPPY)])
async def test_compressed_batches(golden: Path, connection: int, topic: str, codec: Codec) -> None:
    theirs = [decoded(frame) for frame in recorded(golden, connection)]
    recorder = Recorder()
    async with producer(static(), recorder, codec) as ours:
        for ((_, _, _, payloads),) in theirs:
            await ours.send(topic, payloads)
    assert [decoded(frame) for frame in recorder.frames] == theirs
    assert len(theirs) == 2


async def test_keys_partitions_and_a_new_topic(golden: Path, zk_root: str) -> None:
    theirs = recorded(golden, 5)
    recorder = Recorder()
    async with Session(zk_root, clock=SystemClock(), rng=random.Random(1)) as zk:
        for path, data in {"/brokers/ids/0": b"here-1:127.0.0.1:9092", "/brokers/topics/sn-a/0": b"2"}.items():
            await zk.ensure(path.rpartition("/")[0])
            await zk.create(path, data)
        async with producer(ZooKeeperRouter(zk, rng=random.Random(1)), recorder) as ours:
            keys = ["a", "b", "c", "hello", "key-1", "key-2", "zz"]
            for key in keys:
                await ours.send("sn-new", [f"new-{key}".encode()], key=key)
            for key in keys:
                await ours.send("sn-a", [f"keyed-{key}".encode()], key=key)
            for n in (1, 2, 3):
                await ours.send("sn-a", [f"nokey{n}".encode()])
    assert len(theirs) == len(recorder.frames) == 17
    assert recorder.frames[:14] == theirs[:14]
    # Without a key the partition is random: all but that is the same.
    for mine, other in zip(recorder.frames[14:], theirs[14:], strict=True):
        ((topic, partition, outer, payloads),) = decoded(mine)
        assert partition in (0, 1)
        assert [(topic, outer, payloads)] == [(t, o, p) for t, _, o, p in decoded(other)]
