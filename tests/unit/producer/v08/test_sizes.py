"""How many messages of a list fit: the same in both codecs."""

from __future__ import annotations

import random
from typing import Any

import pytest

from consumerd.base import native
from consumerd.base.native import NativeCodec
from consumerd.producer.v08.sizes import NativeSizes, sizes_of

LISTS: list[list[Any]] = [
    [b""],
    [None],
    [b"1234", None, b"x" * 300],
    [b"x"] * 50,
    [bytearray(b"12"), b"3"],
    ["abc", b"d", None],
]


@pytest.mark.usefixtures("either_codec")
@pytest.mark.parametrize("values", LISTS)
def test_counts_and_cuts_as_one_by_one(values: list[Any]) -> None:
    for beside in (1, 36):
        each = [beside + len(value or b"") for value in values]
        found = sizes_of(values, beside)
        assert (found.total, found.largest) == (sum(each), max(each))
        for first in range(len(values) + 1):
            for size in range(-40, sum(each) + 2):
                stop, used = found.fitting(first, size)
                assert used == sum(each[first:stop])
                assert used <= max(0, size)
                assert stop == len(values) or used + each[stop] > size


def test_native_codec_counts_lists_of_bytes_itself(native_codec: NativeCodec) -> None:
    rng = random.Random(2)
    values: list[Any] = [rng.choice([None, bytes(rng.randrange(100))]) for _ in range(500)]
    lengths = [len(value or b"") for value in values]
    assert native_codec.value_sizes(values) == (sum(lengths), max(lengths))
    with native.using(native_codec):  # tests of the pure codec may run just before, in another order
        assert isinstance(sizes_of(values, 36), NativeSizes)
    assert native_codec.fitting_values(values, 600, 100, 36) == (600, 0)
    for other in (tuple(values), [*values, "text"], [*values, bytearray(b"x")], b"bytes"):
        assert native_codec.value_sizes(other) is None
