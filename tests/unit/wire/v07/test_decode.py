from __future__ import annotations

import gzip
import random
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest

from consumerd.base import native
from consumerd.wire.v07 import (
    BatchEnd,
    Codec,
    DecodeLimits,
    MessageLeaf,
    decode_batch,
    decode_steps,
    encode_message,
    encode_message_set,
    read_outer,
)
from consumerd.wire.v07 import decode as decode_module
from consumerd.wire.v07 import walk as walk_module
from consumerd.wire.v07.decode import LARGE_WRAPPER, native_limits
from tests.support.codecs import facts

pytestmark = pytest.mark.usefixtures("either_codec")

HELLO_1 = bytes.fromhex("0000000b 01 00 3610a686") + b"hello"
HELLO_0 = bytes.fromhex("0000000a 00 3610a686") + b"hello"
GZIPPED = encode_message_set([b"one", b"two", b"three"], codec=Codec.GZIP)


def wrapper(inner: bytes, codec: Codec = Codec.GZIP) -> bytes:
    return encode_message(gzip.compress(inner), codec=codec)


def test_empty_set_is_a_complete_batch() -> None:
    batch = decode_batch(b"", 42)
    assert (len(batch), batch.start_offset, batch.next_offset, batch.end) == (0, 42, 42, BatchEnd.COMPLETE)
    assert list(batch.messages()) == []
    assert (batch.memory_bytes, batch.prefix(0)) == (0, 42)


def test_decodes_plain_messages_of_both_magics() -> None:
    batch = decode_batch(HELLO_1 + HELLO_0 + HELLO_0 + HELLO_1 + HELLO_1, 100)
    assert batch.payloads == [b"hello"] * 5
    assert [m.offset for m in batch.messages()] == [100, 115, 129, 143, 158]
    assert [m.next_offset for m in batch.messages()] == [115, 129, 143, 158, 173]
    assert {m.index for m in batch.messages()} == {0}
    assert (batch.next_offset, batch.end) == (173, BatchEnd.COMPLETE)


def test_leaves_share_their_wrapper_s_offset_and_the_last_one_advances() -> None:
    end = 115 + len(GZIPPED)
    batch = decode_batch(HELLO_1 + GZIPPED + HELLO_1, 100)
    assert list(batch.messages()) == [
        MessageLeaf(100, 0, 115, b"hello"),
        MessageLeaf(115, 0, 115, b"one"),
        MessageLeaf(115, 1, 115, b"two"),
        MessageLeaf(115, 2, end, b"three"),
        MessageLeaf(end, 0, end + 15, b"hello"),
    ]


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY])
def test_flattens_nested_wrappers(codec: Codec) -> None:
    inner = HELLO_1 + encode_message_set([b"a", b"b"], codec=codec) + HELLO_0
    data = encode_message_set([b"first"]) + wrapper(inner) + HELLO_1
    batch = decode_batch(data, 0)
    assert batch.payloads == [b"first", b"hello", b"a", b"b", b"hello", b"hello"]
    after = 15 + len(wrapper(inner))
    assert [(m.offset, m.index, m.next_offset) for m in batch.messages()][1:5] == [
        (15, 0, 15),
        (15, 1, 15),
        (15, 2, 15),
        (15, 3, after),
    ]


@pytest.mark.parametrize("bits", [0x04, 0x80, 0xFC])
def test_ignores_the_upper_six_bits_of_the_attributes(bits: int) -> None:
    """They mean nothing (golden notes, 1)."""
    plain, packed = bytearray(HELLO_1), bytearray(GZIPPED)
    plain[5] |= bits
    packed[5] |= bits
    data = bytes(HELLO_1 + plain + HELLO_1 + packed + HELLO_1)
    batch = decode_batch(data, 100)
    assert batch.payloads == [b"hello"] * 3 + [b"one", b"two", b"three", b"hello"]
    after = 145 + len(GZIPPED)
    assert [message.next_offset for message in batch.messages()] == [115, 130, 145, 145, 145, after, after + 15]
    assert (batch.end, batch.next_offset) == (BatchEnd.COMPLETE, 100 + len(data))
    assert batch.memory_bytes == 4 * 5 + 3 + 3 + 5 + 7 * 48


