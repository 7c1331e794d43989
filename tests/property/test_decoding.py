"""Any mixture of messages, good and bad, and any bytes: each message has one outcome, and decoders declared errors."""

from __future__ import annotations

import asyncio
import contextlib
import decimal
import io
import json
import random
import uuid
from pathlib import Path
from typing import Any
from unittest import mock

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumerd.base.partition import TopicPartition
from consumerd.handlers import Batch, DecodeError, Handler, Letter, Message, RetryPolicy
from consumerd.handlers.decoding import stage
from consumerd.handlers.decoding.api import load_decoder, make_decoder
from consumerd.handlers.handler_stages import Stages
from consumerd.testing import FakeClock
from consumerd.testing.records import MemoryDeadLetters
from consumerd.wire.v07 import Codec, decode_batch, encode_message_set

DECODERS = [load_decoder("json"), load_decoder("text"), load_decoder("text", {"encoding": "utf-16"})]
#: Whether each message can be decoded; a list is one compressed message.
LOGS = st.lists(st.booleans() | st.lists(st.booleans(), min_size=1, max_size=8), min_size=1, max_size=8)


class Flaky(Handler):
    """Marks some of what it gets and raises, or takes it, as the random numbers say; every failure is the last one."""

    def __init__(self, rng: random.Random, lanes: bool) -> None:
        self.rng = rng
        self.lanes = lanes
        self.handled: list[int] = []

    def key(self, message: Message) -> str:
        return str(message.value % 3)

    async def handle(self, batch: Batch) -> None:
        for count, value in enumerate(batch.values, 1):
            if self.rng.random() < 0.2:
                raise OSError
            await asyncio.sleep(0)
            self.handled.append(value)
            batch.mark(count)


def _decode(message: Message) -> int:
    kind, _, number = message.payload.partition(b" ")
    if kind != b"good":
        raise DecodeError("bad")
    return int(number)


@settings(max_examples=150, deadline=None)
@given(LOGS, st.integers(0, 1 << 30), st.integers(1, 5), st.sampled_from([None, 1, 3]))
def test_each_message_is_handled_once_or_a_dead_letter(
    log: list[bool | list[bool]], seed: int, run: int, lanes: int | None
) -> None:
    numbers = iter(range(1000))

    def payload(good: bool) -> bytes:
        return b"%s %d" % (b"good" if good else b"bad", next(numbers))

    data, kinds = b"", list[bool]()
    for entry in log:
        of_entry = entry if isinstance(entry, list) else [entry]
        kinds += of_entry
        codec = Codec.GZIP if isinstance(entry, list) else Codec.NONE
        data += encode_message_set([payload(good) for good in of_entry], codec=codec)
    batch = Batch(TopicPartition("t", 0, 0), decode_batch(data, 0))
    letters: list[Letter] = []
    inner = Flaky(random.Random(seed), lanes is not None)
    handler = Stages("h", decoder=make_decoder(_decode)).around(
        inner,
        RetryPolicy(max_attempts=2, on_failure="dead_letter"),
        clock=FakeClock(auto=True),
        rng=random.Random(seed),
        dead_letters=MemoryDeadLetters(letters),
        lanes=lanes,
    )
    with mock.patch.object(stage, "RUN", run):
        asyncio.run(handler.handle(batch))
    dead = [int(letter.message.payload.split()[1]) for letter in letters]
    assert sorted([*inner.handled, *dead]) == list(range(len(kinds)))
    assert {number for number, good in enumerate(kinds) if not good} <= set(dead)
    for key in range(1 if lanes is None else 3):
        mine = [number for number in inner.handled if lanes is None or number % 3 == key]
        assert mine == sorted(mine)
    if lanes is None:
        assert dead == sorted(dead)
    assert batch.handled == len(batch)


def message(payload: bytes) -> Message:
    return Message(TopicPartition("t", 0, 0), 0, 0, len(payload), payload)


NESTED = {
    "type": "record", "name": "R",
    "fields": [
        {"name": "i", "type": "int"}, {"name": "s", "type": ["null", "string", "bytes"]},
        {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["A", "B"]}},
        {"name": "a", "type": {"type": "array", "items": {"type": "map", "values": "double"}}},
        {"name": "t", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "d", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "u", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "f", "type": {"type": "fixed", "name": "F", "size": 3}},
    ],
}  # fmt: skip
GOOD = {
    "i": 5, "s": "ä", "e": "B", "a": [{"k": 1.5}, {}], "t": 10**15, "d": b"\x01\x02",
    "u": "f81d4fae-7dec-11d0-a765-00a0c91e6bf6", "f": b"abc",
}  # fmt: skip


@pytest.fixture(scope="module")
def avro(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path: Path = tmp_path_factory.mktemp("schemas") / "r.avsc"
    path.write_text(json.dumps(NESTED))
    return load_decoder("avro", {"schema": str(path)})


def encoded() -> bytes:
    data = io.BytesIO()
    value = {**GOOD, "d": decimal.Decimal("2.58"), "u": uuid.UUID(str(GOOD["u"]))}
    fastavro.schemaless_writer(data, fastavro.parse_schema(NESTED), value)
    return data.getvalue()


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 100), st.integers(0, 20))
def test_avro_decodes_any_bytes_or_raises_its_error(avro: Any, noise: bytes, at: int, cut: int) -> None:
    good = encoded()
    assert avro.decode(message(good))["s"] == "ä"
    at %= len(good)
    for payload in (noise, good[:at], good[:at] + noise + good[at + cut :]):
        with contextlib.suppress(DecodeError):
            assert isinstance(avro.decode(message(payload)), dict)


@settings(max_examples=100, deadline=None)
@given(
    st.binary(max_size=100)
    | st.text(alphabet='[]{}",:0123456789eE+-.\\utrfn \ud7ff', max_size=60).map(lambda text: text.encode())
    | st.builds(
        lambda opening, depth: opening * depth, st.sampled_from([b"[", b'{"a":', b"[["]), st.integers(0, 60_000)
    )
    | st.builds(lambda digits, tail: digits + tail, st.integers(0, 6000).map(lambda n: b"9" * n), st.binary(max_size=4))
)
def test_json_and_text_decode_any_bytes_or_raise_their_error(payload: bytes) -> None:
    for decoder in DECODERS:
        with contextlib.suppress(DecodeError):
            decoder.decode(message(payload))
