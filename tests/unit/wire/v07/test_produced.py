from __future__ import annotations

import gzip
from collections.abc import Generator
from typing import cast

import pytest

from consumerd.wire import CorruptMessageError, DecompressionError, OversizeMessageError
from consumerd.wire.compression import STEP
from consumerd.wire.v07 import (
    CheckedSet,
    Codec,
    DecodeLimits,
    check_plain_set,
    check_produced_set,
    check_steps,
    encode_message,
    encode_message_set,
)
from consumerd.wire.v07 import produced as produced_module
from consumerd.wire.v07.packed import Note

pytestmark = pytest.mark.usefixtures("either_codec")

HELLO = bytes.fromhex("0000000b 01 00 3610a686") + b"hello"
OLD = bytes.fromhex("0000000a 00 3610a686") + b"hello"
BAD_CRC = bytes.fromhex("0000000b 01 00 00000000") + b"hello"
LIMITS = DecodeLimits(max_message_bytes=100)


def wrapper(inner: bytes) -> bytes:
    return encode_message(gzip.compress(inner, mtime=0), codec=Codec.GZIP)


def check(data: bytes) -> CheckedSet:
    return check_produced_set(data, limits=LIMITS)


def test_checks_plain_messages() -> None:
    assert check(HELLO) == CheckedSet(15, 1, 1)
    assert check(HELLO + OLD + HELLO + encode_message(b"")) == CheckedSet(54, 4, 4)


def test_counts_leaves_inside_wrappers() -> None:
    one, nested = wrapper(HELLO * 3), wrapper(HELLO + wrapper(OLD * 2))
    data = HELLO + one + nested + OLD
    assert check(data) == CheckedSet(len(data), 4, 1 + 3 + 3 + 1)


def test_empty_wrapper_is_a_message_without_leaves() -> None:
    assert check(wrapper(b"")) == CheckedSet(30, 1, 0)


@pytest.mark.parametrize("stray", [b"", b"\0", b"\0\0\0"])
def test_accepts_an_empty_set(stray: bytes) -> None:
    assert check(stray) == CheckedSet(0, 0, 0)


def test_drops_a_partial_message_at_the_end() -> None:
    for end in range(15, 30):
        assert check((HELLO + HELLO)[:end]) == CheckedSet(15, 1, 1)


def test_huge_length_at_the_end_is_a_partial_message() -> None:
    assert check(HELLO + b"\x7f\xff\xff\xff\x01\x00") == CheckedSet(15, 1, 1)


def test_drops_a_partial_message_at_the_end_of_an_inner_set() -> None:
    assert check(wrapper(HELLO + HELLO[:9])).leaf_count == 1


@pytest.mark.parametrize(
    "data",
    [
        HELLO[:12],  # nothing but a part
        bytes.fromhex("00000003 010000"),
        bytes.fromhex("00000000") + HELLO,
        bytes.fromhex("00000005 01 00000000"),
        HELLO + bytes.fromhex("00000000"),
        bytes.fromhex("ffffffff") + b"abcdef",
        HELLO + bytes.fromhex("ffffffff"),
        BAD_CRC,
        HELLO + BAD_CRC,
        BAD_CRC + HELLO,
        bytes.fromhex("0000000b 02 00 3610a686") + b"hello",
        bytes.fromhex("0000000b 01 03 3610a686") + b"hello",
        wrapper(BAD_CRC),
        wrapper(HELLO + BAD_CRC),
        wrapper(HELLO[:9]),
        wrapper(wrapper(BAD_CRC)),
        HELLO + wrapper(HELLO) + wrapper(b"\0\0\0\0"),
    ],
)
def test_one_bad_message_rejects_the_whole_set(data: bytes) -> None:
    with pytest.raises(CorruptMessageError):
        check(data)


def test_rejects_an_undecodable_wrapper() -> None:
    with pytest.raises(DecompressionError):
        check(HELLO + encode_message(b"this is not gzip", codec=Codec.GZIP))


def test_size_counts_outer_payloads_only() -> None:
    assert check(encode_message(b"x" * 100) * 2).outer_count == 2
    assert check(wrapper(encode_message(b"x" * 5000))).leaf_count == 1
    large = encode_message(b"x" * 101)
    for data in (large, HELLO * 3 + large + HELLO, OLD + large, encode_message(b"x" * 101, magic=0) + OLD):
        with pytest.raises(OversizeMessageError, match=r"payload of 101 bytes, more than max\.message\.size = 100"):
            check(data)


def test_accepts_a_payload_of_the_largest_size_in_any_message() -> None:
    assert check(encode_message(b"x" * 100, magic=0)) == CheckedSet(109, 1, 1)
    packed = wrapper(HELLO * 3)
    limits = DecodeLimits(max_message_bytes=len(packed) - 10)
    assert check_produced_set(packed, limits=limits) == CheckedSet(len(packed), 1, 3)
    with pytest.raises(OversizeMessageError):
        check_produced_set(packed, limits=DecodeLimits(max_message_bytes=len(packed) - 11))


def test_does_not_measure_a_partial_message() -> None:
    assert check(OLD + encode_message(b"x" * 101)[:-1]).valid_bytes == 14


