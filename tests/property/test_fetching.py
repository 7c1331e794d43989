"""Whatever the sizes, cuts, reconnects, compression and bad bytes: every message once and in order, within memory.

The pool is the real one; connections stand behind its port, so that an example costs no sockets. The clock jumps.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumerd.base.budget import ByteBudget
from consumerd.base.partition import TopicPartition
from consumerd.base.settings.processing import BadMessagePolicy
from consumerd.member.fetch.lane import Lane
from consumerd.member.fetch.pool import FetchPool
from consumerd.member.fetch.settings import FetchSettings
from consumerd.member.fetch.v07.brokers import V07Brokers
from consumerd.net.errors import ConnectError, ConnectionClosedError, RequestTimeoutError
from consumerd.wire.v07 import (
    EARLIEST,
    Codec,
    ErrorCode,
    FetchRequest,
    FetchResponse,
    MultiFetchRequest,
    MultiFetchResponse,
    OffsetsRequest,
    OffsetsResponse,
    decode_request,
    encode_message,
    encode_message_set,
)
from tests.support.fetching import Recorder
from tests.support.waiting import cancel

pytestmark = pytest.mark.usefixtures("either_codec")

SETTINGS = FetchSettings(poll_bytes=64, size=256, max_size=1 << 20)


class JumpingClock:
    """Sleeping takes no time, but the others get their turn."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        for _ in range(3):
            await asyncio.sleep(0)
        self.now += max(0.0, seconds)


class Broker:
    """Segments of bytes per partition, and a source of faults: `fault()` names what becomes of a request."""

    def __init__(self, logs: dict[int, list[bytes]], fault: Callable[[], str]) -> None:
        self.logs = logs
        self.fault = fault

    def address(self, broker_id: int) -> tuple[str, int] | None:
        return ("host", 1)

    def subscribe(self, changed: Callable[..., None]) -> Callable[[], None]:
        return lambda: None

    async def connect(self, host: str, port: int) -> Connection:
        if self.fault() == "refuse":
            raise ConnectError("no")
        return Connection(self)

    def answer(self, request: Any) -> bytes:
        if isinstance(request, OffsetsRequest):
            end = sum(map(len, self.logs[request.partition]))
            return OffsetsResponse(ErrorCode.NONE, (0 if request.time == EARLIEST else end,)).encode()
        if isinstance(request, MultiFetchRequest):
            return MultiFetchResponse(ErrorCode.NONE, tuple(map(self.fetch, request.fetches))).encode()
        return self.fetch(request).encode()

    def fetch(self, request: FetchRequest) -> FetchResponse:
        start = 0
        for segment in self.logs[request.partition]:
            if request.offset < start + len(segment):
                return FetchResponse(ErrorCode.NONE, segment[request.offset - start :][: request.max_size])
            start += len(segment)
        if request.offset > start:
            return FetchResponse(ErrorCode.OFFSET_OUT_OF_RANGE, b"")
        return FetchResponse(ErrorCode.NONE, b"")


