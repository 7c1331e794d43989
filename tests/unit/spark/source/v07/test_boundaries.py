"""Boundaries inside segments, near and far from a known one, against the messages that were written."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate

import pytest

from consumerd.spark.source.v07.boundaries import Boundaries, MessageSpan
from consumerd.wire.v07 import Codec, encode_message, encode_message_set

BASE = 5_000
#: Small enough that a segment of some kilobytes is far too large to be followed.
FAR = {"reach": 3000, "look": 400}
SHORT = [b"%04d" % number for number in range(90)]


class Log:
    """Outer messages in a row from offset BASE on, and the bytes that were fetched of them."""

    def __init__(self, messages: Iterable[bytes]) -> None:
        pieces = list(messages)
        self.data = b"".join(pieces)
        self.bounds = list(accumulate(map(len, pieces), initial=BASE))
        self.end = self.bounds[-1]
        self.fetched = 0

    def fetch(self, offset: int, size: int) -> bytes:
        data = self.data[offset - BASE : offset - BASE + min(size, 5000)]
        self.fetched += len(data)
        return data

    def boundaries(self, **sizes: int) -> Boundaries:
        return Boundaries(self.fetch, BASE + len(self.data), max_payload=1 << 20, **sizes)

    def holding(self, offset: int) -> MessageSpan:
        """The truth."""
        at = bisect_right(self.bounds, offset) - 1
        return (
            MessageSpan(offset, offset)
            if self.bounds[at] == offset
            else MessageSpan(self.bounds[at], self.bounds[at + 1])
        )


def mixed(seed: int, size: int = 12_000) -> list[bytes]:
    rng = random.Random(seed)
    found: list[bytes] = []
    while sum(map(len, found)) < size:
        kind = rng.randrange(5)
        if kind == 0:
            found.append(encode_message_set(rng.choices(SHORT, k=60), codec=Codec.SNAPPY))
        elif kind == 1:
            found.append(encode_message_set([rng.randbytes(40)] * 9, codec=Codec.GZIP))
        elif kind == 2:
            inner = b"".join(encode_message(rng.choice(SHORT)) for _ in range(50))
            found.append(encode_message(rng.randbytes(rng.randrange(300)) + inner))  # a recorded log
        else:
            found.append(encode_message(rng.randbytes(rng.randrange(400)), magic=rng.randrange(2)))
    return found


@pytest.mark.parametrize("seed", range(8))
def test_finds_true_boundaries_near_and_far(seed: int) -> None:
    log = Log(mixed(seed))
    near, far = log.boundaries(), log.boundaries(**FAR)
    known = 0
    for offset in range(BASE + 1, log.end, 17):
        truth = log.holding(offset)
        assert near.around(BASE, offset) == truth
        found = far.around(BASE, offset)
        if found is not None:
            known += 1
            assert found.end in log.bounds
            assert found == truth if found.start is not None else found.end >= truth.end
    assert known > len(log.data) / 17 * 0.95


def test_reads_few_bytes_far_from_a_boundary() -> None:
    rng = random.Random(1)
    log = Log(encode_message(rng.randbytes(120)) for _ in range(20_000))
    offset = log.bounds[15_000] + 3
    assert log.boundaries(**FAR).around(BASE, offset) == log.holding(offset)
    assert log.fetched < 40_000


def test_a_message_inside_a_compressed_one_is_not_a_boundary() -> None:
    wrapper = encode_message_set(SHORT, codec=Codec.SNAPPY)
    inside = wrapper.index(encode_message(SHORT[0])[:-2])  # not compressed, as that saves nothing
    log = Log([*mixed(1, 8000), wrapper, *mixed(2, 4000)])
    offset = BASE + log.data.index(wrapper) + inside
    found = log.boundaries(**FAR).around(BASE, offset)
    assert found is not None
    assert found.end == log.holding(offset).end


def test_a_larger_reach_finds_a_message_that_encloses_a_chain() -> None:
    hidden = encode_message(b"".join(encode_message(text) for text in SHORT * 6))
    assert len(hidden) > FAR["reach"] * 2
    log = Log([*mixed(3, 8000), hidden, *mixed(4, 4000)])
    offset = BASE + log.data.index(hidden) + len(hidden) - 900
    truth = log.holding(offset)
    assert log.boundaries(**FAR).around(BASE, offset) != truth
    found = log.boundaries(reach=len(hidden), look=400).around(BASE, offset)
    assert found is not None
    assert found.end == truth.end


def test_returns_nothing_where_there_is_no_message() -> None:
    log = Log([*mixed(1, 4000), b"\xff" * 9000, *mixed(2, 2000)])
    nonsense = BASE + log.data.index(b"\xff" * 9000)
    for sizes in ({}, FAR):
        assert log.boundaries(**sizes).around(BASE, nonsense + 4500) is None
    zeros = Log([encode_message(bytes(200_000)), *mixed(2, 2000)])
    assert zeros.boundaries(**FAR).around(BASE, BASE + 150_000) is None


def test_a_wrong_crc_ends_the_search_unless_lengths_are_trusted() -> None:
    bad = encode_message(b"x" * 50)[:-1] + b"y"
    log = Log([encode_message(b"one"), bad, encode_message(b"two")])
    assert log.boundaries().around(BASE, log.bounds[1]) == MessageSpan(log.bounds[1], log.bounds[1])
    assert log.boundaries().around(BASE, log.bounds[2]) is None
    assert log.boundaries().around(BASE, log.bounds[2], thorough=True) == MessageSpan(log.bounds[2], log.bounds[2])


def test_reads_everything_where_correctness_requires_it() -> None:
    log = Log([*mixed(1, 4000), encode_message(bytes(9000)), *mixed(2, 4000)])
    inside = log.bounds[log.bounds.index(BASE + log.data.index(bytes(9000)) - 10)] + 8000
    assert log.boundaries(**FAR).around(BASE, inside) is None
    assert log.boundaries(**FAR).around(BASE, inside, thorough=True) == log.holding(inside)


@pytest.mark.parametrize("sizes", [{}, FAR])
def test_log_ends_at_the_last_whole_message(sizes: dict[str, int]) -> None:
    whole = Log(mixed(5))
    last, end = whole.bounds[-2:]
    assert whole.boundaries(**sizes).last(BASE) == end
    for cut in (1, 3, (end - last) // 2, end - last - 1):
        torn = Log(mixed(5))
        torn.data = torn.data[:-cut]
        assert torn.boundaries(**sizes).last(BASE) == last
    nonsense = Log([*mixed(5), b"\xff" * 30])
    assert nonsense.boundaries(**sizes).last(BASE) == nonsense.end, "somebody has to read and report it"


def test_a_truncated_segment_ends_at_its_new_size() -> None:
    log = Log(mixed(6))
    look = Boundaries(log.fetch, log.end, max_payload=1 << 20)
    log.data = log.data[: log.bounds[3] - BASE + 2]
    assert look.last(BASE) == log.bounds[3]
    assert look.around(BASE, log.bounds[5]) is None