def test_skips_an_empty_wrapper() -> None:
    empty = wrapper(b"")
    size = len(empty)
    batch = decode_batch(empty + HELLO_1 + empty + empty + GZIPPED + empty, 0)
    assert batch.payloads == [b"hello", b"one", b"two", b"three"]
    offsets = [(m.offset, m.index, m.next_offset) for m in batch.messages()]
    at = 3 * size + 15
    assert offsets == [(size, 0, size + 15), (at, 0, at), (at, 1, at), (at, 2, at + len(GZIPPED))]
    assert batch.next_offset == 4 * size + 15 + len(GZIPPED)
    assert [batch.prefix(n) for n in range(5)] == [0, size + 15, at, at, batch.next_offset]


def test_empty_wrappers_advance_without_messages() -> None:
    data = wrapper(b"") * 3
    batch = decode_batch(data, 9)
    assert (len(batch), batch.next_offset, batch.end) == (0, 9 + len(data), BatchEnd.COMPLETE)
    assert batch.prefix(0) == batch.next_offset


def test_ignores_a_partial_message_at_the_end_of_an_inner_set() -> None:
    for end in range(15, 30):
        batch = decode_batch(wrapper((HELLO_1 + HELLO_1)[:end]) + HELLO_1, 0)
        assert batch.payloads == [b"hello", b"hello"]
        assert batch.end is BatchEnd.COMPLETE


def test_drops_a_partial_message_at_the_end() -> None:
    data = HELLO_1 + HELLO_1
    for end in range(16, 30):
        batch = decode_batch(data[:end], 100)
        assert batch.payloads == [b"hello"]
        assert (batch.end, batch.next_offset) == (BatchEnd.PARTIAL, 115)
        assert batch.needed == (15 if end >= 19 else None)
        assert (batch.problem, batch.resume_offset) == (None, None)


def test_reports_the_bytes_that_a_partial_first_message_needs() -> None:
    batch = decode_batch(HELLO_1[:5], 0)
    assert (len(batch), batch.next_offset, batch.end, batch.needed) == (0, 0, BatchEnd.PARTIAL, 15)


@pytest.mark.parametrize(
    ("at", "value", "problem"),
    [
        (6, 0, "the message at offset 115 has a CRC of 3610a686 where its header says 0010a686"),
        (12, 0, "the message at offset 115 has a CRC of"),
        (4, 9, "the message at offset 115 has magic 9, which 0.7 does not know"),
        (5, 7, "the message at offset 115 has compression codec 3, which does not exist"),
    ],
)
def test_corrupt_message_ends_the_batch_and_can_be_skipped(at: int, value: int, problem: str) -> None:
    bad = bytearray(HELLO_1)
    bad[at] = value
    data = HELLO_1 + bytes(bad) + HELLO_1
    batch = decode_batch(data, 100)
    assert batch.payloads == [b"hello"]
    assert (batch.end, batch.next_offset, batch.resume_offset) == (BatchEnd.CORRUPT, 115, 130)
    assert batch.problem is not None
    assert batch.problem.startswith(problem)
    again = decode_batch(data[30:], 130)
    assert (again.payloads, again.end) == ([b"hello"], BatchEnd.COMPLETE)


def test_corrupt_message_at_the_end_can_be_skipped() -> None:
    for after in (b"", b"\0", HELLO_1[:7]):
        batch = decode_batch(b"\0\0\0\x0b\x01\x00\0\0\0\0hello" + after, 0)
        assert (batch.end, batch.resume_offset) == (BatchEnd.CORRUPT, 15)


