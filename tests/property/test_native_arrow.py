"""Both codecs give the same Arrow columns, byte for byte, and these have what the messages say."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumerd.base import native
from consumerd.base.partition import TopicPartition
from consumerd.handlers import Batch, Content
from consumerd.handlers.arrow_columns import count_within
from consumerd.handlers.batching import join, joinable
from consumerd.wire.v07 import decode_batch
from consumerd.wire.v08.records import decode_records
from tests.fuzz.mangling import mangled
from tests.property.test_native_records import joined as joined_records
from tests.property.test_records import Made as MadeRecords
from tests.property.test_records import fetches
from tests.property.test_wire_messages import ROWS, Made, joined
from tests.support.arrow import columns_of, expected_columns

pytestmark = pytest.mark.usefixtures("native_codec")

V07, V08 = TopicPartition("t", 3, 7), TopicPartition.numbered("t", 7)
SEEDS = st.integers(0, 1 << 32)


def same_columns(
    codec: native.NativeCodec, place: TopicPartition, decode: Callable[[], list[Content]], seed: int
) -> None:
    """The columns of a batch, and of parts of it, by both codecs and with offsets of both widths."""
    made: list[Batch] = []
    for chosen in (None, codec):
        with native.using(chosen):
            contents = decode()
            if len(contents) > 1 and not joinable(*contents):
                return
            made.append(Batch(place, join(contents)))
    pure, ours = made
    rng, length = random.Random(seed), len(ours)
    cuts = [(0, length), (0, 0), (length, length)]
    for _ in range(2):
        first, stop = sorted((rng.randint(0, length), rng.randint(0, length)))
        cuts.append((first, stop))
        limits = (rng.randint(1, 9), rng.randint(0, 60))
        if first < length:
            assert count_within(ours.sources(first), *limits) == count_within(pure.sources(first), *limits)
    for number, (first, stop) in enumerate(cuts):
        parts = [batch.part(first, stop - first) for batch in made]
        large = number % 2 == 1
        one, other = (part.to_arrow(large=large) for part in parts)
        assert other.equals(one, check_metadata=True)
        assert other.serialize().equals(one.serialize())
        assert columns_of(other) == expected_columns(parts[0])
        assert len(other) == stop - first


@settings(max_examples=15)
@given(ROWS, st.binary(max_size=40), st.integers(0, 1 << 61), SEEDS)
def test_of_messages_of_07(
    native_codec: native.NativeCodec, made: list[Made], tail: bytes, offset: int, seed: int
) -> None:
    data = joined(made) + tail
    same_columns(native_codec, V07, lambda: [decode_batch(data, offset)], seed)


@settings(max_examples=12)
@given(fetches(), st.integers(0, 40), SEEDS)
def test_of_records(
    native_codec: native.NativeCodec, fetch: tuple[int, list[MadeRecords]], skipped: int, seed: int
) -> None:
    start, made = fetch
    data = joined_records(made)
    same_columns(native_codec, V08, lambda: [decode_records(data, start + skipped)], seed)


@settings(max_examples=6)
@given(ROWS.filter(bool), fetches(), SEEDS)
def test_of_mangled_data_which_the_pure_codec_decides_about(
    native_codec: native.NativeCodec, made: list[Made], fetch: tuple[int, list[MadeRecords]], seed: int
) -> None:
    data, (start, records) = joined(made), fetch
    bad = mangled(random.Random(seed), data, [data])
    same_columns(native_codec, V07, lambda: [decode_batch(bad, 5)], seed)
    pieces = joined_records(records)
    worse = mangled(random.Random(seed), pieces, [pieces])
    same_columns(native_codec, V08, lambda: [decode_records(worse, start)], seed)


@settings(max_examples=8)
@given(ROWS, ROWS, SEEDS)
def test_of_joined_batches(native_codec: native.NativeCodec, before: list[Made], after: list[Made], seed: int) -> None:
    one, two = joined(before), joined(after)
    same_columns(native_codec, V07, lambda: [decode_batch(one, 0), decode_batch(two, len(one))], seed)
