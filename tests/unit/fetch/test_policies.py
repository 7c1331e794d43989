"""Messages that cannot be had: fail, skip, park; and that the neighbours never notice."""

from __future__ import annotations

import asyncio
import gzip
import time
from typing import Any

import pytest

from consumerd.fetch import BadMessagePolicy, CorruptPartitionError, MessageTooLargeError
from consumerd.partition import TopicPartition
from consumerd.wire.v07 import Codec, OffsetsRequest, encode_message, encode_message_set

pytestmark = pytest.mark.asyncio

T0 = TopicPartition("t", 0, 0)
FAIL, SKIP, PARK = BadMessagePolicy.FAIL, BadMessagePolicy.SKIP, BadMessagePolicy.PARK
BEFORE = encode_message_set([b"before 1", b"before 2"])
AFTER = encode_message_set([b"after 1", b"after 2"])
LARGE = encode_message(b"x" * 5000)


def damaged() -> bytes:
    message = bytearray(encode_message(b"damaged"))
    message[-1] ^= 0xFF
    return bytes(message)


async def test_fails_at_corrupt_message_after_good_ones(rig: Any, scripted_log: Any) -> None:
    async with rig() as r:
        r.broker.logs["t", 0] = scripted_log(0, BEFORE + damaged() + AFTER)
        lane = r.add()
        assert await r.take(lane, 2) == [b"before 1", b"before 2"]
        _, partition, error = await r.listener.first("failed")
        assert partition == T0
        assert isinstance(error, CorruptPartitionError)
        assert error.offset == len(BEFORE) == r.pool.position(T0)
        count = len(r.broker.requests)
        await asyncio.sleep(0.03)
        assert len(r.broker.requests) == count
        assert r.pool.counters.failed == 1


async def test_skips_corrupt_message(rig: Any, scripted_log: Any) -> None:
    async with rig(on_corrupt=SKIP) as r:
        bad = damaged()
        r.broker.logs["t", 0] = scripted_log(0, BEFORE + bad + AFTER)
        lane = r.add()
        assert await r.take(lane, 4) == [b"before 1", b"before 2", b"after 1", b"after 2"]
        _kind, partition, offset, next_offset, _ = await r.listener.first("skipped")
        assert (partition, offset, next_offset) == (T0, len(BEFORE), len(BEFORE) + len(bad))
        assert r.pool.counters.skipped == 1


@pytest.mark.parametrize("policy", [SKIP, PARK])
async def test_parks_corruption_of_unknown_length(rig: Any, scripted_log: Any, policy: BadMessagePolicy) -> None:
    async with rig(on_corrupt=policy) as r:
        r.broker.logs["t", 0] = scripted_log(0, BEFORE + b"\xff" * 200)
        r.broker.logs["t", 1] = scripted_log(0)
        lane, other = r.add(), r.add(number=1)
        assert await r.take(lane, 2) == [b"before 1", b"before 2"]
        _, partition, reason = await r.listener.first("parked")
        assert partition == T0
        assert str(len(BEFORE)) in reason
        assert r.pool.partitions == {T0, TopicPartition("t", 0, 1)}
        r.broker.logs["t", 1].segments[0] += AFTER
        assert await r.take(other, 2) == [b"after 1", b"after 2"]
        r.broker.logs["t", 0] = scripted_log(0, BEFORE + AFTER)
        r.pool.seek(T0, len(BEFORE))  # parking ends by seeking
        assert await r.take(lane, 2) == [b"after 1", b"after 2"]


async def test_fails_at_oversize_message(rig: Any, scripted_log: Any) -> None:
    async with rig(fetch_bytes=1000, poll_bytes=1000, max_fetch_bytes=4000) as r:
        r.broker.logs["t", 0] = scripted_log(0, BEFORE + LARGE + AFTER)
        lane = r.add()
        assert await r.take(lane, 2) == [b"before 1", b"before 2"]
        _, _, error = await r.listener.first("failed")
        assert isinstance(error, MessageTooLargeError)
        assert error.needed == len(LARGE)
        assert "fetch.max_size is 4000" in str(error)


async def test_skips_oversize_message(rig: Any, scripted_log: Any) -> None:
    async with rig(fetch_bytes=1000, poll_bytes=1000, max_fetch_bytes=4000, on_oversize=SKIP) as r:
        r.broker.logs["t", 0] = scripted_log(0, BEFORE + LARGE + AFTER)
        lane = r.add()
        assert await r.take(lane, 4) == [b"before 1", b"before 2", b"after 1", b"after 2"]
        _, _, offset, next_offset, reason = await r.listener.first("skipped")
        assert (offset, next_offset) == (len(BEFORE), len(BEFORE) + len(LARGE))
        assert f"{len(LARGE)} bytes" in reason


async def test_parks_oversize_message(rig: Any, scripted_log: Any) -> None:
    async with rig(fetch_bytes=1000, poll_bytes=1000, max_fetch_bytes=4000, on_oversize=PARK) as r:
        r.broker.logs["t", 0] = scripted_log(0, LARGE + AFTER)
        r.add()
        await r.listener.first("parked")
        assert r.pool.counters.parked == 1
        assert r.pool.position(T0) == 0


