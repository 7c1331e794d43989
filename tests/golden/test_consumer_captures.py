"""Our consumers beside what the consumers of Kafka 0.7.2 were recorded to send (wire/client_captures.json).

The low-level consumer: byte for byte. The high-level one: the same OFFSETS requests, each over a connection of its own,
and for each partition fetches of the same offsets in the same order. It differs on purpose in how it fetches: 0.7.2
asks for all partitions of a broker in one MULTIFETCH and repeats that, ours fetches busy partitions one by one, with
the same size, and polls the idle ones together, with a smaller one.

Recorded are, in order: a run over two partitions (connections 6 to 8), four runs that stop inside a gzip message (9 to
20), and offsets out of range and inside a message, with autooffset.reset smallest, largest and another (21 to 26).
"""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from consumerd import (
    ConsumerConfig,
    ConsumerConnector,
    ConsumerTimeoutError,
    FetchRequest,
    SimpleConsumer,
    TopicPartition,
)
from consumerd.base.clock import SystemClock
from consumerd.member.fetch.errors import LogChangedError, OffsetRefusedError
from consumerd.net.connect import connect
from consumerd.storage.broker.config import BrokerConfig
from consumerd.storage.broker.server import Broker
from consumerd.testing.memory_zookeeper import MemoryZooKeeper
from consumerd.wire.v07 import (
    LATEST,
    MultiFetchRequest,
    MultiProduceRequest,
    OffsetsRequest,
    ProduceRequest,
    decode_batch,
    decode_multifetch_response,
    decode_request,
)

FETCH_SIZE = 1 << 20


class Recorded(NamedTuple):
    """One recorded connection: requests and answers as whole frames."""

    asked: list[bytes]
    answered: list[bytes]


@pytest.fixture(scope="module")
def recorded(golden: Path) -> dict[int, Recorded]:
    captures = json.loads((golden / "kafka-0.7.2" / "wire" / "client_captures.json").read_bytes())
    found: dict[int, Recorded] = {}
    for capture in captures:
        connection = found.setdefault(capture["conn"], Recorded([], []))
        if "frame" in capture:
            frames = connection.asked if capture["dir"] == "c2s" else connection.answered
            frames.append(bytes.fromhex(capture["frame"]))
    return found


class Playback:
    """A connection that answers as recorded, and writes down what it was asked."""

    closed = False

    def __init__(self, answers: list[bytes]) -> None:
        self.asked: list[bytes] = []
        self._answers = iter(answers)

    async def __call__(self, host: str, port: int) -> Any:
        return self

    async def request(self, frame: bytes, *, max_response: int | None = None, timeout: float | None = None) -> bytes:
        self.asked.append(frame)
        body = next(self._answers)[4:]
        assert max_response is not None
        assert len(body) <= max_response
        return body

    async def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("number", range(6, 27))
async def test_simple_consumer_sends_the_recorded_bytes(recorded: dict[int, Recorded], number: int) -> None:
    real = recorded[number]
    played = Playback(real.answered)
    async with SimpleConsumer("127.0.0.1", 9092, connect=played) as consumer:
        for frame in real.asked:
            match decode_request(frame[4:]):
                case OffsetsRequest(topic, partition, time, max_number):
                    (offset,) = await consumer.get_offsets_before(topic, partition, time, max_number)
                    assert (offset == 0) == (time != LATEST)
                case MultiFetchRequest(fetches):
                    for result in await consumer.multifetch(fetches):
                        assert (result.error is not None) == (result.request.offset == 999999)
                        if result.error is None and result.request.offset != 7:
                            assert result.batch.problem is None
                case other:
                    raise AssertionError(f"no consumer sends {other}")
    assert played.asked == real.asked
    assert len(real.asked) >= 1


