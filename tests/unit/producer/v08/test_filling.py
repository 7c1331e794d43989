"""The common case of sending, in both codecs: the same messages, room and refusals."""

from __future__ import annotations

import random
import time
from types import SimpleNamespace
from typing import Any

import pytest

from consumerd.base import native
from consumerd.producer.v08.batches import OVERHEAD, PureFilling, new_filling


def filling(chosen: native.NativeCodec | None, wall: Any = time.time) -> tuple[Any, SimpleNamespace]:
    batch = SimpleNamespace(values=[b"before"], timestamps=[1], outcome=SimpleNamespace(done=lambda: True))
    with native.using(chosen):
        made: Any = new_filling(batch, wall)  # type: ignore[arg-type]
    return made, batch


def test_both_codecs_take_and_refuse_the_same(native_codec: native.NativeCodec) -> None:
    rng = random.Random(13)
    times = iter(range(10_000))
    sides = [filling(chosen, lambda: 2.5) for chosen in (None, native_codec)]
    assert isinstance(sides[0][0], PureFilling)
    assert not isinstance(sides[1][0], PureFilling)
    for _ in range(3000):
        step = rng.randrange(12)
        if step == 0:
            room = rng.randrange(2000)
            for made, _batch in sides:
                made.room = room
        elif step == 1:
            for _made, batch in sides:
                batch.values.append(None)
                batch.timestamps.append(0)
        else:
            value = rng.choice([None, b"", bytes(rng.randrange(200))])
            timestamp = rng.choice([None, next(times), -1, 1 << 70])
            found = [made.add(value, timestamp) for made, _batch in sides]
            assert (found[0] is None) == (found[1] is None)
            if found[0] is not None:
                assert found[0].number == found[1].number == len(sides[0][1].values) - 1
                assert all(delivery.done for delivery in found)
                assert [delivery.batch for delivery in found] == [batch for _, batch in sides]
        assert sides[0][0].room == sides[1][0].room
    assert len(sides[0][1].values) > 500
    assert sides[0][1].values == sides[1][1].values
    assert sides[0][1].timestamps == sides[1][1].timestamps


@pytest.mark.usefixtures("either_codec")
def test_takes_exactly_the_room_that_it_has() -> None:
    made, batch = filling(native.codec())
    assert made.add(b"", None) is None
    made.room = 2 * OVERHEAD + 3
    assert made.add(b"1234", None) is not None
    assert made.add(b"", None) is None
    assert made.room == OVERHEAD - 1
    assert batch.values == [b"before", b"1234"]


def test_native_codec_leaves_what_is_not_bytes_to_the_producer(native_codec: native.NativeCodec) -> None:
    made, batch = filling(native_codec)
    made.room = 1 << 20
    for value in ("text", bytearray(b"x"), memoryview(b"x"), 5, [b"x"]):
        assert made.add(value, None) is None
    assert made.room == 1 << 20
    assert len(batch.values) == 1


@pytest.mark.usefixtures("either_codec")
def test_an_error_of_the_clock_adds_nothing() -> None:
    def broken() -> float:
        raise OSError("no time")

    made, batch = filling(native.codec(), broken)
    made.room = 1000
    with pytest.raises(OSError, match="no time"):
        made.add(b"x", None)
    assert len(batch.values) == len(batch.timestamps) == 1
    assert made.room == 1000