class Connection:
    """Behind the port of `consumerd.net.connect.Connection`."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._over = asyncio.Event()

    @property
    def closed(self) -> bool:
        return self._over.is_set()

    async def request(self, frame: bytes, *, max_response: int | None = None, timeout: float | None = None) -> bytes:
        fault = self._broker.fault()
        await asyncio.sleep(0)
        if fault == "timeout":
            self.abort()
            raise RequestTimeoutError("too late", blamed=True)
        if fault == "cut" or self.closed:
            self.abort()
            raise ConnectionClosedError("cut", blamed=fault == "cut")
        body = self._broker.answer(decode_request(frame[4:]))[4:]
        assert max_response is not None
        assert len(body) <= max_response
        return body

    async def send(self, frame: bytes) -> None:
        raise AssertionError("fetching sends nothing without an answer")

    async def wait_closed(self) -> None:
        await self._over.wait()

    async def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        self._over.set()


class WatchedBudget(ByteBudget):
    """Remembers how much was held at most."""

    most = 0
    _held = 0

    @property
    def _used(self) -> int:
        return self._held

    @_used.setter
    def _used(self, held: int) -> None:
        self._held = held
        self.most = max(self.most, held)


@st.composite
def message_sets(draw: st.DrawFn, tag: str) -> tuple[list[bytes], list[bytes]]:
    """Payloads in order, and segments that hold them: plain, wrapped and large messages, cut at boundaries."""
    payloads: list[bytes] = []
    segments = [b""]
    for number, (kind, count, size) in enumerate(
        draw(st.lists(st.tuples(st.sampled_from("pgswl"), st.integers(1, 12), st.integers(0, 60)), max_size=25))
    ):
        some = [b"%s %d.%d " % (tag.encode(), number, i) + b"." * size for i in range(count)]
        if kind == "l":
            some = [some[0] + b"L" * 900]
        if kind == "w":
            inner = encode_message_set(some, codec=Codec.SNAPPY)
            data = encode_message_set(some[:1]) + inner
            payloads.append(some[0])
        else:
            data = encode_message_set(some, codec={"g": Codec.GZIP, "s": Codec.SNAPPY}.get(kind, Codec.NONE))
        payloads += some
        if draw(st.booleans()):
            segments.append(b"")
        segments[-1] += data
    return payloads, [segment for segment in segments if segment]


def faults(seed: int, rate: float) -> Callable[[], str]:
    rng = random.Random(seed)
    return lambda: rng.choice(["cut", "timeout", "refuse"]) if rng.random() < rate else ""


async def drain(lane: Lane, count: int, pause: Iterator[bool]) -> list[bytes]:
    """Take `count` messages, and see that the batches follow each other."""
    got: list[bytes] = []
    position = 0
    while len(got) < count:
        batch = await lane.get()
        assert batch.start_offset >= position
        position = batch.next_offset
        got += [payload for payload in batch.payloads if payload is not None]
        if next(pause):
            await asyncio.sleep(0)
        lane.finished(batch)
    return got


def coin(seed: int) -> Iterator[bool]:
    rng = random.Random(seed)
    while True:
        yield rng.random() < 0.5


class Scene:
    """A pool that runs against `broker` inside `async with`, and leaves no byte reserved."""

    def __init__(self, broker: Broker, budget: ByteBudget, chosen: FetchSettings) -> None:
        self.listener = Recorder()
        self.budget = budget
        self.pool = FetchPool(
            V07Brokers(broker.connect, broker, budget, chosen, JumpingClock(), random.Random(3), self.listener)
        )
        self.lanes: list[Lane] = []

    def lane(self, number: int, **bounds: int) -> Lane:
        partition = TopicPartition("t", 0, number)
        lane = Lane(partition, self.budget, max_bytes=bounds.pop("max_bytes", 1 << 30), **bounds)
        self.lanes.append(lane)
        self.pool.add(partition, 0, lane)
        return lane

    async def __aenter__(self) -> Scene:
        self._running = asyncio.create_task(self.pool.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert not self._running.done(), self._running
        for partition in list(self.pool.partitions):
            await self.pool.remove(partition)
        await cancel(self._running)
        assert self._running.cancelled()
        for lane in self.lanes:
            lane.close()
        assert self.budget.used == 0


@settings(max_examples=60, deadline=None)
@given(
    sets=st.lists(message_sets("m"), min_size=1, max_size=4),
    fetch=st.integers(20, 600),
    poll=st.integers(1, 20),
    rate=st.sampled_from([0, 0.1, 0.4]),
    limit=st.integers(300, 5000),
    batches=st.integers(1, 3),
    seed=st.integers(0, 1 << 20),
)
def test_delivers_every_message_once_and_in_order(
    sets: list[tuple[list[bytes], list[bytes]]], fetch: int, poll: int, rate: float, limit: int, batches: int, seed: int
) -> None:
    async def main() -> None:
        broker = Broker(dict(enumerate(segments for _, segments in sets)), faults(seed, rate))
        chosen = SETTINGS.replace(size=fetch, poll_bytes=poll)
        async with Scene(broker, ByteBudget(limit), chosen) as scene:
            lanes = [scene.lane(number, max_bytes=limit, max_batches=batches) for number in range(len(sets))]
            async with asyncio.timeout(60):
                got = await asyncio.gather(
                    *(drain(lane, len(payloads), coin(seed)) for lane, (payloads, _) in zip(lanes, sets, strict=True))
                )
            assert got == [payloads for payloads, _ in sets]
            for _ in range(50):
                await asyncio.sleep(0)
            assert [len(lane) for lane in lanes] == [0] * len(lanes)  # and nothing twice
            assert scene.listener.events == []

    asyncio.run(main())


@settings(max_examples=60, deadline=None)
@given(
    noise=st.one_of(
        st.binary(max_size=400),
        st.builds(
            lambda data, at, byte: data[:at] + bytes([byte]) + data[at:],
            st.just(encode_message_set([b"a" * 50, b"b" * 50], codec=Codec.GZIP) + encode_message_set([b"c" * 50])),
            st.integers(0, 150),
            st.integers(0, 255),
        ),
        st.binary(max_size=100).map(lambda data: encode_message(data, codec=Codec.GZIP)),
        st.binary(max_size=100).map(lambda data: encode_message(data, codec=Codec.SNAPPY)),
    ),
    corrupt=st.sampled_from(get_args(BadMessagePolicy)),
    oversize=st.sampled_from(get_args(BadMessagePolicy)),
    fetch=st.integers(20, 600),
)
def test_noise_in_one_partition_never_reaches_another(
    noise: bytes, corrupt: BadMessagePolicy, oversize: BadMessagePolicy, fetch: int
) -> None:
    async def main() -> None:
        good = [b"good %d" % number for number in range(200)]
        broker = Broker({0: [noise], 1: [encode_message_set(good)]}, lambda: "")
        chosen = SETTINGS.replace(size=fetch, poll_bytes=10, max_size=2000, corrupt=corrupt, oversize=oversize)
        async with Scene(broker, ByteBudget(1 << 20), chosen) as scene:
            noisy = scene.lane(0)
            lane = scene.lane(1)

            async def swallow() -> None:
                while True:
                    noisy.finished(await noisy.get())

            swallowing = asyncio.create_task(swallow())
            async with asyncio.timeout(60):
                assert await drain(lane, len(good), coin(1)) == good
            await cancel(swallowing)
            assert all(event[1].partition == 0 for event in scene.listener.events)
            assert not [event for event in scene.listener.events if event[0] == "reset"]

    asyncio.run(main())


@settings(max_examples=60, deadline=None)
@given(
    codec=st.sampled_from([Codec.NONE, Codec.GZIP, Codec.SNAPPY]),
    partitions=st.integers(1, 6),
    limit=st.integers(2000, 20_000),
    size=st.sampled_from([0, 10, 300]),
    seed=st.integers(0, 1000),
)
def test_stalled_consumer_holds_no_more_than_the_budget_and_one_batch(
    codec: Codec, partitions: int, limit: int, size: int, seed: int
) -> None:
    """Compression and per-message overhead make far more of a fetch than it reserved; all of it is counted."""

    async def main() -> None:
        blocks = [[b"%d.%d" % (block, i) + b"z" * size for i in range(40)] for block in range(30)]
        data = b"".join(encode_message_set(block, codec=codec) for block in blocks)
        payloads = [payload for block in blocks for payload in block]
        broker = Broker({key: [data] for key in range(partitions)}, faults(seed, 0.05))
        budget = WatchedBudget(limit)
        chosen = SETTINGS.replace(size=1000, poll_bytes=100)
        async with Scene(broker, budget, chosen) as scene:
            lanes = [scene.lane(number, max_batches=1000) for number in range(partitions)]
            for _ in range(2000):  # all handlers stall; the fetchers continue as far as they can
                await asyncio.sleep(0)
            largest = chosen.size
            async with asyncio.timeout(60):
                left = dict.fromkeys(lanes, len(payloads))
                while left:
                    while (lane := next((lane for lane in left if len(lane)), None)) is None:
                        await asyncio.sleep(0)  # whichever comes first: memory goes by turns
                    batch = await lane.get()
                    largest = max(largest, batch.memory_bytes)
                    lane.finished(batch)
                    left[lane] -= len(batch)
                    if not left[lane]:
                        del left[lane]
            assert budget.most <= limit + largest
            assert budget.most >= min(limit // 2, 1000)

    asyncio.run(main())
