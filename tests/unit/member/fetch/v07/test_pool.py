"""Fetching end to end against a broker that speaks real frames."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from consumerd.base.partition import TopicPartition
from consumerd.base.settings.processing import LogChangePolicy
from consumerd.member.fetch.errors import BrokerUnknownError, CorruptPartitionError
from consumerd.member.fetch.log_changes import LogChangeKind
from consumerd.net.errors import ConnectionClosedError
from consumerd.wire import compress
from consumerd.wire.v07 import (
    EARLIEST,
    LATEST,
    Codec,
    ErrorCode,
    FetchRequest,
    FetchResponse,
    MultiFetchRequest,
    OffsetsRequest,
    encode_message,
    encode_message_set,
    iter_outer,
)

T0 = TopicPartition("t", 0, 0)


async def test_delivers_messages_once_and_in_order(rig: Any, scripted_log: Any, numbered: Any) -> None:
    payloads = numbered(range(1000))
    async with rig(size=1000, poll_bytes=500) as r:
        r.broker.logs["t", 0] = scripted_log(0, encode_message_set(payloads))
        lane = r.add()
        assert await r.take(lane, 1000) == payloads
        assert r.pool.position(T0) == r.broker.logs["t", 0].end
        assert r.pool.counters.messages == 1000
        assert r.broker.connections == 1


async def test_fetches_while_handler_works(rig: Any, scripted_log: Any, numbered: Any) -> None:
    async with rig(size=1000, poll_bytes=1000) as r:
        r.broker.logs["t", 0] = scripted_log(0, encode_message_set(numbered(range(500))))
        lane = r.add(max_batches=3)
        await lane.get()
        while len(lane) < 3:  # nothing was finished, and yet the lane fills
            await asyncio.sleep(0.001)
        before = len(r.broker.requests)
        await asyncio.sleep(0.05)
        assert len(r.broker.requests) == before  # full: the fetcher waits
        assert len(lane) == 3


async def test_polls_idle_partitions_together(rig: Any, scripted_log: Any, numbered: Any) -> None:
    async with rig() as r:
        lanes = [r.add(number=number) for number in range(20)]
        await r.until(lambda: len(r.broker.fetches(MultiFetchRequest)) >= 10)
        assert len(r.broker.fetches(FetchRequest)) == 20  # each was asked alone once
        assert max(len(request.fetches) for request in r.broker.fetches(MultiFetchRequest)) == 20
        assert len(r.broker.fetches(MultiFetchRequest)[-1].fetches) == 20  # they fell into step
        r.broker.logs["t", 7] = scripted_log(0, encode_message_set(numbered(range(3))))
        assert await r.take(lanes[7], 3) == numbered(range(3))
        assert r.pool.counters.errors.total() == 0


async def test_grows_fetch_when_length_is_cut_off(rig: Any, scripted_log: Any) -> None:
    async with rig(size=2, poll_bytes=1, max_size=1000) as r:
        r.broker.logs["t", 0] = scripted_log(0, encode_message(b"payload"))
        assert await r.take(r.add(), 1) == [b"payload"]
        assert [request.max_size for request in r.broker.fetches()][:3] == [2, 4, 17]


@pytest.mark.parametrize("end", ["earliest", "latest"])
async def test_resets_offset_out_of_range(rig: Any, scripted_log: Any, numbered: Any, end: str) -> None:
    async with rig(out_of_range=end) as r:
        log = r.broker.logs["t", 0] = scripted_log(1000, encode_message_set(numbered(range(3))))
        lane = r.add(offset=5)
        assert await r.listener.first("reset") == ("reset", T0, 5, log.base if end == "earliest" else log.end)
        if end == "latest":
            log.segments[0] += encode_message_set(numbered([9]))
            assert await r.take(lane, 1) == numbered([9])
        else:
            assert await r.take(lane, 3) == numbered(range(3))
        assert r.pool.counters.resets == 1
        assert r.pool.counters.errors == {ErrorCode.OFFSET_OUT_OF_RANGE: 1}
        assert len(r.broker.fetches(OffsetsRequest)) == 1


async def test_fails_on_offset_out_of_range_by_policy(rig: Any, scripted_log: Any) -> None:
    async with rig(out_of_range="fail") as r:
        r.broker.logs["t", 0] = scripted_log(1000)
        r.add(offset=5)
        _, partition, error = await r.listener.first("failed")
        assert partition == T0
        assert "no offset 5" in str(error)
        assert r.pool.partitions == {T0}  # still owned: the listener decides


MIXED = encode_message_set([b"a" * 40, b"b" * 3]) + encode_message_set([b"c" * 90, b""], codec=Codec.GZIP)


async def test_reads_the_log_from_its_beginning_when_the_offset_lies_inside_a_message(
    rig: Any, scripted_log: Any, numbered: Any
) -> None:
    """A rebuilt broker, a reused id or an edited node: whatever is found there, it is found once."""
    payloads = numbered(range(3))
    data = MIXED + encode_message_set(payloads)
    boundaries = {message.offset for message in iter_outer(data, 0)} | {len(data)}
    wrong = [offset for offset in range(len(data)) if offset not in boundaries]
    async with rig() as r:
        for number, offset in enumerate(wrong):
            r.broker.logs["t", number] = scripted_log(0, data)
            lane = r.add(number=number, offset=offset)
            assert (await r.take(lane, 7))[-3:] == payloads, offset
        changes = {event[1].partition: event[2:] for event in r.listener.events}
        assert len(r.listener.events) == len(changes) == len(wrong)
        for number, offset in enumerate(wrong):
            change, new = changes[number]
            begins = max(boundary for boundary in boundaries if boundary < offset)
            assert f"offset {offset} lies inside a message that begins at {begins}" in str(change)
            assert (change.kind, change.offset, new) == (LogChangeKind.REPLACED, offset, 0)
        assert r.pool.counters.replaced_logs == len(wrong)


@pytest.mark.parametrize("policy", ["stop", "park"])
async def test_stops_or_parks_when_the_offset_lies_inside_a_message(
    rig: Any, scripted_log: Any, policy: LogChangePolicy
) -> None:
    async with rig(log_changed=policy) as r:
        r.broker.logs["t", 0] = scripted_log(0, MIXED)
        r.add(offset=20)
        if policy == "stop":
            _, partition, error = await r.listener.first("failed")
            assert str(error) == (
                "the log of t/0-0 is another one than that of the position: offset 20 lies inside a message that begins"
                " at 0; set the group's offset to one of the present log, or set fetch.log_changed to continue"
            )
        else:
            _, partition, reason = await r.listener.first("parked")
            assert "its log is another one" in reason
        assert partition == T0


async def test_damage_at_a_boundary_is_not_another_log(rig: Any, scripted_log: Any) -> None:
    async with rig() as r:
        good = encode_message(b"good")
        r.broker.logs["t", 0] = scripted_log(0, good + good[:-1] + b"?" + good)
        r.add(offset=len(good))
        _, _, error = await r.listener.first("failed")
        assert isinstance(error, CorruptPartitionError)
        assert [event[0] for event in r.listener.events] == ["failed"]


async def test_damage_before_an_offset_leaves_the_offset_in_force(rig: Any, scripted_log: Any) -> None:
    """Where messages begin behind the damage is unknown, so what stands at the offset decides."""
    async with rig() as r:
        good = encode_message(b"good")
        r.broker.logs["t", 0] = scripted_log(0, b"\xff" * 40 + good[:-1] + b"?")
        r.add(offset=40)
        _, _, error = await r.listener.first("failed")
        assert isinstance(error, CorruptPartitionError)


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN, ErrorCode.WRONG_PARTITION])
async def test_backs_off_after_refused_fetch(rig: Any, scripted_log: Any, numbered: Any, code: Any) -> None:
    async with rig(retry_backoff_min=0.01, retry_backoff_max=0.05, poll_backoff_min=0.001) as r:
        r.broker.logs["t", 0] = scripted_log(0, encode_message_set(numbered([1])))
        r.broker.logs["t", 1] = scripted_log(0, encode_message_set(numbered(range(5))))
        r.broker.on_fetch = lambda request: FetchResponse(code, b"") if request.partition == 0 else None
        bad, good = r.add(number=0), r.add(number=1)
        assert await r.take(good, 5) == numbered(range(5))
        await r.until(lambda: r.pool.counters.errors[code] >= 4)
        assert sum(sleep >= 0.005 for sleep in r.clock.sleeps) >= 3
        assert r.broker.connections == 1
        r.broker.on_fetch = lambda request: None
        assert await r.take(bad, 1) == numbered([1])


async def test_finds_broker_at_new_address(rig: Any, scripted_log: Any, numbered: Any) -> None:
    async with rig(size=500, poll_bytes=500) as r:
        r.broker.logs["t", 0] = scripted_log(0, encode_message_set(numbered(range(10))))
        lane = r.add()
        assert await r.take(lane, 10) == numbered(range(10))
        await r.broker.stop()
        r.addresses.clear()
        await r.broker.start()
        r.broker.logs["t", 0].segments[0] += encode_message_set(numbered([10]))
        await asyncio.sleep(0.03)
        assert len(lane) == 0
        r.addresses[0] = ("127.0.0.1", r.broker.port)
        assert await r.take(lane, 1) == numbered([10])


async def test_follows_moved_broker_while_old_address_serves(rig: Any, scripted_log: Any, numbered: Any) -> None:
    async with rig() as r:
        r.broker.logs["t", 0] = scripted_log(0)
        lane = r.add()
        await r.until(lambda: bool(r.broker.requests))
        other = type(r.broker)()
        await other.start()
        other.logs["t", 0] = scripted_log(0, encode_message_set(numbered([1])))
        r.addresses[0] = ("127.0.0.1", other.port)
        assert await r.take(lane, 1) == numbered([1])
        await r.pool.remove(T0)
        await other.stop()


async def test_aborts_fetch_at_old_address_when_broker_moves(rig: Any, scripted_log: Any, numbered: Any) -> None:
    async with rig(request_timeout=3600.0) as r:
        r.broker.on_fetch = lambda request: "silence"
        lane = r.add()
        await r.until(lambda: bool(r.broker.fetches()))
        other = type(r.broker)()
        await other.start()
        other.logs["t", 0] = scripted_log(0, encode_message_set(numbered([1])))
        r.move(0, other.port)
        assert await r.take(lane, 1) == numbered([1])
        await r.pool.remove(T0)
        await other.stop()


async def test_backs_off_when_broker_closes_connections(rig: Any) -> None:
    async with rig(retry_backoff_min=0.01, retry_backoff_max=0.1) as r:
        r.broker.on_fetch = lambda request: "close"
        r.add()
        await r.until(lambda: r.broker.connections >= 7)
        assert len(r.clock.sleeps) >= 5
        assert max(r.clock.sleeps) > 0.04


async def test_recovered_partition_uses_common_connection(rig: Any, scripted_log: Any, numbered: Any) -> None:
    async with rig(size=1000, poll_bytes=1000) as r:
        payloads = numbered(range(3000))
        hang_ups = 3

        def hang_up(request: Any) -> Any:
            nonlocal hang_ups
            hang_ups -= 1
            return "close" if hang_ups >= 0 else None

        r.broker.on_fetch = hang_up
        r.broker.logs["t", 0] = scripted_log(0, encode_message_set(payloads))
        assert await r.take(r.add(), 3000) == payloads
        assert len(r.broker.fetches()) > 20
        # The first that was closed and its successor, one for each attempt alone, and the one that worked.
        assert r.broker.connections <= 6


async def test_resets_backoff_after_response(rig: Any, scripted_log: Any, numbered: Any) -> None:
    """The back-off of an outage is reset once the broker has answered."""
    async with rig(retry_backoff_min=0.002, retry_backoff_max=0.256) as r:
        lane = r.add()
        port = r.broker.port
        await r.broker.stop()
        await r.until(lambda: max(r.clock.sleeps, default=0.0) > 0.05)
        r.broker.logs["t", 0] = log = scripted_log(0, encode_message_set(numbered([1])))
        await r.broker.start(port)
        assert await r.take(lane, 1) == numbered([1])
        await r.until(lambda: r.pool.position(T0) == log.end)
        link = r.brokers._brokers[0].link
        assert link._backoff.next() <= 0.004


async def test_isolates_partition_whose_fetch_hangs(rig: Any, scripted_log: Any, numbered: Any) -> None:
    """The broker never answers for one partition. It stops the others once; then it waits on its own connection."""
    payloads = numbered(range(3000))
    async with rig(size=1000, poll_bytes=1000, request_timeout=0.2) as r:
        r.broker.on_fetch = lambda request: "silence" if request.partition == 0 else None
        r.broker.logs["t", 0] = scripted_log(0, encode_message_set(numbered([7])))
        r.broker.logs["t", 1] = scripted_log(0, encode_message_set(payloads))
        hanging, lane = r.add(number=0), r.add(number=1)
        assert await r.take(lane, 3000) == payloads
        before = r.pool.counters.disconnects
        await r.until(lambda: len([1 for fetch in r.broker.fetches() if fetch.partition == 0]) >= 4)
        assert r.pool.counters.disconnects == before == 1
        r.broker.on_fetch = lambda request: None
        assert await r.take(hanging, 1) == numbered([7])


async def test_isolates_partition_that_spoils_poll(rig: Any, scripted_log: Any, numbered: Any) -> None:
    """A poisoned idle partition spoils the common poll; alone again, the others get through."""
    async with rig() as r:
        lanes = [r.add(number=number) for number in range(4)]
        await r.until(lambda: bool(r.broker.fetches(MultiFetchRequest)))
        r.broker.on_fetch = lambda request: b"\0\0\0\x03\0\0\0" if request.partition == 0 else None
        for number in range(1, 4):
            r.broker.logs["t", number] = scripted_log(0, encode_message_set(numbered(range(number))))
        for number in range(1, 4):
            assert await r.take(lanes[number], number) == numbered(range(number))


async def test_removing_stops_fetching_at_once(rig: Any, scripted_log: Any, numbered: Any) -> None:
    async with rig(size=500, poll_bytes=500) as r:
        r.broker.logs["t", 0] = scripted_log(0, encode_message_set(numbered(range(2000))))
        r.broker.logs["t", 1] = scripted_log(0, encode_message_set(numbered(range(10))))
        release = asyncio.Event()
        other = r.add(number=1)
        lane = r.add(max_batches=1000)
        await r.take(lane, 50)

        async def held(request: FetchRequest) -> None:
            if request.partition == 0:
                await release.wait()

        r.broker.on_fetch = held
        await asyncio.sleep(0.01)
        await r.pool.remove(T0)
        queued = len(lane)
        position = lane.budget.used
        release.set()
        assert await r.take(other, 10) == numbered(range(10))  # the late answer did not shift the others'
        assert (len(lane), lane.budget.used) == (queued, position)
        with pytest.raises(KeyError):
            await r.pool.remove(T0)


async def test_removing_last_partition_of_broker_disconnects(rig: Any) -> None:
    async with rig() as r:
        r.add()
        await r.until(lambda: bool(r.broker.requests))
        await r.pool.remove(T0)
        count = len(r.broker.requests)
        await asyncio.sleep(0.05)
        assert len(r.broker.requests) == count
        r.add()
        while len(r.broker.requests) == count:
            await asyncio.sleep(0.001)
        assert r.broker.connections == 2


async def test_busy_partition_does_not_starve_others(rig: Any, scripted_log: Any, numbered: Any) -> None:
    """While one partition has no end, a message in any other arrives within a few of its fetches."""
    async with rig(size=2000, poll_bytes=2000) as r:
        endless = encode_message_set(numbered(range(10)))
        r.broker.on_fetch = lambda request: FetchResponse(ErrorCode.NONE, endless) if request.partition == 0 else None
        busy = r.add(number=0)
        others = [r.add(number=number) for number in range(1, 5)]

        async def consume() -> None:
            while True:
                await r.take(busy, 1)

        consumer = asyncio.create_task(consume())
        while len(r.broker.fetches(MultiFetchRequest)) < 3:
            await asyncio.sleep(0.001)
        for number in range(1, 5):
            r.broker.logs["t", number] = scripted_log(0, encode_message_set(numbered([number])))
        for number, lane in enumerate(others, 1):
            assert await r.take(lane, 1) == numbered([number])
        consumer.cancel()
        await asyncio.wait([consumer])


async def test_lists_offsets(rig: Any, scripted_log: Any) -> None:
    async with rig() as r:
        r.broker.logs["t", 0] = scripted_log(100, b"x" * 50)
        assert await r.pool.list_offsets(T0, EARLIEST) == (100,)
        assert await r.pool.list_offsets(T0, LATEST) == (150,)
        with pytest.raises(BrokerUnknownError, match="broker 9"):
            await r.pool.list_offsets(TopicPartition("t", 9, 0), LATEST)
        r.broker._answer = lambda request: asyncio.sleep(0)
        with pytest.raises(ConnectionClosedError):
            await r.pool.list_offsets(T0, LATEST)
        r.addresses[0] = ("127.0.0.1", 1)
        with pytest.raises(Exception, match=r"127\.0\.0\.1:1"):
            await r.pool.list_offsets(T0, LATEST)


async def test_stalled_handlers_do_not_block_other_partitions(rig: Any, scripted_log: Any, numbered: Any) -> None:
    """The memory of stalled partitions is not released; a message that needs most of the budget still arrives, and so
    do those after it."""
    large = b"x" * 30_000
    async with rig(budget=40_000, size=1000, poll_bytes=200, max_size=35_000) as r:
        for number in range(2, 10):
            r.broker.logs["t", number] = scripted_log(0, encode_message_set(numbered(range(100))))
            r.add(number=number, max_bytes=1500)
        await r.until(lambda: all(len(lane) for lane in r.lanes.values()) and r.budget.used > 16_000)
        r.broker.logs["t", 0] = scripted_log(0, encode_message_set([large]))
        r.broker.logs["t", 1] = scripted_log(0, encode_message_set(numbered(range(500))))
        grown, ordinary = r.add(number=0), r.add(number=1)
        assert await r.take(grown, 1) == [large]
        assert await r.take(ordinary, 500) == numbered(range(500))


async def test_decodes_large_compressed_message_in_turns_within_budget(rig: Any, scripted_log: Any) -> None:
    """Two partitions, half a million messages each in a few kilobytes: decoded in turns, one after the other."""
    count = 500_000
    message = encode_message(compress(Codec.GZIP, encode_message(b"") * count), codec=Codec.GZIP)
    turns = most = 0

    async def canary() -> None:
        nonlocal turns, most
        while True:
            await asyncio.sleep(0)
            turns += 1
            most = max(most, turns)

    def asked(_: FetchRequest) -> None:
        nonlocal turns
        turns = 0

    async with rig(budget=8 << 20) as r:
        lanes = []
        r.broker.on_fetch = asked
        for number in range(2):
            r.broker.logs["t", number] = scripted_log(0, message + encode_message(b"after"))
            lanes.append(r.add(number=number))
        ticking = asyncio.create_task(canary())
        async with asyncio.timeout(60):
            first, others = await asyncio.wait(
                [asyncio.create_task(lane.get()) for lane in lanes], return_when=asyncio.FIRST_COMPLETED
            )
            batch = first.pop().result()
            assert most > 60  # the loop continued while it was decoded
            assert (len(batch), batch.start_offset, batch.next_offset) == (count, 0, len(message))
            assert batch.memory_bytes < 11 * count  # not 48 bytes for each
            ticking.cancel()
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            assert r.budget.used < 2 * batch.memory_bytes  # the other one waits for the memory of this one