async def test_simple_consumer_reads_what_was_produced(recorded: dict[int, Recorded]) -> None:
    produced: list[bytes] = []
    for number in (1, 5):
        for frame in recorded[number].asked:
            request = decode_request(frame[4:])
            entries = request.produces if isinstance(request, MultiProduceRequest) else (request,)
            for entry in entries:
                assert isinstance(entry, ProduceRequest)
                if entry.topic == "sn-a":
                    produced += decode_batch(entry.messages, 0).payloads
    played = Playback(recorded[8].answered)
    async with SimpleConsumer("127.0.0.1", 9092, connect=played) as consumer:
        results = await consumer.multifetch(FetchRequest("sn-a", number, 0, FETCH_SIZE) for number in range(2))
    assert sorted(payload for result in results for payload in result.batch) == sorted(produced)


# -- the high-level consumer


class Recorder:
    """Connects to a broker and writes down the requests of each connection."""

    def __init__(self) -> None:
        self.connections: list[list[bytes]] = []

    async def __call__(self, host: str, port: int) -> Any:
        frames: list[bytes] = []
        self.connections.append(frames)
        connection = await connect(host, port)
        request = connection.request

        async def recording(frame: bytes, **arguments: Any) -> bytes:
            frames.append(frame)
            return await request(frame, **arguments)

        connection.request = recording  # type: ignore[method-assign]
        return connection


def offsets_asked(connections: list[list[bytes]]) -> list[bytes]:
    """The OFFSETS requests; none may share its connection with any other request, which a hang-up would hit."""
    found = []
    for frames in connections:
        offsets = [frame for frame in frames if isinstance(decode_request(frame[4:]), OffsetsRequest)]
        assert not offsets or offsets == frames
        found += offsets
    return sorted(found)


def fetched(connections: list[list[bytes]]) -> dict[tuple[str, int], list[int]]:
    """The offsets that were asked for in each partition; repetitions are one, as polling depends on the time."""
    found: dict[tuple[str, int], list[int]] = {}
    for frames in connections:
        for frame in frames:
            request = decode_request(frame[4:])
            entries = request.fetches if isinstance(request, MultiFetchRequest) else (request,)
            for entry in entries:
                if isinstance(entry, FetchRequest):
                    found.setdefault((entry.topic, entry.partition), []).append(entry.offset)
    return {partition: [offset for offset, _ in groupby(offsets)] for partition, offsets in found.items()}


class Scene:
    """A broker with the very logs that were recorded, a ZooKeeper, and connectors that write down what they send."""

    def __init__(self, broker: Broker, zookeeper: MemoryZooKeeper) -> None:
        self.broker = broker
        self.zookeeper = zookeeper
        self.recorder = Recorder()

    def commit(self, topic: str, *offsets: int) -> None:
        for number, offset in enumerate(offsets):
            self.zookeeper.put(f"/consumers/g/offsets/{topic}/0-{number}", b"%d" % offset)

    @asynccontextmanager
    async def connector(self, **settings: Any) -> AsyncIterator[ConsumerConnector]:
        config = ConsumerConfig(group="g", **{"consumer_timeout": 0.3, "commit_interval": 60.0, **settings})
        async with (
            self.zookeeper.session() as zk,
            ConsumerConnector(config, zk=zk, connect=self.recorder, rng=random.Random(1)) as connector,
        ):
            yield connector


@pytest.fixture
def scene(recorded: dict[int, Recorded], tmp_path: Path) -> Any:
    @asynccontextmanager
    async def make() -> AsyncIterator[Scene]:
        config = BrokerConfig(log_dir=tmp_path, port=0, use_zookeeper=False, flush_messages=1, partitions=2)
        async with Broker(config, clock=SystemClock(), rng=random.Random(1)) as broker:
            zookeeper = MemoryZooKeeper()
            zookeeper.put("/brokers/ids/0", b"creator:127.0.0.1:%d" % broker.port)
            connection = await connect("127.0.0.1", broker.port)
            for topic, number in (("sn-a", 8), ("sn-gz", 11)):
                zookeeper.put(f"/brokers/topics/{topic}/0", b"2")
                for partition, answer in enumerate(
                    decode_multifetch_response(recorded[number].answered[0][4:], 2).entries
                ):
                    await connection.send(ProduceRequest(topic, partition, answer.data).encode())
            await connection.request(OffsetsRequest("sn-a", 0, LATEST, 1).encode())
            await connection.close()
            yield Scene(broker, zookeeper)

    return make


