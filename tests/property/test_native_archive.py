"""Both codecs read the same messages and flaws in a segment, and make the same rows for Spark of them."""

from __future__ import annotations

import io
import random
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumerd.base import native
from consumerd.base.errors import ConsumerdError
from consumerd.spark.source.columns import ParseMode
from consumerd.storage.archives.findings import SegmentSummary
from consumerd.storage.log import archive as reading
from consumerd.storage.log.archive import read_indexed, read_runs
from consumerd.storage.log.archive_items import ArchivedRun, Flaw, IndexedMessages
from consumerd.wire.v07 import Codec, MessageBatch, MessageLeaf, encode_message, encode_message_set, walk
from consumerd.wire.v07.batch import MessageRun
from tests.fuzz.mangling import mangled
from tests.property.test_spark_splits import LIMITS, NAMES, PLAIN, WRAPPED, listed, read

pytestmark = pytest.mark.usefixtures("native_codec")

START = 1000
MESSAGES = st.lists(st.one_of(PLAIN, WRAPPED), min_size=1, max_size=10)
SEEDS = st.integers(0, 1 << 32)


def taken_apart(found: Iterable[ArchivedRun | IndexedMessages | Flaw]) -> list[MessageLeaf | Flaw]:
    """Messages with their identities, so that it does not show how they were cut."""
    rows: list[MessageLeaf | Flaw] = []
    end = START
    for item in found:
        assert item.offset == end
        end = item.next_offset
        if isinstance(item, Flaw):
            rows.append(item)
            continue
        if isinstance(item, IndexedMessages):
            runs = [MessageRun(first, item.offset + at, overhead) for first, at, overhead in item.payloads.runs]
        else:
            runs = [MessageRun(0, item.offset, 0 if item.codec else 9 + item.magic)]
        sizes = item.payloads.payload_bytes if isinstance(item, IndexedMessages) else 0
        rows += MessageBatch(item.payloads, runs, item.offset, item.next_offset, sizes).messages()
    return rows


@settings(max_examples=40, deadline=None)
@given(messages=MESSAGES, seed=SEEDS, window=st.sampled_from([7, 100, 1 << 20]), resync=st.booleans())
def test_indexed_messages_and_flaws_are_those_of_the_pure_codec(
    messages: list[bytes], seed: int, window: int, resync: bool
) -> None:
    rng = random.Random(seed)
    whole = b"".join(messages)
    data = mangled(rng, whole, [whole]) if rng.random() < 0.7 else whole
    stop = START + rng.randrange(len(data) + 1) if rng.random() < 0.3 else None
    options: dict[str, Any] = {"limits": LIMITS, "window": window, "resync": resync, "stop": stop}
    expected = taken_apart(read_runs(io.BytesIO(data), START, **options))
    with native.using(None):
        assert taken_apart(read_indexed(io.BytesIO(data), START, **options)) == expected
    found = taken_apart(read_indexed(io.BytesIO(data), START, **options))
    if stop is not None:  # the pure codec may read beyond it
        found, expected = ([row for row in rows if row.offset < stop] for rows in (found, expected))
    assert found == expected


def test_native_codec_takes_what_is_intact() -> None:
    good = encode_message_set([b"one", b"two"]) + encode_message_set([b"three"], codec=Codec.GZIP)
    bad = encode_message(b"four")[:-1] + b"x"
    found = list(read_indexed(io.BytesIO(good + bad + good), START))
    assert [type(item) for item in found] == [IndexedMessages, Flaw, IndexedMessages]


def test_wrappers_within_the_budget_are_those_of_the_pure_codec(monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment may be decompressed to a multiple of its size; the native codec stops well before that."""
    monkeypatch.setattr(reading, "FREE_EXPANSION", 20 << 20)
    bomb = encode_message_set([bytes(900_000)] * 4, codec=Codec.GZIP)
    data = bomb * 8 + encode_message(b"last")
    expected = taken_apart(read_runs(io.BytesIO(data), START, expansion=20))
    assert sum(isinstance(row, Flaw) for row in expected) == 3
    assert taken_apart(read_indexed(io.BytesIO(data), START, expansion=20)) == expected


@settings(max_examples=25, deadline=None)
@given(messages=MESSAGES, seed=SEEDS)
def test_summary_of_a_segment_is_that_of_the_pure_codec(messages: list[bytes], seed: int) -> None:
    rng = random.Random(seed)
    whole = b"".join(messages)
    data = mangled(rng, whole, [whole]) if rng.random() < 0.7 else whole
    summaries: list[SegmentSummary] = []
    for codec in (None, native.codec()):
        summary = SegmentSummary("source", "stamp", "events-0", START)
        with native.using(codec):
            for item in read_indexed(io.BytesIO(data), START, resync=True):
                summary.see(item)
        summaries.append(summary)
    assert summaries[0] == summaries[1]


@settings(max_examples=25, deadline=None)
@given(messages=MESSAGES, seed=SEEDS, magic=st.sampled_from([0, 1]), longest=st.sampled_from([0, 10, 1 << 20]))
def test_checked_messages_are_those_of_the_pure_codec(
    messages: list[bytes], seed: int, magic: int, longest: int
) -> None:
    rng = random.Random(seed)
    whole = b"".join(messages) * 3
    data = mangled(rng, whole, [whole]) if rng.random() < 0.7 else whole
    position = rng.choice([0, len(messages[0]), rng.randrange(len(data) + 2)])
    with native.using(None):
        expected = walk.verify(data, position, longest, walk.LAYOUTS[magic])
    assert walk.verify(data, position, longest, walk.LAYOUTS[magic]) == expected
    assert walk.verify(memoryview(data), position, longest, walk.LAYOUTS[magic]) == expected


@settings(max_examples=25, deadline=None)
@given(messages=MESSAGES, seed=SEEDS, mode=st.sampled_from(list(ParseMode)))
def test_rows_of_a_split_are_those_of_the_pure_codec(messages: list[bytes], seed: int, mode: ParseMode) -> None:
    rng = random.Random(seed)
    whole = b"".join(messages)
    data = mangled(rng, whole, [whole]) if rng.random() < 0.7 else whole
    end = rng.randrange(len(data) + 1) if rng.random() < 0.3 else len(data)
    names = [name for name in NAMES if mode is ParseMode.PERMISSIVE or name != "_corrupt"]
    outcomes: list[object] = []
    for codec in (None, native.codec()):
        with native.using(codec):
            try:
                outcomes.append(listed(read(data, 0, 0, end, names, mode=mode)))
            except ConsumerdError as error:
                outcomes.append((type(error), str(error)))
    assert outcomes[0] == outcomes[1]
