"""The native codec writes what the pure one writes, byte by byte, and what cannot be written gives the same errors."""

from __future__ import annotations

import array
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumerd.base import native
from consumerd.producer.encoders import DefaultEncoder, encode_all
from consumerd.producer.errors import EncodingError
from consumerd.wire.v07 import EncodedProduceRequest, ProduceRequest
from consumerd.wire.v07 import encode_message_set as encode_v07
from consumerd.wire.v08.records import RecordCodec, encode_message_set, encode_record_batch
from consumerd.wire.v08.records.encode import Surroundings
from tests.support.codecs import written_by_both

pytestmark = pytest.mark.usefixtures("native_codec")

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
SIZES = st.sampled_from([0, 1, 40, 57, 58, 59, 62, 63, 64, 127, 8100, 8185, 8200])
VALUES = st.none() | st.binary(max_size=20) | SIZES.map(bytes)
ROWS = st.lists(st.tuples(VALUES, VALUES, st.integers(-9000, 1 << 45) | INT64), max_size=20)


@given(st.lists(st.binary(max_size=20) | SIZES.map(bytes), max_size=20), st.integers(0, 2))
def test_message_sets_of_0_7(payloads: list[bytes], magic: int) -> None:
    written_by_both(encode_v07, payloads, magic=magic)
    written_by_both(encode_v07, tuple(payloads), magic=magic)
    written_by_both(encode_v07, [bytearray(payload) for payload in payloads], magic=magic)


@given(
    st.lists(st.binary(max_size=20) | SIZES.map(bytes), max_size=20),
    st.text(max_size=10) | st.just("t" * 32767) | st.just("t" * 32768),
    st.integers(-2, 9) | st.sampled_from([-(1 << 31), (1 << 31) - 1, 1 << 31, 1 << 70]),
    st.sampled_from([0, 19, 63, 1 << 20]),
    st.sampled_from([0, 100, 1 << 20]),
)
def test_produce_requests(payloads: list[bytes], topic: str, partition: int, largest: int, most: int) -> None:
    found = EncodedProduceRequest.of(topic, partition, payloads, largest, most)
    messages = encode_v07(payloads)
    if (
        len(messages) > most
        or max(map(len, payloads), default=0) > largest
        or len(topic.encode()) >= 1 << 15
        or partition >= 1 << 31
    ):
        assert found is None
    else:
        frame = ProduceRequest(topic, partition, messages).encode()
        assert found == EncodedProduceRequest(topic, partition, frame)


@pytest.mark.parametrize("payloads", [(b"a",), [bytearray(b"a")], ["a"], [None], [b"a", 1], b"a", None])
def test_leaves_produce_requests_of_unusual_payloads_to_the_pure_code(payloads: Any) -> None:
    assert EncodedProduceRequest.of("t", 0, payloads, 100, 1000) is None


def test_leaves_produce_requests_of_unusual_topics_to_the_pure_code() -> None:
    assert EncodedProduceRequest.of("\ud800", 0, [b"a"], 100, 1000) is None
    assert EncodedProduceRequest.of("t", 0, [b"a"], 100, 1000) is not None
    with native.using(None):
        assert EncodedProduceRequest.of("t", 0, [b"a"], 100, 1000) is None


class _Bytes(bytes):
    pass


@pytest.mark.parametrize(
    "messages",
    [[], [b"a", b""], (b"a",), [b"a", "text"], [b"a", bytearray(b"b"), memoryview(b"c")], [_Bytes(b"a"), b"b"]],
)
def test_payloads_of_a_producer(messages: Any) -> None:
    found = encode_all(DefaultEncoder(), messages)
    with native.using(None):
        assert found == encode_all(DefaultEncoder(), messages)
    assert [type(payload) for payload in found] == [bytes] * len(messages)
    assert found is not messages


@pytest.mark.parametrize("wrong", [[b"a", None], [1], [b"a", ["b"]]])
def test_rejects_payloads_that_are_neither_bytes_nor_text(wrong: Any) -> None:
    for codec in (None, native.codec()):
        with native.using(codec), pytest.raises(EncodingError, match="a message must be bytes or text"):
            encode_all(DefaultEncoder(), wrong)


@given(
    ROWS, st.booleans(), st.sampled_from([None, 0, -1, 5, 1 << 62, 1 << 63]), st.integers(0, 2), INT64, st.booleans()
)
def test_messages_and_records(
    rows: list[tuple[bytes | None, bytes | None, int]],
    keyed: bool,
    time: int | None,
    magic: int,
    offset: int,
    packed: bool,
) -> None:
    options: dict[str, Any] = {"codec": RecordCodec.GZIP if packed else RecordCodec.NONE, "base_offset": offset}
    options["timestamps"] = [stamp for _, _, stamp in rows] if time is None else time
    options["keys"] = [key for _, key, _ in rows] if keyed else None
    values = [value for value, _, _ in rows]
    if magic < 2:
        written_by_both(encode_message_set, values, magic=magic, **options)
    else:
        written_by_both(encode_record_batch, values, headers={0: (("name", None),)} if packed else {}, **options)


@given(
    ROWS,
    st.sampled_from([-1, 0, 7, (1 << 15) - 1, 1 << 15, (1 << 31) - 1, 1 << 31, (1 << 63) - 1, 1 << 63]),
    st.sampled_from(["producer_id", "producer_epoch", "base_sequence", "base_offset", "leader_epoch"]),
    st.none() | st.builds(Surroundings, st.binary(max_size=40), st.booleans(), st.binary(max_size=4)),
    st.booleans(),
)
def test_batches_in_requests(
    rows: list[tuple[bytes | None, bytes | None, int]],
    number: int,
    name: str,
    around: Surroundings | None,
    transactional: bool,
) -> None:
    columns: dict[str, Any] = {"keys": [key for _, key, _ in rows], "timestamps": [stamp for _, _, stamp in rows]}
    values = [value for value, _, _ in rows]
    options: dict[str, Any] = {name: number, "around": around, "transactional": transactional}
    written_by_both(encode_record_batch, values, **columns, **options)


@pytest.mark.parametrize("encode", [encode_message_set, encode_record_batch])
def test_unusual_columns(encode: Callable[..., bytes]) -> None:
    values = [b"a", b"b"]
    unusual: list[dict[str, Any]] = [
        {"keys": []},
        {"keys": (b"k", b"l")},
        {"keys": [b"k"]},
        {"keys": [b"k", bytearray(b"l")]},
        {"timestamps": (1, 2)},
        {"timestamps": array.array("q", [1, 2])},
        {"timestamps": [1]},
        {"timestamps": [True, 2]},
        {"timestamps": True},
    ]
    for options in unusual:
        written_by_both(encode, values, **options)
        written_by_both(encode, tuple(values), **options)


def test_long_batches() -> None:
    for values in ([b"v"] * 9000, [bytes(100_000)] * 3):
        found = written_by_both(encode_record_batch, values, timestamps=list(range(len(values))))
        assert isinstance(found, bytes)
