from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumerd.base.errors import ConfigError, HandlerFailedError, HandlerLoadError
from consumerd.base.partition import TopicPartition
from consumerd.handlers import Batch, Handler, Message, RetryPolicy, load_handler, message_handler, retrying
from consumerd.handlers.key_lanes import KeyLanes
from consumerd.service.config.build_handlers import build_handler
from consumerd.service.config.model import parse
from consumerd.testing import FakeClock
from consumerd.wire.v08.records import decode_records, encode_record_batch

MakeBatch = Callable[..., Batch]


TP = TopicPartition.numbered("t", 0)


def keyed(keys: Sequence[bytes | None], start: int = 100) -> Batch:
    data = encode_record_batch([b"%d" % n for n in range(len(keys))], keys=list(keys), base_offset=start)
    return Batch(TP, decode_records(data, start))


def lanes(plugin: Handler, concurrency: int, clock: Any = None, **policy: Any) -> KeyLanes:
    clock = clock or FakeClock(auto=True)
    policy = {"initial_backoff": 0.001, "max_backoff": 0.001, **policy}
    inner = retrying(plugin, RetryPolicy(**policy), clock=clock, rng=random.Random(1), name="mine")
    return KeyLanes(inner, concurrency, plugin=plugin, name="mine")


@given(
    st.lists(st.none() | st.sampled_from([b"a", b"b", b"c", b"d"]), min_size=1, max_size=30),
    st.integers(1, 5),
    st.randoms(use_true_random=False),
)
def test_each_key_is_in_order_and_only_a_handled_prefix_counts(
    keys: list[bytes | None], concurrency: int, rng: random.Random
) -> None:
    batch = keyed(keys)
    handled: set[int] = set()
    failed: set[int] = set()
    of_key: defaultdict[bytes | None, list[int]] = defaultdict(list)

    @message_handler
    async def each(message: Message) -> None:
        assert set(range(batch.handled)) <= handled
        for _ in range(rng.randrange(4)):
            await asyncio.sleep(0)
        number = int(message.payload)
        if number not in failed and rng.random() < 0.2:
            failed.add(number)
            raise ValueError("again")
        of_key[message.key].append(number)
        handled.add(number)

    with mock.patch("consumerd.handlers.api._TURN", float("inf")):  # else the order of draws depends on real time
        asyncio.run(lanes(each, concurrency, max_attempts=2).handle(batch))
    assert batch.handled == len(keys)
    for key in {key for key in keys if key is not None}:
        assert of_key[key] == [number for number, each in enumerate(keys) if each == key]
    assert sorted(number for numbers in of_key.values() for number in numbers) == list(range(len(keys)))


async def test_a_slow_key_holds_the_position_and_not_the_other_keys() -> None:
    gate, others = asyncio.Event(), asyncio.Event()
    seen: list[bytes] = []

    @message_handler
    async def each(message: Message) -> None:
        if message.payload == b"1":
            await gate.wait()
        seen.append(message.payload)
        if len(seen) == 3:
            others.set()

    batch = keyed([b"a", b"b", b"a", b"c"])
    task = asyncio.create_task(lanes(each, 1000).handle(batch))
    await others.wait()
    assert sorted(seen) == [b"0", b"2", b"3"]
    assert (batch.handled, batch.prefix(batch.handled)) == (1, 101)
    gate.set()
    await task
    assert batch.handled == 4


async def test_one_failure_stops_all_lanes_and_what_is_handled_before_it_counts(clock: Any) -> None:
    ended: list[bytes] = []

    @message_handler
    async def each(message: Message) -> None:
        if message.payload == b"2":
            raise ValueError("bad")
        if message.payload == b"3":
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(message.payload)

    batch = keyed([b"a", b"b", b"c", b"d"])
    with pytest.raises(HandlerFailedError, match=r"failed once at offset 102 of t/0 \(ValueError: bad\)"):
        await lanes(each, 1000, clock, max_attempts=1).handle(batch)
    assert batch.handled == 2
    assert ended == [b"3"]


async def test_of_failures_at_once_the_one_that_stops_the_daemon_counts() -> None:
    class Failing(Handler):
        async def handle(self, batch: Batch) -> None:
            raise HandlerFailedError("stop") if list(batch) == [b"1"] else ValueError("other")

    plugin = Failing()
    with pytest.raises(HandlerFailedError, match="stop"):
        await KeyLanes(plugin, 1000, plugin=plugin).handle(keyed([b"a", b"b", b"c"]))


async def test_a_cancellation_ends_all_lanes(clock: Any) -> None:
    running: set[bytes] = set()
    both = asyncio.Event()

    @message_handler
    async def each(message: Message) -> None:
        running.add(message.payload)
        if len(running) == 2:
            both.set()
        try:
            await asyncio.Event().wait()
        finally:
            running.discard(message.payload)

    task = asyncio.create_task(lanes(each, 1000, clock).handle(keyed([b"a", b"b"])))
    await both.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert running == set()


async def test_messages_without_keys_need_a_handler_that_says_what_the_key_is(make_batch: MakeBatch) -> None:
    class Plain(Handler):
        def __init__(self) -> None:
            self.batches: list[list[bytes]] = []

        async def handle(self, batch: Batch) -> None:
            self.batches.append(list(batch))

    class Keyed(Plain):
        def key(self, message: Message) -> str:
            return message.payload.decode()[0]

    with pytest.raises(HandlerFailedError, match=r"messages of Kafka 0\.7 have none: give the handler 'mine' a method"):
        await lanes(Plain(), 2).handle(make_batch(b"a"))
    handler = Keyed()
    batch = make_batch([b"a1", b"b1"], b"a2", b"b2")
    await lanes(handler, 1000).handle(batch)
    assert sorted(handler.batches) == [[b"a1", b"a2"], [b"b1", b"b2"]]
    assert batch.handled == 4


def test_a_sink_that_keeps_positions_is_refused(tmp_path: Any) -> None:
    with pytest.raises(HandlerLoadError, match="needs their messages in order"):
        lanes(load_handler("files", {"directory": str(tmp_path)}), 2)


def configured(dialect: str = "auto", **handler: Any) -> Handler:
    document = {"group": {"id": "g", "topics": {"t": 1}, "dialect": dialect}, "handler": handler}
    config = parse(document, "a test", environment=False)
    return build_handler(config, clock=FakeClock(auto=True), rng=random.Random(1))


def test_the_configuration_says_what_is_in_order() -> None:
    assert isinstance(configured(name="null", order="key", concurrency=4), KeyLanes)
    with pytest.raises(ConfigError, match=r"Kafka 0\.7 have none"):
        configured("0.7", name="null", order="key")
    with pytest.raises(ConfigError, match='concurrency above 1 needs order = "key"'):
        configured(name="null", concurrency=2)