def test_distrusts_a_length_when_no_message_follows() -> None:
    batch = decode_batch(b"\0\0\0\x0b\x01\x00\0\0\0\0hello" + b"\xff\xff\xff\xff and so on", 0)
    assert (batch.end, batch.resume_offset) == (BatchEnd.CORRUPT, None)


@pytest.mark.parametrize("length", [0, 4, -1, -(1 << 31), 0x7FFFFFFF, 1007])
def test_impossible_length_is_corrupt_and_cannot_be_skipped(length: int) -> None:
    data = HELLO_1 + length.to_bytes(4, signed=True) + bytes(1200)
    batch = decode_batch(data, 0, limits=DecodeLimits(max_message_bytes=1000))
    assert batch.payloads == [b"hello"]
    assert (batch.end, batch.next_offset, batch.resume_offset) == (BatchEnd.CORRUPT, 15, None)
    assert batch.problem == f"the message at offset 15 has a length of {length}, which no message has"


def test_large_length_within_the_limit_is_a_partial_message() -> None:
    data = (50_000_006).to_bytes(4) + b"\x01\x00"
    batch = decode_batch(data, 0)
    assert (batch.end, batch.needed) == (BatchEnd.PARTIAL, 50_000_010)


@pytest.mark.parametrize(
    "inner",
    [
        HELLO_1[:9],  # nothing but a part
        bytes.fromhex("0000000b 01 00 00000000") + b"hello",
        HELLO_1 + bytes.fromhex("0000000b 01 00 00000000") + b"hello",
        HELLO_1 + b"\0\0\0\0",
        HELLO_1 + b"\xff\xff\xff\xff",
        HELLO_1 + bytes.fromhex("0000000b 02 00 3610a686") + b"hello",
        HELLO_1 + bytes.fromhex("0000000b 01 03 3610a686") + b"hello",
        HELLO_1 + encode_message(b"no gzip", codec=Codec.GZIP),
        HELLO_1 + encode_message(b"\xff\xff\xff\xff\xff\xff", codec=Codec.SNAPPY),
    ],
)
def test_one_bad_inner_message_makes_the_wrapper_corrupt(inner: bytes) -> None:
    bad = wrapper(inner)
    batch = decode_batch(HELLO_1 + bad + HELLO_1, 0)
    assert batch.payloads == [b"hello"]
    assert (batch.end, batch.next_offset, batch.resume_offset) == (BatchEnd.CORRUPT, 15, 15 + len(bad))
    assert batch.problem is not None
    assert batch.problem.startswith("the message at offset 15 cannot be decompressed: ")


def test_undecodable_wrapper_can_be_skipped_whatever_follows() -> None:
    bad = encode_message(b"no gzip", codec=Codec.GZIP)
    assert decode_batch(bad + b"\xff\xff\xff\xff", 0).resume_offset == len(bad)


def test_batch_takes_wrappers_until_it_holds_exactly_its_limit() -> None:
    one = wrapper(HELLO_1 * 10)  # 150 bytes
    for limit, taken in ((149, 0), (150, 1), (151, 2), (300, 2), (301, 3)):
        batch = decode_batch(one * 4, 0, limits=DecodeLimits(max_decompressed_bytes=limit))
        assert batch.next_offset == taken * len(one)
    memory = 10 * (5 + 48)
    for limit, taken in ((memory, 1), (memory + 1, 2)):
        batch = decode_batch(one * 3, 0, limits=DecodeLimits(max_batch_bytes=limit))
        assert (batch.end, batch.next_offset) == (BatchEnd.PARTIAL, taken * len(one))


@pytest.mark.parametrize("limit", [LARGE_WRAPPER, LARGE_WRAPPER + 1])
def test_bomb_is_corrupt_and_can_be_skipped_whatever_follows(limit: int) -> None:
    limits = DecodeLimits(max_decompressed_bytes=limit)
    bomb = wrapper(encode_message(bytes(limit)))
    batch = decode_batch(bomb + b"\xff\xff\xff\xff", 0, limits=limits)
    assert (batch.end, batch.resume_offset) == (BatchEnd.CORRUPT, len(bomb))


