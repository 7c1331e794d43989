from __future__ import annotations

import os

import pytest

from consumerd.base.errors import ExitCode
from consumerd.producer import MessageSizeTooLargeError
from consumerd.producer.v07.encoding import HEADER, encode_sets, entry_overhead, frames
from consumerd.wire.v07 import Codec, MultiProduceRequest, ProduceRequest, decode_batch, decode_request, iter_outer


def sets(payloads: list[bytes], codec: Codec = Codec.NONE, message: int = 1000, whole: int = 5000) -> list[bytes]:
    return encode_sets("events", payloads, magic=1, codec=codec, max_message_bytes=message, max_set_bytes=whole)


def test_rejects_a_message_of_one_byte_too_many() -> None:
    (data,) = sets([b"x" * 1000])
    assert len(data) == 1000 + HEADER
    with pytest.raises(MessageSizeTooLargeError) as caught:
        sets([b"small", b"x" * 1001])
    assert str(caught.value).startswith("a message for topic 'events' has 1001 bytes and the limit is 1000")
    assert caught.value.exit_code is ExitCode.USAGE


def test_limits_the_compressed_size_of_a_compressed_message() -> None:
    (data,) = sets([b"x" * 100_000], Codec.GZIP)
    assert decode_batch(data, 0).payloads == [b"x" * 100_000]


def test_splits_what_does_not_compress() -> None:
    noise = [os.urandom(400) for _ in range(8)]
    (data,) = sets(noise, Codec.SNAPPY)
    outer = list(iter_outer(data))
    assert [m.codec for m in outer] == [Codec.SNAPPY] * 4
    assert decode_batch(data, 0).payloads == noise
    (data,) = sets([os.urandom(1000)], Codec.GZIP)
    assert [m.codec for m in iter_outer(data)] == [Codec.NONE]
    with pytest.raises(MessageSizeTooLargeError, match="has 1001 bytes"):
        sets([os.urandom(1001)], Codec.GZIP)


@pytest.mark.parametrize(
    ("whole", "lengths"),
    [(500, [5]), (499, [4, 1]), (200, [2, 2, 1]), (199, [1] * 5), (100, [1] * 5), (50, [1] * 5)],
)
def test_makes_as_few_sets_as_the_limit_allows(whole: int, lengths: list[int]) -> None:
    payloads = [bytes([number]) * 90 for number in range(5)]
    parts = [decode_batch(data, 0).payloads for data in sets(payloads, whole=whole)]
    assert [len(part) for part in parts] == lengths
    assert [payload for part in parts for payload in part] == payloads


def test_makes_as_few_compressed_messages_and_sets_as_the_limits_allow() -> None:
    noise = [os.urandom(400) for _ in range(4)]
    pairs = [sets(noise[n : n + 2], Codec.GZIP)[0] for n in (0, 2)]
    (size,) = {len(pair) for pair in pairs}  # noise is stored as it is
    assert sets(noise, Codec.GZIP, size - HEADER, 2 * size) == [b"".join(pairs)]
    assert sets(noise[:2], Codec.GZIP, size - HEADER) == pairs[:1]
    (data,) = sets(noise[:2], Codec.GZIP, size - HEADER - 1)
    assert [m.codec for m in iter_outer(data)] == [Codec.GZIP] * 2
    assert decode_batch(data, 0).payloads == noise[:2]
    assert sets(noise, Codec.GZIP, size - HEADER, 2 * size - 1) == pairs
    (data,) = sets([bytes(80)] * 10, Codec.GZIP, 1000)
    assert len(list(iter_outer(data))) == 1


def test_compressed_message_never_expands_beyond_the_limit_of_consumers() -> None:
    payloads = [bytes(1024 * 1024)] * 40
    (data,) = sets(payloads, Codec.GZIP, 1_000_000, 5_000_000)
    wrapped = [len(decode_batch(data[m.offset : m.next_offset], 0).payloads) for m in iter_outer(data)]
    assert wrapped == [15, 15, 10]  # 16 MiB with headers


def test_joins_sets_into_multiproduce_requests() -> None:
    entries = [ProduceRequest("t", n, b"m" * 100) for n in range(5)]
    size = entry_overhead("t") + 100
    each = size - 4
    (one,) = frames(entries[:1], 10_000)
    assert decode_request(one[4:]) == entries[0]
    (many,) = frames(entries, 10_000)
    assert decode_request(many[4:]) == MultiProduceRequest(tuple(entries))
    for limit, lengths in ((4 + 2 * each, [2, 2, 1]), (4 + 2 * each - 1, [1] * 5), (size, [1] * 5)):
        found = [decode_request(frame[4:]) for frame in frames(entries, limit)]
        assert [len(f.produces) if isinstance(f, MultiProduceRequest) else 1 for f in found] == lengths
        assert all(len(frame) - 4 <= limit for frame in frames(entries, limit))


def test_request_has_no_more_entries_than_its_count_can_say() -> None:
    entries = [ProduceRequest("t", 0, b"")] * 32_768
    first, second = frames(entries, 1 << 30)
    assert decode_request(first[4:]) == MultiProduceRequest(tuple(entries[1:]))
    assert decode_request(second[4:]) == entries[0]
    assert list(frames([], 100)) == []


def test_full_set_makes_a_request_of_exactly_the_limit() -> None:
    limit = 2000
    overhead = entry_overhead("тема")
    payload = b"x" * (limit - overhead - HEADER)
    (data,) = sets([payload], message=limit, whole=limit - overhead)
    (frame,) = frames([ProduceRequest("тема", 0, data)], limit)
    assert len(frame) - 4 in (limit, limit - 2)  # a PRODUCE has no count