def test_first_problem_decides() -> None:
    large = encode_message(b"x" * 101)
    with pytest.raises(OversizeMessageError):
        check(HELLO + large + BAD_CRC)
    with pytest.raises(CorruptMessageError):
        check(HELLO + BAD_CRC + large)
    with pytest.raises(OversizeMessageError):
        check(wrapper(BAD_CRC) + large)  # wrappers are opened after all sizes were looked at


def test_enforces_limits_on_wrappers() -> None:
    data = encode_message_set([b"x" * 1000], codec=Codec.SNAPPY)
    with pytest.raises(DecompressionError):
        check_produced_set(data, limits=DecodeLimits(max_decompressed_bytes=1000))
    assert check_produced_set(data, limits=DecodeLimits(max_decompressed_bytes=1010)).leaf_count == 1


@pytest.mark.parametrize(("free", "each"), [(60, 0), (1, 1), (1, 2)])
def test_wrapper_may_have_some_leaves_freely_and_more_by_its_size(free: int, each: int) -> None:
    limits = DecodeLimits(max_leaves_per_byte=each, free_leaves=free)
    for number in range(20, 100):
        data = wrapper(encode_message(b"") * number)
        if number <= max(free, each * (len(data) - 10)):
            assert check_produced_set(data, limits=limits).leaf_count == number
        else:
            with pytest.raises(CorruptMessageError, match="which is more than its size allows"):
                check_produced_set(data, limits=limits)


def number_of_steps(data: bytes) -> int:
    return 1 + sum(1 for _ in check_steps(data))


def test_checks_plain_messages_in_pieces(either_codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kibibytes = 64 if either_codec == "pure" else 1024
    pieces: list[tuple[int, int]] = []
    work = iter([STEP, STEP - 1, 1, STEP - 1, 0, 0])

    def work_of(size: int, count: int) -> int:
        pieces.append((size, count))
        return next(work)

    monkeypatch.setattr(produced_module, "work_of", work_of)
    kibibyte = encode_message(bytes(1014))
    assert number_of_steps(kibibyte * (5 * kibibytes + 2)) == 3
    assert pieces == [(kibibytes << 10, kibibytes)] * 5 + [(2 << 10, 2)]


def test_a_piece_ends_after_the_message_in_which_it_would_end(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces: list[tuple[int, int]] = []

    def work_of(size: int, count: int) -> int:
        pieces.append((size, count))
        return 0

    monkeypatch.setattr(produced_module, "work_of", work_of)
    monkeypatch.setattr(produced_module, "_piece", lambda: 100)
    checked = check(HELLO * 10)
    assert checked == CheckedSet(150, 10, 10)
    assert pieces == [(105, 6), (45, 3)]


@pytest.mark.parametrize("data", [b"", HELLO, HELLO * 3 + encode_message(b""), encode_message(b"x" * 100)])
def test_judges_plain_sets_at_once(data: bytes) -> None:
    assert check_plain_set(data, limits=LIMITS) == check(data)


@pytest.mark.parametrize(
    "data",
    [
        b"\0",
        HELLO[:-1],
        HELLO + HELLO[:-1],
        HELLO + b"\0",
        BAD_CRC,
        HELLO + OLD,
        wrapper(HELLO),
        HELLO + wrapper(HELLO),
        encode_message(b"x" * 101),
    ],
)
def test_leaves_every_other_set_to_the_steps(data: bytes) -> None:
    assert check_plain_set(data, limits=LIMITS) is None


def test_leaves_large_sets_to_the_steps(either_codec: str) -> None:
    kibibytes = 64 if either_codec == "pure" else 1024
    data = encode_message(bytes(1014)) * kibibytes
    assert check_plain_set(data) == CheckedSet(len(data), kibibytes, kibibytes)
    assert check_plain_set(data + HELLO) is None
    assert check_produced_set(data + HELLO).valid_bytes == len(data) + len(HELLO)


def test_keeps_nothing_of_a_view() -> None:
    """What a broker has received is in a buffer that it wants to use again."""
    buffer = bytearray(HELLO + wrapper(HELLO) + OLD)
    with memoryview(buffer) as view:
        assert check_produced_set(cast("bytes", view)).leaf_count == 3
    buffer.clear()  # a BufferError if it was still in use


def test_ends_a_step_after_many_leaves_of_wrappers(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[tuple[int, int]] = []
    each = {"leaves": 0, "work": 0}

    def work_of(size: int, count: int) -> int:
        sizes.append((size, count))
        return each["work"]

    def open_steps(codec: Codec, payload: bytes, note: Note, *limits: object) -> Generator[None, None, None]:
        note(payload, 0, 0, each["leaves"])
        yield from ()

    monkeypatch.setattr(produced_module, "work_of", work_of)
    monkeypatch.setattr(produced_module, "open_steps", open_steps)
    one = wrapper(HELLO)
    assert STEP == 4096 * 16
    # Each leaf costs 16, each of the four wrappers `work` where it is found, and again where it is opened.
    for leaves, work, steps in ((4096, 15, 5), (4095, 16, 5), (4095, 15, 3), (1022, 16, 2), (1021, 16, 1)):
        each.update(leaves=leaves, work=work)
        assert number_of_steps(one * 4) == steps
    assert sizes[:8] == [(len(one), 0)] * 4 + [(len(one) - 10, 0)] * 4
