"""Our producers send what Kafka 0.7.2's were recorded to send (wire/client_captures.json).

Byte for byte where the payload is plain; compressed ones after decompression, since compressors differ. Connections 1
to 3 used a list of brokers, connection 5 a ZooKeeper. Connection 4 is the asynchronous producer's, connection 27 that
of the mirror maker, which is asynchronous too: there the order of a request's entries is that of a hash map, and no
order is compared.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from consumerd.base.clock import SystemClock
from consumerd.net.zk.session import Session
from consumerd.producer import (
    AsyncProducer,
    Producer,
    ProducerData,
    ProducerSettings,
    QueueSettings,
    Router,
    StaticRouter,
    ZooKeeperRouter,
)
from consumerd.testing.clock import FakeClock
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
from tests.support.waiting import turns

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
        found.append((entry.topic, entry.partition, outer, list(decode_batch(entry.messages, 0).payloads)))
    return found


async def test_sends_plain_batches_as_recorded(golden: Path) -> None:
    recorder = Recorder()
    async with producer(static(), recorder) as ours:
        await ours.send("sn-a", [b"one"])
        await ours.send("sn-a", [b"two", b"three", b"four"])
        await ours.send_all([ProducerData("sn-a", [b"five"]), ProducerData("sn-b", [b"six", b"seven"])])
        await ours.send_all([ProducerData("sn-a", [b"eight"]), ProducerData("sn-a", [b"nine"])])
    assert recorder.frames == recorded(golden, 1)
    assert recorder.closed


@pytest.mark.parametrize(("connection", "topic", "codec"), [(2, "sn-gz", Codec.GZIP), (3, "sn-sn", Codec.SNAPPY)])
async def test_sends_compressed_batches_as_recorded(golden: Path, connection: int, topic: str, codec: Codec) -> None:
    theirs = [decoded(frame) for frame in recorded(golden, connection)]
    recorder = Recorder()
    async with producer(static(), recorder, codec) as ours:
        for ((_, _, _, payloads),) in theirs:
            await ours.send(topic, payloads)
    assert [decoded(frame) for frame in recorder.frames] == theirs
    assert len(theirs) == 2


async def test_sends_keys_partitions_and_a_new_topic_as_recorded(golden: Path, zk_root: str) -> None:
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


def recorded_times(golden: Path, connection: int) -> list[float]:
    captures = json.loads((golden / "kafka-0.7.2" / "wire" / "client_captures.json").read_bytes())
    return [c["t"] for c in captures if c["conn"] == connection and c.get("dir") == "c2s" and "frame" in c]


async def test_sends_as_the_recorded_asynchronous_producer(golden: Path) -> None:
    """batch.size=4, queue.time=1000: a full batch at once, the rest when time is up, and at the end what is left."""
    theirs = recorded(golden, 4)
    first, second, _ = recorded_times(golden, 4)
    assert 1.0 <= second - first < 1.1
    recorder, clock = Recorder(), FakeClock()
    queue = QueueSettings(batch_size=4, queue_time=1.0)
    async with AsyncProducer(producer(static(), recorder), clock=clock, queue=queue) as ours:
        await ours.send("sn-as", [b"async%d" % n for n in range(1, 7)])
        await turns(60)
        assert recorder.frames == theirs[:1]
        await clock.advance(0.99)
        await turns(60)
        assert len(recorder.frames) == 1
        await clock.advance(0.02)
        await turns(60)
        assert recorder.frames == theirs[:2]
        await ours.send_all(
            [ProducerData("sn-as", [b"a7"]), ProducerData("sn-as2", [b"b8"]), ProducerData("sn-as", [b"a9"])]
        )
    mine, other = recorder.frames[2], theirs[2]
    assert isinstance(decode_request(mine[4:]), MultiProduceRequest)
    assert sorted(decoded(mine)) == sorted(decoded(other))
    assert len(mine) == len(other)
    assert len(theirs) == len(recorder.frames) == 3


async def test_sends_as_the_recorded_mirror_maker(golden: Path, zk_root: str) -> None:
    """New topics on the target, gzip: one MULTIPRODUCE with an entry for each topic's partition 0."""
    (theirs,) = recorded(golden, 27)
    wanted = {topic: payloads for topic, _, _, payloads in decoded(theirs)}
    assert sorted(wanted) == ["alpha", "beta"]
    recorder = Recorder()
    async with Session(zk_root, clock=SystemClock(), rng=random.Random(1)) as zk:
        await zk.ensure("/brokers/ids")
        await zk.create("/brokers/ids/5", b"here-1:127.0.0.1:9092")
        sync = producer(ZooKeeperRouter(zk, rng=random.Random(1)), recorder, Codec.GZIP)
        async with AsyncProducer(sync, clock=SystemClock()) as ours:
            for topic, payloads in wanted.items():
                await ours.send(topic, payloads)
    (mine,) = recorder.frames
    assert isinstance(decode_request(mine[4:]), MultiProduceRequest)
    assert sorted(decoded(mine)) == sorted(decoded(theirs))