def test_wrapper_above_the_limit_is_corrupt_wherever_it_stands() -> None:
    """Only one that is merely large is left for a batch of its own."""
    bomb = wrapper(encode_message(bytes(LARGE_WRAPPER)))
    for limit, end in ((LARGE_WRAPPER, BatchEnd.CORRUPT), (2 * LARGE_WRAPPER, BatchEnd.PARTIAL)):
        batch = decode_batch(HELLO_1 + bomb, 0, limits=DecodeLimits(max_decompressed_bytes=limit))
        assert (batch.end, batch.next_offset) == (end, 15)


def test_believes_a_bad_message_s_length_only_where_the_next_length_is_possible() -> None:
    bad = b"\0\0\0\x0b\x01\x00\0\0\0\0hello"
    for size, believed in ((4, False), (5, True), (106, True), (107, False)):
        following = size.to_bytes(4) + b"\x01"
        batch = decode_batch(bad + following, 0, limits=DecodeLimits(max_message_bytes=100))
        assert batch.resume_offset == (15 if believed else None)


def number_of_steps(data: bytes) -> int:
    return 1 + sum(1 for _ in decode_steps(data, 0))


def test_ends_a_step_after_each_mebibyte_out_of_wrappers() -> None:
    half = wrapper(encode_message(bytes((1 << 19) - 10)))
    less = wrapper(encode_message(bytes((1 << 19) - 11)))
    assert number_of_steps(half + less) == 1
    assert number_of_steps(half * 2) == 2
    assert number_of_steps(half * 3) == 2
    assert number_of_steps(half * 4) == 3


def test_limits_nesting_depth() -> None:
    data = HELLO_1
    for _ in range(3):
        data = wrapper(data)
    assert decode_batch(data, 0, limits=DecodeLimits(max_depth=3)).payloads == [b"hello"]
    batch = decode_batch(data, 0, limits=DecodeLimits(max_depth=2))
    assert (batch.end, batch.resume_offset) == (BatchEnd.CORRUPT, len(data))
    assert batch.problem is not None
    assert "nested deeper than 2" in batch.problem


def test_limits_decompressed_bytes_over_all_levels() -> None:
    inner = wrapper(HELLO_1 * 10)
    data = wrapper(inner + inner)
    spent = 2 * len(inner) + 2 * 150
    assert len(decode_batch(data, 0, limits=DecodeLimits(max_decompressed_bytes=spent))) == 20
    batch = decode_batch(data, 0, limits=DecodeLimits(max_decompressed_bytes=spent - 1))
    assert batch.end is BatchEnd.CORRUPT
    # The message has the configured limit, not the rest that earlier levels left of it.
    assert f"more than the limit of {spent - 1} bytes" in (batch.problem or "")


def test_batch_ends_before_the_next_wrapper_once_it_holds_its_limit() -> None:
    one = wrapper(HELLO_1 * 10)
    batch = decode_batch(one * 5 + HELLO_1, 0, limits=DecodeLimits(max_decompressed_bytes=200))
    assert (len(batch), batch.end, batch.next_offset) == (20, BatchEnd.PARTIAL, 2 * len(one))
    assert batch.needed == len(one)
    again = decode_batch(one * 3 + HELLO_1, batch.next_offset, limits=DecodeLimits(max_decompressed_bytes=200))
    assert len(again) == 20


def test_consecutive_bombs_cost_no_more_than_twice_the_limit() -> None:
    bomb = wrapper(encode_message(bytes(1 << 20)))
    limit = 2 << 20
    data = bomb * 50
    tracemalloc.start()
    try:
        batch = decode_batch(data, 0, limits=DecodeLimits(max_decompressed_bytes=limit))
        assert tracemalloc.get_traced_memory()[1] < 4 * limit
    finally:
        tracemalloc.stop()
    assert batch.end is BatchEnd.PARTIAL
    assert batch.memory_bytes < 2 * limit