async def test_treats_length_beyond_log_as_corruption(rig: Any, scripted_log: Any) -> None:
    """Skipping there would be out of range, and the reset after it would deliver everything again."""
    async with rig(max_fetch_bytes=1 << 20, on_oversize=SKIP, on_corrupt=PARK) as r:
        liar = (50_000_000).to_bytes(4, "big") + b"\1\0" + b"z" * 300
        r.broker.logs["t", 0] = scripted_log(0, BEFORE + liar)
        lane = r.add()
        assert await r.take(lane, 2) == [b"before 1", b"before 2"]
        _, _, reason = await r.listener.first("parked")
        assert "more than the log holds" in reason
        assert not [event for event in r.listener.events if event[0] in ("reset", "skipped")]


async def test_waits_for_rest_of_torn_tail(rig: Any, scripted_log: Any) -> None:
    """Bytes visible before their end: no failure, no tight loop, one look at the end of the log."""
    async with rig(poll_backoff_min=0.005, poll_backoff_max=0.05) as r:
        log = r.broker.logs["t", 0] = scripted_log(0, BEFORE + AFTER[:15])
        lane = r.add()
        assert await r.take(lane, 2) == [b"before 1", b"before 2"]
        began, before = time.monotonic(), len(r.broker.requests)
        await r.until(lambda: len(r.broker.requests) >= before + 8)
        # Each pause is at least half of the shortest back-off, and they grow; fetches that make sure come on top.
        assert time.monotonic() - began > 4 * 0.005 / 2
        assert len(r.broker.fetches(OffsetsRequest)) == 1
        assert r.listener.events == []
        log.segments[0] += AFTER[15:]
        assert await r.take(lane, 2) == [b"after 1", b"after 2"]


@pytest.mark.parametrize("policy", list(BadMessagePolicy))
async def test_treats_torn_end_of_old_segment_as_corruption(
    rig: Any, scripted_log: Any, policy: BadMessagePolicy
) -> None:
    """A fetch never crosses a segment, so no size and no patience gets past it (golden notes, 1 and 3)."""
    async with rig(on_corrupt=policy) as r:
        torn = AFTER[:15]
        r.broker.logs["t", 0] = scripted_log(0, BEFORE + torn, AFTER)
        lane = r.add()
        assert await r.take(lane, 2) == [b"before 1", b"before 2"]
        if policy is SKIP:
            assert await r.take(lane, 2) == [b"after 1", b"after 2"]
            _, _, offset, next_offset, _ = await r.listener.first("skipped")
            assert (offset, next_offset) == (len(BEFORE), len(BEFORE) + len(torn))
        else:
            event = await r.listener.first("failed" if policy is FAIL else "parked")
            assert "cut off after 15 bytes" in str(event[-1])


async def test_continues_after_segment_roll_between_checks(rig: Any, scripted_log: Any) -> None:
    """The tail was completed and a new segment begun while we asked for the end of the log."""
    async with rig() as r:
        log = r.broker.logs["t", 0] = scripted_log(0, BEFORE + AFTER[:15])
        lane = r.add()
        assert await r.take(lane, 2) == [b"before 1", b"before 2"]
        while not r.broker.fetches(OffsetsRequest):
            await asyncio.sleep(0)
        log.segments[0] += AFTER[15:]
        log.segments.append(bytearray(BEFORE))
        assert await r.take(lane, 4) == [b"after 1", b"after 2", b"before 1", b"before 2"]
        assert r.listener.events == []


async def test_skipped_messages_move_position_at_end_of_log(rig: Any, scripted_log: Any) -> None:
    """Empty wrapper, skipped message, reset: each leaves a batch without messages, so that a commit gets past it."""
    async with rig(on_corrupt=SKIP) as r:
        wrapper, bad = encode_message(gzip.compress(b""), codec=Codec.GZIP), damaged()
        end = 100 + len(wrapper) + len(bad)
        r.broker.logs["t", 0] = scripted_log(100, wrapper + bad)
        lane = r.add(offset=30)
        got: list[Any] = []
        async with asyncio.timeout(60):
            while not got or got[-1].next_offset < end:
                got.append(await lane.get())
                lane.finished(got[-1])
        assert [(batch.start_offset, batch.next_offset, len(batch)) for batch in got] == [
            (30, 100, 0),
            (100, 100 + len(wrapper), 0),
            (100 + len(wrapper), end, 0),
        ]


async def test_puts_backward_reset_in_lane(rig: Any, scripted_log: Any) -> None:
    async with rig() as r:
        r.broker.logs["t", 0] = scripted_log(0, BEFORE)
        lane = r.add(offset=9999)
        async with asyncio.timeout(60):
            first, second = await lane.get(), await lane.get()
        assert (first.start_offset, first.next_offset, len(first)) == (0, 0, 0)
        assert (second.start_offset, second.next_offset, len(second)) == (0, len(BEFORE), 2)
