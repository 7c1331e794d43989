"""Streams of a connector against ZooKeeper and a broker in memory: delivery, handled positions, and the end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from typing import Any

import pytest
from structlog.testing import capture_logs

from consumerd import (
    EARLIEST,
    Blacklist,
    ConnectorStateError,
    ConsumerConfig,
    ConsumerConnector,
    ConsumerTimeoutError,
    MessageStream,
    NotAssignedError,
    TopicPartition,
    Whitelist,
)
from consumerd.base.errors import ConfigError
from consumerd.member.fetch.errors import CorruptPartitionError, OffsetRefusedError
from consumerd.wire.v07 import Codec, OffsetsRequest

TP = TopicPartition("t", 0, 0)


@asynccontextmanager
async def connector(group: Any, name: str = "a", *, listener: Any = None, **settings: Any) -> AsyncIterator[Any]:
    config = ConsumerConfig(
        group="g",
        consumer_id=name,
        **{"idle_backoff": 0.01, "commit_interval": 60.0, "consumer_timeout": 5, **settings},
    )
    async with (
        group.zookeeper.session(session_timeout=6.0) as zk,
        ConsumerConnector(config, listener=listener, zk=zk, connect=group.broker.connect, rng=random.Random(1)) as made,
    ):
        yield made


@asynccontextmanager
async def streaming(group: Any, **settings: Any) -> AsyncIterator[tuple[Any, MessageStream]]:
    """A connector with one stream of the topic t."""
    async with connector(group, **settings) as made:
        (stream,) = (await made.create_message_streams({"t": 1}))["t"]
        yield made, stream


async def take(stream: MessageStream, count: int) -> list[bytes]:
    """The payloads of the next `count` messages; the last of them is not handled yet."""
    return [(await anext(stream)).payload for _ in range(count)]


def winds_down(stream: MessageStream) -> bool:
    """Whether the member drains the current batch of this stream, as it does some steps after it begins to leave."""
    return stream._current is not None and stream._current.sink.winding


async def test_yields_messages_in_order_with_identities(group: Any) -> None:
    group.topic("t", 1)
    first = group.broker.append("t", 0, b"one")
    group.broker.append("t", 0, b"two", b"three", codec=Codec.GZIP)
    async with connector(group) as made:
        streams = await made.create_message_streams({"t": 1})
        assert list(streams) == ["t"]
        (stream,) = streams["t"]
        assert (stream.topic, stream.number) == ("t", 0)
        messages = [await anext(stream) for _ in range(3)]
    assert [(m.topic, m.broker, m.partition, m.offset, m.index, m.payload) for m in messages] == [
        ("t", 0, TP, 0, 0, b"one"),
        ("t", 0, TP, first, 0, b"two"),
        ("t", 0, TP, first, 1, b"three"),
    ]


async def test_message_is_handled_when_next_is_requested(group: Any) -> None:
    group.topic("t", 1)
    ends = [group.broker.append("t", 0, b"%d" % number) for number in range(3)]
    async with streaming(group) as (made, stream):
        await take(stream, 2)
        assert made.position(TP) == ends[0]
        assert await made.commit_offsets() == {TP: ends[0]}
        assert group.offset(TP) == ends[0]
        stream.ack()
        assert made.position(TP) == ends[1]
        assert await made.committed(TP) == {TP: ends[0]}
    assert group.offset(TP) == ends[1]


async def test_redelivers_message_after_error_in_loop(group: Any) -> None:
    group.topic("t", 1)
    for number in range(4):
        group.broker.append("t", 0, b"%d" % number)

    async def failing() -> None:
        async with connector(group) as made:
            async for message in (await made.create_message_streams({"t": 1}))["t"][0]:
                if message.payload == b"2":
                    raise ArithmeticError

    async with asyncio.timeout(3):  # the shutdown does not wait for a loop that has ended
        with pytest.raises(ArithmeticError):
            await failing()
    async with connector(group) as made:
        assert await take((await made.create_message_streams({"t": 1}))["t"][0], 2) == [b"2", b"3"]


async def test_continues_after_timeout(group: Any) -> None:
    async def taken(stream: Any) -> list[bytes]:
        while True:
            try:
                return await take(stream, 1)
            except ConsumerTimeoutError:
                pass  # a machine that is busy takes longer

    group.topic("t", 1)
    end = group.broker.append("t", 0, b"one")
    async with streaming(group, consumer_timeout=0.05) as (made, stream):
        assert await taken(stream) == [b"one"]
        with pytest.raises(ConsumerTimeoutError, match=r"0\.05 s"):
            await anext(stream)
        assert made.position(TP) == end
        with pytest.raises(ConsumerTimeoutError):
            await anext(stream)
        group.broker.append("t", 0, b"two")
        assert await taken(stream) == [b"two"]


async def test_yields_batches_with_marks(group: Any) -> None:
    group.topic("t", 1)
    ends = [group.broker.append("t", 0, b"%d" % number) for number in range(5)]
    async with streaming(group) as (made, stream):
        assert await take(stream, 2) == [b"0", b"1"]
        batch = await anext(stream.batches())
        assert list(batch) == [b"2", b"3", b"4"]
        assert made.position(TP) == ends[1] == batch.start_offset
        batch.mark(1)
        assert made.position(TP) == ends[2]
        ends.append(group.broker.append("t", 0, b"5"))
        assert list(await anext(stream.batches())) == [b"5"]
        assert made.position(TP) == ends[4]
    assert group.offset(TP) == ends[4]


async def test_partition_feeds_stream_of_owner_node(group: Any) -> None:
    group.topic("t", 11)
    for number in range(11):
        group.broker.append("t", number, b"a", b"b")
    async with connector(group) as made:
        streams = (await made.create_message_streams({"t": 3}))["t"]
        await group.until(lambda: len(made.assignment()) == 11)
        assert {partition: f"g_a-{number}" for partition, number in made.assignment().items()} == {
            partition: group.owner(partition) for partition in made.assignment()
        }
        # As strings: 0-0, 0-1, 0-10, 0-2, ...
        assert [n for n in range(11) if made.assignment()[TopicPartition("t", 0, n)] == 0] == [0, 1, 2, 10]
        for stream in streams:
            mine = [tp for tp, number in made.assignment().items() if number == stream.number]
            got = [await anext(stream) for _ in range(2 * len(mine))]
            assert sorted({message.partition for message in got}) == mine


async def test_filter_follows_topics_that_come_and_go(group: Any) -> None:
    for topic in ("one", "two", "other"):
        group.topic(topic, 1)
        group.broker.append(topic, 0, topic.encode())
    async with connector(group) as made:
        (stream,) = await made.create_message_streams_by_filter(Whitelist(' "o.*, new" '))
        assert stream.topic is None
        got = [await anext(stream) for _ in range(2)]
        assert sorted((message.topic, message.payload) for message in got) == [("one", b"one"), ("other", b"other")]
        group.broker.append("new", 0, b"new")
        group.topic("new", 1)
        assert await take(stream, 1) == [b"new"]
        group.zookeeper.remove("/brokers/topics/one")
        await group.until(lambda: {tp.topic for tp in made.assignment()} == {"new", "other"})
        group.broker.append("other", 0, b"more")
        assert await take(stream, 1) == [b"more"]
    assert group.data("/consumers/g/ids/g_a") is None


async def test_consumes_by_blacklist(group: Any) -> None:
    group.topic("one", 1)
    group.topic("two", 1, b"x")
    async with connector(group) as made:
        first, second = await made.create_message_streams_by_filter(Blacklist("one"), 2)
        assert group.data("/consumers/g/ids/g_a") == b"!2!one"
        await group.until(lambda: made.assignment() == {TopicPartition("two", 0, 0): 0})
        assert (await anext(first)).topic == "two"
        assert repr(second) == "<MessageStream 1 of a filter>"


async def test_rejects_second_streams_and_use_after_shutdown(group: Any) -> None:
    group.topic("t", 1)
    async with connector(group) as made:
        with pytest.raises(ConnectorStateError, match="no streams"):
            made.assignment()
        with pytest.raises(ConfigError, match="at least one topic"):
            await made.create_message_streams({})
        with pytest.raises(ConfigError, match="expected 1 to"):
            await made.create_message_streams({"t": 0})
        for topic in ("a/b", "t" * 256):
            with pytest.raises(ConfigError):
                await made.create_message_streams({topic: 1})
        names: Any
        for names in ("t", ["t"], {1: 1}):
            with pytest.raises(ConfigError, match="topics must be names with numbers of streams"):
                await made.create_message_streams(names)
        pattern: Any = "t.*"
        with pytest.raises(ConfigError, match="must be a Whitelist or a Blacklist, not 't"):
            await made.create_message_streams_by_filter(pattern)
        with pytest.raises(ConfigError, match="expected 1 to"):
            await made.create_message_streams_by_filter(Whitelist("t"), 0)
        (stream,) = (await made.create_message_streams({"t": 1}))["t"]
        for again in (made.create_message_streams({"t": 1}), made.create_message_streams_by_filter(Whitelist("t"))):
            with pytest.raises(ConnectorStateError, match="already has its streams"):
                await again
        with pytest.raises(NotAssignedError, match="u/0-0 is not assigned"):
            made.position(TopicPartition("u", 0, 0))
        await made.shutdown()
        await made.shutdown()
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        with pytest.raises(StopAsyncIteration):
            await anext(stream.batches())
        with pytest.raises(ConnectorStateError, match="shut down"):
            await made.commit_offsets()
        with pytest.raises(ConnectorStateError, match="not running"):
            await ConsumerConnector(ConsumerConfig(group="g")).create_message_streams({"t": 1})


async def test_rejects_two_tasks_on_one_stream(group: Any) -> None:
    group.topic("t", 1)
    async with streaming(group) as (_, stream):
        first = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0.01)
        with pytest.raises(ConnectorStateError, match="two tasks"):
            await anext(stream)
        group.broker.append("t", 0, b"one")
        assert (await first).payload == b"one"


async def test_cancelled_wait_loses_nothing(group: Any) -> None:
    group.topic("t", 1)
    async with streaming(group) as (_, stream):
        got = []
        for number in range(30):
            waiting = asyncio.ensure_future(anext(stream))
            for _ in range(number % 7):
                await asyncio.sleep(0)
            group.broker.append("t", 0, b"%d" % number)
            waiting.cancel()
            await asyncio.wait([waiting])
            if not waiting.cancelled():
                got.append(waiting.result().payload)
        got += await take(stream, 30 - len(got))
        assert got == [b"%d" % number for number in range(30)]


async def test_unread_stream_does_not_block_others(group: Any) -> None:
    group.topic("t", 2)
    for number in range(2):
        for _ in range(50):
            group.broker.append("t", number, b"%d" % number * 1000)
    async with connector(group, fetch_size=1500, budget=20_000, partition_budget=10_000) as made:
        first, second = (await made.create_message_streams({"t": 2}))["t"]
        assert await take(second, 50) == [b"1" * 1000] * 50
        assert first.deserted
        async with asyncio.timeout(0.5):
            await made.shutdown()
    assert group.offset(TopicPartition("t", 0, 0)) == 0


# -- positions


async def test_seeks_forward_and_back_in_loop(group: Any) -> None:
    group.topic("t", 1)
    ends = [group.broker.append("t", 0, b"%d" % number) for number in range(6)]
    async with streaming(group) as (made, stream):
        assert await take(stream, 1) == [b"0"]
        assert await made.seek(TP, ends[2]) == ends[2]
        assert made.position(TP) == ends[2]
        assert await take(stream, 2) == [b"3", b"4"]
        assert made.position(TP) == ends[3]
        assert await made.seek(TP, EARLIEST) == 0
        assert await take(stream, 6) == [b"%d" % number for number in range(6)]
        group.broker.append("t", 0, b"6")
        await made.seek(TP, -1)
        group.broker.append("t", 0, b"7")
        assert await take(stream, 1) == [b"7"]
        with pytest.raises(NotAssignedError):
            await made.seek(TopicPartition("t", 0, 1), 0)


async def test_seek_at_any_time_yields_messages_from_target(group: Any) -> None:
    group.topic("t", 1)
    ends = [0, *(group.broker.append("t", 0, b"%d" % number) for number in range(40))]
    rng = random.Random(5)
    async with streaming(group, fetch_size=60) as (made, stream):
        await take(stream, 1)
        for _ in range(200):
            at = rng.randrange(35)
            await made.seek(TP, ends[at])
            for _ in range(rng.randrange(6)):
                await asyncio.sleep(0)
            count = rng.randrange(5)
            assert await take(stream, count) == [b"%d" % number for number in range(at, at + count)]


async def test_pause_holds_back_fetched_messages(group: Any) -> None:
    group.topic("t", 2)
    other = TopicPartition("t", 0, 1)
    for number in range(2):
        for _ in range(3):
            group.broker.append("t", number, b"%d" % number)
    async with streaming(group, consumer_timeout=0.1) as (made, stream):
        first = await anext(stream)
        made.pause(first.partition)
        rest = await take(stream, 3)
        assert set(rest) == {b"%d" % (1 - first.partition.partition)}
        with pytest.raises(ConsumerTimeoutError):
            await anext(stream)
        group.broker.append("t", first.partition.partition, b"late")
        with pytest.raises(ConsumerTimeoutError):
            await anext(stream)
        made.resume(first.partition)
        assert await take(stream, 3) == [first.payload] * 2 + [b"late"]
        assert set(made.assignment()) == {TP, other}
        with pytest.raises(NotAssignedError):
            made.pause(TopicPartition("t", 0, 2))


async def test_releases_partition_paused_within_compressed_message(group: Any) -> None:
    group.topic("t", 1)
    group.broker.append("t", 0, b"1", b"2", b"3", codec=Codec.GZIP)
    async with streaming(group) as (made, stream):
        await take(stream, 2)
        made.pause(TP)
        stream.ack()
        async with asyncio.timeout(0.5):
            await made.shutdown()
    assert group.offset(TP) == 0


@pytest.mark.parametrize("batches", [False, True])
async def test_continues_after_pause_since_task_left_with_last_message(group: Any, batches: bool) -> None:
    group.topic("t", 1)
    end = group.broker.append("t", 0, b"one")
    async with streaming(group) as (made, stream):
        assert await asyncio.create_task(take(stream, 1)) == [b"one"]
        made.pause(TP)
        made.resume(TP)
        group.broker.append("t", 0, b"two")
        async with asyncio.timeout(60):
            got = list(await anext(stream.batches())) if batches else await take(stream, 1)
        assert got == [b"two"]
        assert made.position(TP) == end


async def test_reports_end_offsets_and_lag(group: Any) -> None:
    group.topic("t", 2)
    group.register_broker(1)
    ends = [group.broker.append("t", number, *[b"x"] * (number + 2)) for number in range(2)]
    async with streaming(group) as (made, stream):
        await group.until(lambda: len(made.assignment()) == 2)
        tps = [TopicPartition("t", 0, number) for number in range(2)]
        assert await made.end_offsets() == dict(zip(tps, ends, strict=True))
        assert await made.lag() == dict(zip(tps, ends, strict=True))
        await take(stream, 5)
        stream.ack()
        assert await made.lag(TP) == {TP: 0}
        assert await made.committed() == {}
        await made.commit_offsets()
        assert await made.committed() == dict(zip(tps, ends, strict=True))
        assert await made.get_offsets_before(TP, EARLIEST) == (0,)
        assert await made.get_offsets_before(TP, 1234) == ()
        assert OffsetsRequest("t", 0, 1234, 1) in group.broker.requests
        assert made.stats.messages >= 2


# -- commits


async def test_commits_automatically_during_batch(group: Any) -> None:
    group.topic("t", 1)
    ends = [group.broker.append("t", 0, b"%d" % number) for number in range(5)]
    async with streaming(group, commit_interval=0.02) as (_, stream):
        for end in ends[:3]:
            await take(stream, 1)
            stream.ack()
            await group.until(lambda: group.offset(TP) == end)  # noqa: B023


async def test_commits_nothing_unasked_without_auto_commit(group: Any) -> None:
    group.topic("t", 1)
    ends = [group.broker.append("t", 0, b"%d" % number) for number in range(5)]
    async with streaming(group, commit_interval=0.02, auto_commit=False) as (made, stream):
        await take(stream, 3)
        await made.commit_offsets()
        await take(stream, 2)
        await asyncio.sleep(0.06)
        assert group.offset(TP) == ends[1]
    assert group.offset(TP) == ends[1]


# -- the end


async def test_shutdown_waits_for_loop_of_other_task(group: Any) -> None:
    group.topic("t", 1)
    ends = [group.broker.append("t", 0, b"%d" % number) for number in range(5)]
    busy, go_on = asyncio.Event(), asyncio.Event()

    async def work(stream: MessageStream) -> list[bytes]:
        got = []
        async for message in stream:
            busy.set()
            await go_on.wait()
            got.append(message.payload)
        return got

    async with streaming(group) as (made, stream):
        worker = asyncio.create_task(work(stream))
        await busy.wait()
        stopping = asyncio.create_task(made.shutdown())
        await group.until(lambda: winds_down(stream))
        assert group.owner(TP) == "g_a-0"
        go_on.set()
        await stopping
        assert await worker == [b"0"]  # what it had begun, and nothing new
    assert group.offset(TP) == ends[0]


async def test_shutdown_ends_iterations_that_wait(group: Any) -> None:
    group.topic("t", 1)
    async with streaming(group, consumer_timeout=None) as (made, stream):
        waiting = asyncio.create_task(anext(stream))
        await group.until(lambda: made.assignment() == {TP: 0})
        await made.shutdown()
        with pytest.raises(StopAsyncIteration):
            await asyncio.wait_for(waiting, 60)


async def test_finishes_compressed_message_before_drain(group: Any) -> None:
    group.topic("t", 1)
    end = group.broker.append("t", 0, *(b"%d" % number for number in range(5)), codec=Codec.GZIP)
    group.broker.append("t", 0, b"next")
    stopping: list[asyncio.Task[None]] = []

    async def work(made: Any) -> list[bytes]:
        got = []
        (stream,) = (await made.create_message_streams({"t": 1}))["t"]
        async for message in stream:
            if not stopping:
                stopping.append(asyncio.create_task(made.shutdown()))
                await group.until(lambda: winds_down(stream))
            got.append(message.payload)
        return got

    async with connector(group) as made:
        assert await asyncio.create_task(work(made)) == [b"0", b"1", b"2", b"3", b"4"]
        await stopping[0]
    assert group.offset(TP) == end


async def test_abandons_loop_that_misses_deadline(group: Any) -> None:
    group.topic("t", 1, b"one")
    end = group.broker.append("t", 0, b"two")
    taken, go_on = asyncio.Event(), asyncio.Event()

    async def work(stream: MessageStream) -> None:
        async for message in stream:
            if message.payload == b"two":
                taken.set()
                await go_on.wait()

    async with connector(group, drain_timeout=0.05) as made:
        worker = asyncio.create_task(work((await made.create_message_streams({"t": 1}))["t"][0]))
        await taken.wait()
        await made.shutdown()
        assert group.owner(TP) is None
        assert group.offset(TP) == end - 13
        go_on.set()
        await worker  # it ends, and what it did has no effect
    assert group.offset(TP) == end - 13


async def test_shutdown_within_loop_does_not_deadlock(group: Any) -> None:
    group.topic("t", 1)
    ends = [group.broker.append("t", 0, b"%d" % number) for number in range(3)]
    async with streaming(group) as (made, stream):
        got = []
        async with asyncio.timeout(0.5):
            async for message in stream:
                got.append(message.payload)
                if len(got) == 2:
                    stream.ack()
                    await made.shutdown()
        assert got == [b"0", b"1"]
    assert group.offset(TP) == ends[1]


async def test_raises_failure_from_streams(group: Any) -> None:
    group.topic("t", 2, b"one")
    group.broker.logs["t", 1] = bytearray(b"\0\0\0\x07\x01\0AAAAx")
    async with connector(group) as made:
        first, second = (await made.create_message_streams({"t": 2}))["t"]
        for stream in (first, second):
            with pytest.raises(CorruptPartitionError):
                async for _ in stream:
                    pass
        with pytest.raises(CorruptPartitionError):
            await anext(first)


@pytest.mark.parametrize("explicitly", [False, True])
async def test_raises_failure_from_shutdown_once_without_iteration(group: Any, explicitly: bool) -> None:
    group.topic("t", 1)
    group.zookeeper.put("/consumers/g/offsets/t/0-0", b"999")

    async def idle() -> None:
        async with connector(group, out_of_range="fail") as made:
            await made.create_message_streams({"t": 1})
            await group.until(lambda: group.data("/consumers/g/ids/g_a") is None)
            if explicitly:
                with pytest.raises(OffsetRefusedError):
                    await made.shutdown()
                await made.shutdown()

    with nullcontext() if explicitly else pytest.raises(OffsetRefusedError):
        await idle()


@pytest.mark.parametrize("same", [False, True])
async def test_error_of_block_comes_before_failure_of_member(group: Any, same: bool) -> None:
    group.topic("t", 1)
    failure = CorruptPartitionError(TP, 0, "a test's reason")
    error = failure if same else ArithmeticError()

    async def failing() -> None:
        async with connector(group) as made:
            await made.create_message_streams({"t": 1})
            made._member.consumer.request_stop(failure)
            raise error

    with capture_logs() as logs, pytest.raises(type(error)) as raised:
        await failing()
    assert raised.value is error
    reported = [entry["reason"] for entry in logs if entry["event"] == "member_failed"]
    assert reported == ([] if same else [str(failure)])


async def test_redelivers_batch_in_hand_after_lost_session(group: Any) -> None:
    """The current batch is not handled, and is delivered again on the new session."""
    group.topic("t", 1)
    for number in range(4):
        group.broker.append("t", 0, b"%d" % number)
    async with streaming(group) as (made, stream):
        assert await take(stream, 2) == [b"0", b"1"]
        group.zookeeper.expire(made._parts._zk)
        await group.until(lambda: not made.assignment())
        stream.ack()
        assert await take(stream, 4) == [b"0", b"1", b"2", b"3"]


async def test_yields_nothing_on_old_lease(group: Any) -> None:
    group.topic("t", 1)
    for number in range(4):
        group.broker.append("t", 0, b"%d" % number)
    async with streaming(group, consumer_timeout=0.2) as (made, stream):
        await take(stream, 1)
        fence = made._member.consumer.fence
        fence.allows = lambda session_id: False
        await asyncio.sleep(0.011)  # as old as a look at the fence may be
        with pytest.raises(ConsumerTimeoutError):
            await anext(stream)
        del fence.allows
        assert await take(stream, 3) == [b"1", b"2", b"3"]


async def test_raises_failure_within_stop_timeout_while_zookeeper_is_unavailable(group: Any) -> None:
    group.topic("t", 1, b"one")
    async with streaming(group, stop_timeout=0.05) as (made, stream):
        await anext(stream)
        group.zookeeper.disconnect(made._parts._zk)
        made._member.consumer.request_stop(CorruptPartitionError(TP, 0, "as it were"))
        with pytest.raises(CorruptPartitionError, match="as it were"):
            async for _ in stream:
                pass


async def test_cancelled_shutdown_stops_at_once(group: Any) -> None:
    group.topic("t", 1, b"one")
    taken, done = asyncio.Event(), asyncio.Event()

    async def work(stream: MessageStream) -> None:
        async for _ in stream:
            taken.set()
            await done.wait()

    async with connector(group) as made:
        worker = asyncio.create_task(work((await made.create_message_streams({"t": 1}))["t"][0]))
        await taken.wait()
        stopping = asyncio.create_task(made.shutdown())
        await asyncio.sleep(0.01)
        stopping.cancel()
        async with asyncio.timeout(0.5):
            await asyncio.wait([stopping])
        assert stopping.cancelled()
        done.set()
        await worker
    assert group.offset(TP) is None