def test_counts_the_overhead_of_small_leaves() -> None:
    one = wrapper(encode_message(b"ab") * 1000)
    batch = decode_batch(one * 50, 0, limits=DecodeLimits(max_batch_bytes=200_000))
    assert batch.end is BatchEnd.PARTIAL
    assert 200_000 <= batch.memory_bytes < 200_000 + 51 * 1000
    assert batch.next_offset == len(batch) // 1000 * len(one)
    # Whatever the limit, a batch brings the position forward.
    assert len(decode_batch(one * 2, 0, limits=DecodeLimits(max_batch_bytes=1))) == 1000


def test_accepts_any_buffer() -> None:
    for data in (HELLO_1, bytearray(HELLO_1), memoryview(HELLO_1), memoryview(b"xx" + HELLO_1)[2:]):
        batch = decode_batch(data, 0)
        assert batch.payloads == [b"hello"]
        assert type(batch.payloads[0]) is bytes


def test_does_not_keep_the_response_alive() -> None:
    tracemalloc.start()
    try:
        data = encode_message_set([b"tiny"]) + encode_message(bytes(8 << 20))[:-1]
        batch = decode_batch(data, 0)
        del data
        assert tracemalloc.get_traced_memory()[0] < 1 << 20
    finally:
        tracemalloc.stop()
    assert batch.payloads == [b"tiny"]


def test_memory_counts_payloads_and_python_overhead() -> None:
    plain = decode_batch(encode_message_set([b"x" * 100] * 50), 0)
    assert plain.memory_bytes == 50 * (100 + 48)
    mixed = decode_batch(HELLO_1 + HELLO_0 + GZIPPED, 0)
    assert mixed.memory_bytes == (5 + 5 + 3 + 3 + 5) + 5 * 48


@pytest.mark.parametrize("after", [b"", HELLO_1, HELLO_0])
@pytest.mark.parametrize("magic", [0, 1])
def test_a_payload_above_the_limit_is_corrupt_wherever_it_stands(magic: int, after: bytes) -> None:
    long = encode_message_set([bytes(1002)], magic=magic)
    batch = decode_batch(HELLO_1 + long + after, 0, limits=DecodeLimits(max_message_bytes=1000))
    assert (batch.payloads, batch.end, batch.next_offset) == ([b"hello"], BatchEnd.CORRUPT, 15)


def test_nothing_is_held_but_what_the_batch_counts() -> None:
    incompressible = random.Random(7).randbytes(50_000)
    for data in (
        HELLO_1 + encode_message(bytes(8 << 20))[:-1],  # a long end that is cut off
        wrapper(encode_message(incompressible) + wrapper(b"") * 500) + HELLO_0,
        HELLO_1 + wrapper(encode_message(b"", codec=Codec.NONE) * 3000),
    ):
        batch = decode_batch(data, 0)
        assert getattr(batch._payloads, "held_bytes", 0) <= batch.memory_bytes


