"""Large compressed messages: opened in steps, bounded in what they may cost, and kept packed."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Generator
from typing import Any, TypeVar

import pytest

from consumerd.wire import CorruptMessageError, compress
from consumerd.wire.compression import DecompressionAllowance
from consumerd.wire.v07 import (
    BatchEnd,
    Codec,
    DecodeLimits,
    PackedPayloads,
    check_produced_set,
    check_steps,
    decode_batch,
    decode_steps,
    encode_message,
    encode_message_set,
)
from consumerd.wire.v07 import outer as outer_module
from consumerd.wire.v07 import packed as packed_module
from consumerd.wire.v07 import walk as walk_module
from consumerd.wire.v07.packed import open_steps, pack_steps, work_of
from consumerd.wire.v07.unwrap import unwrap

pytestmark = pytest.mark.usefixtures("either_codec")

Result = TypeVar("Result")


def counted(steps: Generator[None, None, Result]) -> tuple[Result, int]:
    """The result of `steps`, and their number."""
    number = 1
    try:
        while True:
            next(steps)
            number += 1
    except StopIteration as end:
        return end.value, number


def wrapper(inner: bytes, codec: Codec = Codec.GZIP) -> bytes:
    return encode_message(compress(codec, inner), codec=codec)


def many(count: int) -> bytes:
    return encode_message(b"") * count


def mixed(rng: random.Random) -> bytes:
    """A set of everything that a set may hold: both magics, all sizes, wrappers in wrappers, a cut end."""
    pieces = []
    for _ in range(rng.randint(5, 20)):
        match rng.randint(0, 5):
            case 0:
                pieces.append(encode_message(rng.randbytes(rng.choice([0, 1, 70_000, 200_000])), magic=0))
            case 1:
                pieces.append(encode_message(rng.randbytes(rng.randint(0, 9)), magic=0) * rng.randint(1, 2_000))
            case 2:
                inner = encode_message(b"in") * rng.randint(0, 3000)
                pieces.append(wrapper(inner + wrapper(encode_message(b"deep")), rng.choice([Codec.GZIP, Codec.SNAPPY])))
            case _:
                pieces.append(encode_message(rng.randbytes(rng.randint(0, 300))) * rng.randint(1, 500))
    if rng.random() < 0.5:
        pieces.append(encode_message(b"cut off")[:-3])
    return b"".join(pieces)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY])
def test_packed_payloads_equal_the_list(codec: Codec, seed: int) -> None:
    rng = random.Random(seed)
    payload = compress(codec, mixed(rng))
    expected, _ = unwrap(codec, payload)
    packed, _ = counted(pack_steps(codec, payload))
    assert len(packed) == len(expected)
    assert list(packed) == expected
    for _ in range(50):
        start = rng.randrange(len(expected))
        stop = start + rng.choice([0, 1, 10, 10_000])
        assert packed[start] == expected[start]
        assert packed[start:stop] == expected[start:stop]
    assert packed[-1] == expected[-1]
    assert packed[-5:] == expected[-5:]
    assert packed[::7] == expected[::7]
    with pytest.raises(IndexError):
        packed[len(expected)]


def test_large_wrapper_is_a_batch_of_its_own() -> None:
    before, after = encode_message(b"before") * 3, encode_message(b"after")
    large = wrapper(many(430_000))
    data = before + large + after
    batch = decode_batch(data, 100)
    assert (list(batch), batch.end, batch.needed) == ([b"before"] * 3, BatchEnd.PARTIAL, len(large))
    assert batch.next_offset == 100 + len(before)
    batch = decode_batch(data[len(before) :], batch.next_offset)
    assert isinstance(batch.payloads, PackedPayloads)
    assert (len(batch), batch.end) == (430_000, BatchEnd.PARTIAL)
    start, end = 100 + len(before), 100 + len(before) + len(large)
    assert (batch.prefix(0), batch.prefix(1), batch.prefix(429_999), batch.prefix(430_000)) == (
        start,
        start,
        start,
        end,
    )
    last = None
    for number, last in enumerate(batch.messages()):
        assert last.index == number
        assert last.offset == start
    assert last is not None
    assert (last.index, last.next_offset) == (429_999, end)
    assert list(decode_batch(after, end)) == [b"after"]
    assert decode_batch(large, 0).end is BatchEnd.COMPLETE


def test_large_wrapper_with_a_bad_end_is_corrupt() -> None:
    large = wrapper(many(430_000) + b"\0\0\0\x06\x01\0\0\0\0\x01")
    batch = decode_batch(large, 0)
    assert (batch.end, len(batch), batch.resume_offset) == (BatchEnd.CORRUPT, 0, len(large))
    assert "cannot be decompressed" in (batch.problem or "")
    batch = decode_batch(wrapper(many(430_000)), 0, limits=DecodeLimits(max_decompressed_bytes=4_200_000))
    assert "more than the limit of 4200000 bytes" in (batch.problem or "")


def test_decodes_millions_of_messages_in_the_memory_of_their_set_and_in_steps() -> None:
    size, number = 8 << 20, (8 << 20) // 12
    data = wrapper(encode_message(b"ab") * number)
    tracemalloc.start()
    try:
        batch, steps = counted(decode_steps(data, 0))
        assert len(batch) == number
        assert sum(map(len, batch)) == 2 * number
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert steps > 60
    assert batch.memory_bytes < size * 1.01
    assert peak < size * 2  # a growing buffer is larger than what is in it


def test_checks_a_produced_set_in_steps_and_keeps_nothing() -> None:
    limits = DecodeLimits(max_message_bytes=1 << 20)
    data = wrapper(many(400_000))
    tracemalloc.start()
    try:
        checked, steps = counted(check_steps(data, limits=limits))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert checked.leaf_count == 400_000
    assert steps > 30
    assert peak < 10 << 20  # the set has 4 MB, a list of its messages would have 19
    old = encode_message(b"", magic=0) * 20_000
    assert counted(check_steps(old, limits=limits))[1] > 40
    plain = encode_message(bytes(1000)) * 200
    assert counted(check_steps(plain, limits=limits))[1] == 1


def test_rejects_more_leaves_than_the_size_allows() -> None:
    with pytest.raises(CorruptMessageError, match="holds more than 131072 messages, which is more than"):
        check_produced_set(wrapper(many(131_073)))
    assert check_produced_set(wrapper(many(131_072))).leaf_count == 131_072
    # what differs has different CRCs, and so a size that allows for it
    rng = random.Random(1)
    various = encode_message_set([rng.randbytes(2) for _ in range(150_000)])
    limits = DecodeLimits(max_message_bytes=1 << 30, max_leaves_per_byte=1, free_leaves=1)
    assert check_produced_set(wrapper(various), limits=limits).leaf_count == 150_000


def test_rejects_nesting_by_depth_and_by_number() -> None:
    data = encode_message(b"")
    for _ in range(8):
        data = wrapper(data)
    assert check_produced_set(data).leaf_count == 1
    with pytest.raises(CorruptMessageError, match="nested deeper than 8"):
        check_produced_set(wrapper(data))
    flat = wrapper(b"")
    crowd = wrapper(flat * 20_000)
    for judge in (check_produced_set, lambda data: unwrap(Codec.GZIP, data[10:])):
        with pytest.raises(CorruptMessageError, match="consists of too many compressed pieces"):
            judge(crowd)
    # each of them of many members, which cost as much as wrappers do
    members = encode_message(compress(Codec.GZIP, b"") * 1000, codec=Codec.GZIP)
    crowd = wrapper(members * 30)
    for judge in (check_produced_set, lambda data: unwrap(Codec.GZIP, data[10:])):
        with pytest.raises(CorruptMessageError, match="consists of too many compressed pieces"):
            judge(crowd)


def test_rejects_a_small_bomb_after_few_steps() -> None:
    data = encode_message(b"") * 4
    for _ in range(12):
        data = wrapper(data) * 4
    steps = check_steps(wrapper(data))
    number = 0
    with pytest.raises(CorruptMessageError, match="nested deeper than 8"):  # noqa: PT012 - the last step raises
        for number, _ in enumerate(steps):
            assert number < 100
    assert number < 100


def test_makes_no_messages_before_the_first_one_asked_for() -> None:
    batch = decode_batch(wrapper(many(430_000)), 100)
    made: list[int] = []

    def make(fields: tuple[Any, ...]) -> tuple[Any, ...]:
        made.append(fields[1])
        return fields

    last = len(batch) - 1
    assert list(batch.messages_as(make, first=last)) == [(100, last, batch.next_offset, b"")]
    assert made == [last]


def test_holds_the_sets_that_have_leaves_and_a_note_for_each_piece() -> None:
    leaf = encode_message(b"leaf")
    for inner, sets in (
        (wrapper(leaf), leaf),
        (wrapper(b"") + wrapper(leaf) + wrapper(b""), leaf),
        (leaf + leaf[:-1], leaf + leaf[:-1]),
    ):
        packed, _ = counted(pack_steps(Codec.GZIP, compress(Codec.GZIP, inner), limits=DecodeLimits(max_depth=2)))
        assert list(packed) == [b"leaf"]
        assert packed.memory_bytes == len(sets) + 32
    assert counted(pack_steps(Codec.GZIP, compress(Codec.GZIP, b"")))[0].memory_bytes == 0
    between = leaf + wrapper(b"") + leaf
    packed, _ = counted(pack_steps(Codec.GZIP, compress(Codec.GZIP, between)))
    assert list(packed) == [b"leaf"] * 2
    assert packed.memory_bytes == len(between) + 2 * 32


def test_makes_one_piece_of_messages_of_magic_0_up_to_64_kib() -> None:
    kibibyte = encode_message(bytes(1015), magic=0)
    assert len(kibibyte) == 1 << 10
    packed, _ = counted(pack_steps(Codec.GZIP, compress(Codec.GZIP, kibibyte * 128)))
    assert packed.memory_bytes == (128 << 10) + 2 * 32
    assert packed[64:66] == [bytes(1015)] * 2
    assert packed[127] == bytes(1015)
    assert list(packed) == [bytes(1015)] * 128


def test_reads_any_piece_first() -> None:
    payloads = [b"%1014d" % number for number in range(200)]
    for number in (0, 63, 64, 128, 199):
        packed, _ = counted(pack_steps(Codec.GZIP, compress(Codec.GZIP, encode_message_set(payloads))))
        assert packed[number] == payloads[number]
        assert packed[number - 200] == payloads[number]
        assert packed[number : number + 100] == payloads[number : number + 100]
        for outside in (200, -201):
            with pytest.raises(IndexError, match="there is no such payload"):
                packed[outside]


def test_makes_each_piece_once_while_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    payloads = [b"%1014d" % number for number in range(130)]
    packed, _ = counted(pack_steps(Codec.GZIP, compress(Codec.GZIP, encode_message_set(payloads))))
    walked: list[int] = []
    alone: list[int] = []

    def walk(data: memoryview, position: int, *rest: Any) -> int:
        walked.append(len(data))
        return walk_module.walk(data, position, *rest)

    def read_outer(data: memoryview, position: int, *rest: Any) -> object:
        alone.append(position)
        return outer_module.read_outer(data, position, *rest)

    monkeypatch.setattr(packed_module, "walk", walk)
    monkeypatch.setattr(packed_module, "read_outer", read_outer)
    assert [packed[number] for number in range(130)] == payloads
    assert walked == [1 << 16, 1 << 16, 2 << 10]
    assert alone == [63 << 10, 63 << 10, 1 << 10]
    walked.clear()
    assert packed[0] == payloads[0]
    assert packed[:64] == payloads[:64]
    pieces: list[int] = []
    make = PackedPayloads._piece

    def piece(packed: PackedPayloads, number: int) -> list[bytes]:
        pieces.append(number)
        return make(packed, number)

    monkeypatch.setattr(PackedPayloads, "_piece", piece)
    assert packed[10:100] == payloads[10:100]
    assert pieces == [0, 1]
    assert walked == [1 << 16, 1 << 16]


class Recording(DecompressionAllowance):
    """Notes the work that is counted, and how often a step was due."""

    __slots__ = ("ended", "work")

    def __init__(self) -> None:
        super().__init__(1 << 20, 100)
        self.work: list[int] = []
        self.ended = 0

    def due(self, work: int = 0) -> bool:
        if work:
            self.work.append(work)
        ended = super().due(work)
        self.ended += ended
        return ended


def test_ends_a_step_where_the_work_of_reading_is_due() -> None:
    kibibyte, allowance = encode_message(bytes(1014)), Recording()
    note = PackedPayloads().note
    steps = open_steps(Codec.GZIP, compress(Codec.GZIP, kibibyte * 258), note, allowance, 1)
    yielded = sum(1 for _ in steps)
    assert allowance.work == [work_of(1 << 16, 63)] * 4 + [work_of(2 << 10, 1)]
    assert yielded == allowance.ended > 0


def test_work_counts_bytes_messages_and_the_message_read_by_itself() -> None:
    assert work_of(0, 0) == 1 << 9
    assert work_of(1 << 16, 0) - work_of(0, 0) == 1 << 14
    assert work_of(0, 100) - work_of(0, 0) == 1600


def test_verifies_a_set_in_pieces_of_64_kib(either_codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    verified: list[int] = []

    def verify(data: memoryview, position: int, longest: int, layout: walk_module.MessageReaders) -> tuple[int, int]:
        verified.append(len(data))
        return walk_module.verify(data, position, longest, layout)

    monkeypatch.setattr(packed_module, "verify", verify)
    kibibyte = encode_message(bytes(1014))
    packed, _ = counted(pack_steps(Codec.GZIP, compress(Codec.GZIP, kibibyte * 130)))
    assert len(packed) == 130
    assert verified == [1 << 16, 1 << 16, 2 << 10]