async def read_all(connector: ConsumerConnector, topic: str) -> list[Any]:
    (stream,) = (await connector.create_message_streams({topic: 1}))[topic]
    got = []
    try:
        async for message in stream:
            got.append(message)
    except ConsumerTimeoutError:
        return got
    raise AssertionError("the stream ended")


async def test_first_run_requests_the_recorded_offsets(scene: Any, recorded: dict[int, Recorded]) -> None:
    async with scene() as made:
        async with made.connector() as connector:
            assert len(await read_all(connector, "sn-a")) == 17
        real = [recorded[number].asked for number in (6, 7, 8)]
        assert offsets_asked(made.recorder.connections) == offsets_asked(real)
        assert len(offsets_asked(real)) == 2
        assert fetched(made.recorder.connections) == fetched(real) == {("sn-a", 0): [0, 154], ("sn-a", 1): [0, 124]}
        first = {FetchRequest("sn-a", number, 0, FETCH_SIZE) for number in range(2)}
        assert first <= {decode_request(frame[4:]) for frames in made.recorder.connections for frame in frames}
        assert first <= set(decode_request(recorded[8].asked[0][4:]).fetches)  # type: ignore[union-attr]


@pytest.mark.parametrize(("handled", "committed"), [(1, 0), (2, 0), (3, 71)])
async def test_resumes_after_a_stop_inside_a_compressed_message(
    scene: Any, recorded: dict[int, Recorded], handled: int, committed: int
) -> None:
    partition = TopicPartition("sn-gz", 0, 1)
    async with scene() as made:
        async with made.connector() as connector:
            (stream,) = (await connector.create_message_streams({"sn-gz": 1}))["sn-gz"]
            while handled:
                message = await anext(stream)
                handled -= message.partition == partition
            stream.ack()
            assert connector.position(partition) == committed
            assert (await connector.commit_offsets()).get(partition, 0) == committed
        real = [recorded[number].asked for number in (9, 10, 11)]
        assert offsets_asked(made.recorder.connections) == offsets_asked(real)
        ours, theirs = fetched(made.recorder.connections), fetched(real)
        for key, offsets in ours.items():
            assert offsets == theirs[key][: len(offsets)]


@pytest.mark.parametrize(("number", "policy"), [(21, "earliest"), (23, "latest")])
async def test_resets_an_offset_out_of_range_as_recorded(
    scene: Any, recorded: dict[int, Recorded], number: int, policy: Any
) -> None:
    async with scene() as made:
        made.commit("sn-a", 999999, 0)
        async with made.connector(out_of_range=policy) as connector:
            got = await read_all(connector, "sn-a")
        assert {message.partition.partition for message in got} == ({0, 1} if policy == "earliest" else {1})
        real = recorded[number].asked
        assert fetched(made.recorder.connections) == fetched([real])
        # 0.7.2 asks over the connection that it fetches over; ours has one for each OFFSETS request.
        assert offsets_asked(made.recorder.connections) == [
            frame for frame in real if isinstance(decode_request(frame[4:]), OffsetsRequest)
        ]


@pytest.mark.parametrize("number", [22, 24, 25, 26])
async def test_explains_where_the_real_consumer_fails(scene: Any, recorded: dict[int, Recorded], number: int) -> None:
    """An offset inside a message (7), or out of range with a policy that is neither earliest nor latest."""
    real = recorded[number].asked
    start = fetched([real])["sn-a", 0][0]
    async with scene() as made:
        made.commit("sn-a", start, 0)
        with pytest.raises(OffsetRefusedError if start == 999999 else LogChangedError, match="sn-a/0-0") as caught:
            async with made.connector(out_of_range="fail", log_changed="stop") as connector:
                await read_all(connector, "sn-a")
        assert fetched(made.recorder.connections)["sn-a", 0][:1] == [start] == fetched([real])["sn-a", 0]
        if start == 999999:
            assert offsets_asked(made.recorder.connections) == offsets_asked([real]) == []
        else:  # the real one throws InvalidMessageSizeException, and names no offset
            assert f"offset {start} lies inside a message that begins at 0" in str(caught.value)