@pytest.mark.parametrize("magic", [0, 1])
def test_takes_a_row_of_plain_messages_at_once(either_codec: str, magic: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the last one, and the first of another magic, are read by themselves; one entry is kept for the row."""
    looked: list[int] = []

    def look(data: bytes, position: int, offset: int, max_payload: int) -> object:
        looked.append(position)
        return read_outer(data, position, offset, max_payload)

    monkeypatch.setattr(decode_module, "read_outer", look)
    batch = decode_batch(encode_message_set([b"."] * 1000, magic=magic), 0, limits=DecodeLimits(max_message_bytes=1))
    assert (len(batch), batch.end) == (1000, BatchEnd.COMPLETE)
    size = 11 - (magic == 0)
    expected = [999 * size] if magic == 1 else [0, 999 * size]
    assert looked == ([] if either_codec == "native" else expected)
    assert [tuple(run) for run in batch._runs] == [(0, 0, size - 1)]


def test_ends_a_step_after_four_mebibytes_of_plain_messages(either_codec: str) -> None:
    whole = encode_message(bytes((1 << 20) - 10))
    assert len(whole) == 1 << 20
    # The pure codec leaves the last message for the look that follows; the native one takes it, and fills the step.
    assert number_of_steps(whole * 4) == (1 if either_codec == "pure" else 2)
    data = whole * 9 + HELLO_1
    batch = decode_batch(data, 7)
    assert [message.offset for message in batch.messages()] == [7 + (number << 20) for number in range(10)]
    assert batch.next_offset == 7 + len(data)
    assert number_of_steps(data) == 3


def test_walks_long_data_in_windows_of_four_mebibytes(monkeypatch: pytest.MonkeyPatch) -> None:
    windows: list[int] = []

    def walk(data: bytes, position: int, *rest: Any) -> int:
        windows.append(len(data) - position)
        return walk_module.walk(data, position, *rest)

    monkeypatch.setattr(decode_module, "walk", walk)
    whole = encode_message(bytes((1 << 20) - 10))
    with native.using(None):
        assert len(decode_batch(whole * 9, 0)) == 9
    # The last message of a window is left for the next one.
    assert windows == [4 << 20, 4 << 20, 3 << 20]


def test_uses_the_native_codec_where_positions_have_32_bits(native_codec: native.NativeCodec) -> None:
    most = 0xFFFFFFFF - LARGE_WRAPPER - len(HELLO_1)
    with native.using(native_codec):
        for limit, used in ((most, True), (most + 1, False)):
            batch = decode_batch(HELLO_1, 0, limits=DecodeLimits(max_decompressed_bytes=limit))
            assert (batch.buffer is not None) is used
            assert batch.payloads == [b"hello"]


def test_pure_code_takes_what_the_native_codec_leaves(
    native_codec: native.NativeCodec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever that is: here all that is not empty."""

    def limits_of(codec: native.NativeCodec, limits: DecodeLimits) -> native.NativeLimits:
        return native_limits(codec, replace(limits, max_message_bytes=0))

    monkeypatch.setattr(decode_module, "native_limits", limits_of)
    snappy = encode_message_set([b"four", b""], codec=Codec.SNAPPY)
    empty = encode_message(b"")
    data = HELLO_1 + HELLO_0 + empty + GZIPPED + HELLO_0 + snappy + wrapper(snappy + HELLO_0) + HELLO_1
    with native.using(None):
        expected = facts(decode_batch(data, 100))
    with native.using(native_codec):
        batch = decode_batch(memoryview(data), 100)
    assert batch.buffer is not None
    assert facts(batch) == expected


def test_a_buffer_that_changes_later_is_copied() -> None:
    data = bytearray(HELLO_1 * 3)
    batch = decode_batch(memoryview(data), 0)
    data[:] = bytes(len(data))
    assert list(batch) == [b"hello"] * 3


def test_accepts_views_with_gaps_and_of_signed_bytes() -> None:
    with_gaps = bytes(byte for pair in zip(HELLO_1 * 2, bytes(30), strict=True) for byte in pair)
    for view in (memoryview(with_gaps)[::2], memoryview(HELLO_1 * 2).cast("b")):
        assert decode_batch(view, 0).payloads == [b"hello"] * 2


def test_native_codec_does_not_copy_the_response(native_codec: native.NativeCodec) -> None:
    data = memoryview(encode_message(bytes(1 << 20)))
    with native.using(native_codec):
        tracemalloc.start()
        try:
            decode_batch(data[:-1], 0)
            assert tracemalloc.get_traced_memory()[1] < 1 << 18
        finally:
            tracemalloc.stop()
