from __future__ import annotations

import asyncio
from collections.abc import Hashable, Sequence
from typing import Any

import pytest
import structlog

from consumerd.net.errors import ConnectError, ConnectionClosedError
from consumerd.producer import (
    CallbackHandler,
    Encoder,
    EncodingError,
    Event,
    EventHandler,
    EventsFailedError,
    MessageSizeTooLargeError,
    NoPartitionError,
    NotSentError,
    Producer,
    ProducerClosedError,
    ProducerData,
    QueueFullError,
    Route,
    Router,
    UncertainError,
    WhenFull,
)
from consumerd.wire.errors import InvalidTopicError
from consumerd.wire.v07 import FetchRequest, MultiProduceRequest, Request
from tests.support.waiting import cancel

# When a batch goes out.


async def test_sends_a_full_batch_at_once_and_the_rest_after_the_queue_time(world: Any) -> None:
    async with world.queued(batch_size=4, queue_time=1.0) as producer:
        await producer.send("t", [b"%d" % n for n in range(6)])
        await world.settle()
        assert [entries[0][2] for entries in world.produced] == [[b"0", b"1", b"2", b"3"]]
        await world.advance(0.9)
        assert len(world.produced) == 1
        assert producer.queued == 2
        await world.advance(0.1)
        assert world.produced[1:] == [[("t", -1, [b"4", b"5"])]]
        assert producer.queued == 0
    assert producer.stats.sent == producer.stats.enqueued == 6
    assert producer.stats.batches == 2


async def test_queue_time_counts_from_the_oldest_message(world: Any) -> None:
    async with world.queued(batch_size=100, queue_time=1.0) as producer:
        await world.advance(10)  # idle time does not count
        await producer.send("t", [b"a"])
        await world.advance(0.7)
        await producer.send("t", [b"b"])
        await world.advance(0.2)
        assert not world.produced
        await world.advance(0.1)
        assert world.produced == [[("t", -1, [b"a", b"b"])]]
        await producer.send("t", [b"c"])
        await world.advance(0.99)
        assert len(world.produced) == 1
        await world.advance(0.01)
        assert len(world.produced) == 2


async def test_queue_time_counts_from_the_last_send_after_idle_time(world: Any) -> None:
    async with world.queued(batch_size=4, queue_time=1.0) as producer:
        await producer.send("t", [b"1", b"2"])
        await world.advance(1.0)
        await producer.send("t", [b"3", b"4", b"5"])
        await world.advance(0.6)
        await producer.send("t", [b"6", b"7"])
        await world.advance(0.9)
        assert world.stored("t") == [b"1", b"2", b"3", b"4", b"5", b"6"]
        await world.advance(0.1)
        assert world.stored("t")[6:] == [b"7"]


async def test_queue_time_counts_from_the_end_of_a_wait_for_room(world: Any) -> None:
    gate = stuck(world)
    async with world.queued(batch_size=4, queue_size=6, queue_time=1.0) as producer:
        await producer.send("t", [b"1", b"2"])
        flushing = asyncio.create_task(producer.flush())
        await world.settle()
        sending = asyncio.create_task(producer.send("t", [b"%d" % n for n in range(3, 12)]))
        await world.advance(5.0)
        assert not sending.done()  # 3 to 8 are in the queue
        gate.set()
        await world.settle()
        await asyncio.gather(flushing, sending)
        assert world.stored("t") == [b"%d" % n for n in range(1, 11)]
        await world.advance(0.9)
        assert producer.queued == 1
        await world.advance(0.1)
        assert producer.queued == 0


async def test_queue_time_counts_from_the_return_to_a_sender_that_let_others_run(world: Any) -> None:
    async with world.queued(batch_size=4, queue_time=1.0) as producer:
        await producer.send("t", [b"1", b"2"])
        await world.advance(1.0)
        asyncio.get_running_loop().call_soon(world.clock.jump, 0.6)
        await producer.send("t", [b"3", b"4", b"5", b"6", b"7"])
        await world.advance(0.9)
        assert world.stored("t") == [b"1", b"2", b"3", b"4", b"5", b"6"]
        await world.advance(0.1)
        assert world.stored("t")[6:] == [b"7"]


async def test_flush_and_close_send_the_queue(world: Any) -> None:
    producer = world.queued()
    await producer.start()
    await producer.send("t", [b"a"])
    await producer.flush()
    assert world.stored("t") == [b"a"]
    await producer.flush()
    await producer.send("t", [b"b"])
    await producer.close()
    assert world.stored("t") == [b"a", b"b"]
    assert not world.broker.connections
    await producer.close()
    with pytest.raises(ProducerClosedError):
        await producer.send("t", [b"c"])


async def test_sends_when_a_queue_smaller_than_a_batch_is_full(world: Any) -> None:
    async with world.queued(batch_size=200, queue_size=5) as producer:
        await producer.send("t", [b"%d" % n for n in range(23)])
        assert producer.stats.enqueued == 23
    assert world.stored("t") == [b"%d" % n for n in range(23)]


async def test_rejects_messages_before_the_start(world: Any) -> None:
    producer = world.queued()
    with pytest.raises(ProducerClosedError, match="not started"):
        await producer.send("t", [b"a"])
    await producer.close()
    async with world.queued() as other:
        with pytest.raises(ProducerClosedError, match="already"):
            await other.start()


# Requests that are sent.


async def test_sends_a_multiproduce_with_one_entry_per_topic_and_partition(world: Any, by_key: Any) -> None:
    async with world.queued(world.producer(by_key)) as producer:
        await producer.send_all(
            [
                ProducerData("t", [b"1"], key="a"),
                ProducerData("u", [b"2"], key="a"),
                ProducerData("t", [b"3"], key="bb"),
                ProducerData("t", [b"4", "5"], key="b"),  # the same partition as "a"
                ProducerData("t", [b"6"], partition=7),
            ]
        )
        await producer.flush()
        await producer.send("u", ["ж"], key="a")
    assert world.produced == [
        [("t", 1, [b"1", b"4", b"5"]), ("u", 1, [b"2"]), ("t", 2, [b"3"]), ("t", 7, [b"6"])],
        [("u", 1, ["ж".encode()])],
    ]
    assert all(isinstance(r, (MultiProduceRequest, FetchRequest)) for r in world.broker.requests)


async def test_rejects_an_invalid_topic_at_once(world: Any) -> None:
    async with world.queued() as producer:
        with pytest.raises(InvalidTopicError):
            await producer.send_all([ProducerData("t", [b"x"]), ProducerData("a/b", [b"x"])])
        with pytest.raises(InvalidTopicError):
            await producer.send("a/b", [b"x"])
        with pytest.raises(TypeError, match="list of messages"):
            await producer.send("t", b"one")
        assert producer.queued == 0
        await producer.send("t", (b"one", b"two"))
    assert world.stored("t") == [b"one", b"two"]


@pytest.mark.parametrize("given", [{"headers": (("h", b"v"),)}, {"timestamp": 7}])
async def test_rejects_data_that_0_7_cannot_store_at_once(world: Any, given: dict[str, Any]) -> None:
    async with world.queued() as producer:
        await producer.send("t", [b"x"])
        with pytest.raises(EncodingError, match="do not support headers or timestamps"):
            await producer.send("t", [b"y"], **given)
        with pytest.raises(EncodingError, match="do not support headers or timestamps"):
            await producer.send_all([ProducerData("t", [b"z"]), ProducerData("t", [b"y"], **given)])
    assert world.stored("t") == [b"x"]


async def test_data_is_a_list_of_messages() -> None:
    for single in (b"one", "one", bytearray(b"one"), memoryview(b"one")):
        with pytest.raises(TypeError, match="list of messages"):
            ProducerData("t", single)


async def test_fails_only_messages_that_cannot_be_sent(world: Any, told: Any) -> None:
    producer = world.queued(world.producer(max_message_bytes=5), callbacks=told)
    async with producer:
        await producer.send("t", [b"a", b"too large", b"b", 17, b"c", "\ud800"])
        with pytest.raises(NotSentError, match=r"3 queued messages were not sent.*first error") as caught:
            await producer.flush()
        assert caught.value.count == 3
        await producer.send("t", [b"d"])
    assert world.stored("t") == [b"a", b"b", b"c", b"d"]
    assert [event.message for event in told.lost] == [17, "\ud800", b"too large"]
    assert world.produced == [[("t", -1, [b"a", b"b", b"c"])], [("t", -1, [b"d"])]]
    assert all(isinstance(request, (MultiProduceRequest, FetchRequest)) for request in world.broker.requests)
    assert (producer.stats.sent, producer.stats.failed, producer.stats.enqueued) == (4, 3, 7)


async def test_uses_a_custom_encoder(world: Any) -> None:
    class Comma(Encoder):
        def encode(self, message: Any, /) -> bytes:
            return ",".join(map(str, message)).encode()

    async with world.queued(world.producer(encoder=Comma())) as producer:
        await producer.send("t", [(1, 2), (3,)])
    assert world.stored("t") == [b"1,2", b"3"]

    class Wrong(Encoder):
        def encode(self, message: Any, /) -> bytes:
            return message  # type: ignore[no-any-return]

    producer = world.queued(world.producer(encoder=Wrong()))
    await producer.start()
    await producer.send("t", ["text"])
    with pytest.raises(NotSentError, match="the encoder must return bytes, not str"):
        await producer.close()


# A queue without room.


def stuck(world: Any) -> asyncio.Event:
    """No connection is accepted until the event is set."""
    gate, connect = asyncio.Event(), world.broker.connect

    async def wait(host: str, port: int) -> Any:
        await gate.wait()
        return await connect(host, port)

    world.broker.connect = wait
    return gate


async def test_block_waits_and_keeps_the_order(world: Any) -> None:
    gate = stuck(world)
    async with world.queued(queue_size=3, batch_size=2) as producer:
        task = asyncio.create_task(producer.send("t", [b"%d" % n for n in range(10)]))
        await world.advance(1000)
        assert not task.done()
        assert producer.queued == 3
        gate.set()
        await task
        assert producer.stats.enqueued == 10
    assert world.stored("t") == [b"%d" % n for n in range(10)]
    assert producer.stats.dropped == 0


async def test_serves_blocked_senders_in_turn_and_skips_cancelled_ones(world: Any) -> None:
    gate = stuck(world)
    async with world.queued(queue_size=1, batch_size=1) as producer:
        tasks = []
        for n in range(6):
            tasks.append(asyncio.create_task(producer.send("t", [b"%d" % n])))
            await world.settle()
        tasks[3].cancel()
        await world.settle()
        gate.set()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(o) for o in outcomes] == [type(None)] * 3 + [asyncio.CancelledError] + [type(None)] * 2
    assert world.stored("t") == [b"0", b"1", b"2", b"4", b"5"]


async def test_close_fails_blocked_senders(world: Any) -> None:
    gate = stuck(world)
    producer = world.queued(queue_size=1, batch_size=1)
    await producer.start()
    tasks = [asyncio.create_task(producer.send("t", [b"%d" % n])) for n in range(4)]
    await world.settle()
    closing = asyncio.create_task(producer.close())
    await world.settle()
    gate.set()
    await closing
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(o) for o in outcomes] == [type(None)] * 2 + [ProducerClosedError] * 2
    assert world.stored("t") == [b"0", b"1"]


async def test_rejects_at_once_with_a_timeout_of_0(world: Any, told: Any) -> None:
    gate = stuck(world)
    producer = world.queued(queue_size=3, batch_size=2, when_full=WhenFull.TIMEOUT, callbacks=told)
    async with producer:
        with pytest.raises(QueueFullError, match="the queue of 3 messages was full:") as caught:
            await producer.send("t", [b"%d" % n for n in range(9)])
        accepted = caught.value.accepted
        assert 3 <= accepted < 9
        assert ("after_enqueue", (b"%d" % accepted, False)) in told.calls
        gate.set()
    assert world.stored("t") == [b"%d" % n for n in range(accepted)]
    assert (producer.stats.dropped, producer.stats.enqueued) == (1, accepted)


async def test_sender_lets_others_run_after_as_many_messages_as_a_batch_has(world: Any) -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async with world.queued(queue_size=10_000, batch_size=10) as producer:
        counting = asyncio.create_task(count())
        await asyncio.sleep(0)
        for _ in range(100):
            await producer.send("t", [b"x"] * 10)
        assert turns == 100
        counting.cancel()


async def test_sender_whose_message_is_dropped_lets_others_run(world: Any) -> None:
    gate = stuck(world)
    async with world.queued(queue_size=2, batch_size=1000, when_full=WhenFull.DROP) as producer:
        await producer.send("t", [b"%d" % n for n in range(10)])
        assert producer.stats.enqueued == 4  # two in the batch that is sent, and two behind it
        gate.set()


async def test_waits_for_the_enqueue_timeout(world: Any) -> None:
    gate = stuck(world)
    async with world.queued(queue_size=2, batch_size=1, when_full=WhenFull.TIMEOUT, enqueue_timeout=3.0) as producer:
        await producer.send("t", [b"a"])
        await world.settle()
        await producer.send("t", [b"b", b"c"])
        late = asyncio.create_task(producer.send("t", [b"x"]))
        await world.advance(2.9)
        assert not late.done()
        await world.advance(0.2)
        with pytest.raises(QueueFullError, match="full for 3 s"):
            await late
        in_time = asyncio.create_task(producer.send("t", [b"d"]))
        cancelled = asyncio.create_task(producer.send("t", [b"y"]))
        await world.advance(1)
        cancelled.cancel()
        gate.set()
        await in_time
        await asyncio.wait([cancelled])
        assert cancelled.cancelled()
    assert world.stored("t") == [b"a", b"b", b"c", b"d"]
    assert producer.stats.dropped == 1


async def test_closing_ends_a_wait_with_a_timeout(world: Any) -> None:
    gate = stuck(world)
    producer = world.queued(queue_size=1, batch_size=1, when_full=WhenFull.TIMEOUT, enqueue_timeout=3.0)
    await producer.start()
    await producer.send("t", [b"a"])
    await world.settle()
    await producer.send("t", [b"b"])
    waiting = asyncio.create_task(producer.send("t", [b"c"]))
    await world.settle()
    closing = asyncio.create_task(producer.close())
    await world.settle()
    with pytest.raises(ProducerClosedError, match="waited for room"):
        await waiting
    gate.set()
    await closing
    assert world.stored("t") == [b"a", b"b"]


async def test_counts_dropped_messages(world: Any) -> None:
    gate = stuck(world)
    async with world.queued(queue_size=3, batch_size=2, when_full=WhenFull.DROP) as producer:
        await producer.send("t", [b"%d" % n for n in range(20)])
        gate.set()
        await world.settle()
        await producer.send("t", [b"last"])
    assert producer.stats.enqueued + producer.stats.dropped == 21
    assert producer.stats.dropped >= 10
    stored = world.stored("t")
    assert len(stored) == producer.stats.sent == producer.stats.enqueued
    assert stored[-1] == b"last"
    assert stored[:-1] == sorted(stored[:-1], key=int)


async def test_sender_that_never_waits_does_not_starve_the_connection(world: Any) -> None:
    async with world.queued(queue_size=1000, batch_size=10, when_full=WhenFull.DROP) as producer:
        for n in range(5000):
            await producer.send("t", [b"%d" % n])
    assert len(world.stored("t")) == producer.stats.sent > 2500


# Errors while sending.


def failing(world: Any, times: int, *, stored: bool) -> None:
    """The next `times` batches lose their connection: before the broker took them, or after."""
    left = times

    def fail(request: Request) -> bytes | Exception | None:
        nonlocal left
        if left and isinstance(request, FetchRequest if stored else MultiProduceRequest):
            left -= 1
            return ConnectionClosedError("cut", blamed=True)
        return None

    world.broker.on_request = fail


async def test_retries_a_batch_before_the_next_one(world: Any) -> None:
    failing(world, 1, stored=True)
    async with world.queued(batch_size=2) as producer:
        await producer.send("t", [b"a", b"b", b"c"])
        await world.advance(60)
    assert world.stored("t") == [b"a", b"b", b"a", b"b", b"c"]
    assert producer.stats.sent == 3


async def test_retries_only_unconfirmed_batches(world: Any) -> None:
    """A batch for two brokers, one of which cannot be reached at first: the other's part is not repeated."""

    class ByPartition(Router):
        async def route(self, topic: str, key: Hashable, partition: int | None) -> Route:
            assert partition is not None
            return Route(f"broker-{partition}", 1, partition)

        async def close(self) -> None:
            return

    refusals = iter([True, True])
    connect = world.broker.connect

    async def refuse(host: str, port: int) -> Any:
        if host == "broker-1" and next(refusals, False):
            raise ConnectError("refused")
        return await connect(host, port)

    world.broker.connect = refuse
    async with world.queued(world.producer(ByPartition())) as producer:
        await producer.send_all([ProducerData("t", [b"%d" % n], partition=n % 2) for n in range(4)])
        flushing = asyncio.create_task(producer.flush())
        await world.advance(60)
        await flushing
    assert world.produced == [[("t", 0, [b"0", b"2"])], [("t", 1, [b"1", b"3"])]]


class Moving(Router):
    """A broker for each partition; `gone` partitions do not exist any more."""

    def __init__(self) -> None:
        self.gone: set[int] = set()

    async def route(self, topic: str, key: Hashable, partition: int | None) -> Route:
        assert partition is not None
        if partition in self.gone:
            raise NoPartitionError("it is gone.")
        return Route(f"broker-{partition}", 1, partition)

    async def close(self) -> None:
        return


@pytest.mark.parametrize("gone", [False, True], ids=["broker unavailable", "partition gone"])
async def test_fails_and_repeats_nothing_of_a_batch_that_one_broker_has_confirmed(
    world: Any, told: Any, gone: bool
) -> None:
    router, connect = Moving(), world.broker.connect

    async def refuse(host: str, port: int) -> Any:
        if host == "broker-1":
            if gone:
                router.gone.add(1)
            raise ConnectError("refused")
        return await connect(host, port)

    world.broker.connect = refuse
    producer = world.queued(world.producer(router, retries=1), callbacks=told)
    await producer.start()
    await producer.send_all([ProducerData("t", [b"%d" % n], partition=n % 2) for n in range(4)])
    closing = asyncio.create_task(producer.close())
    await world.advance(60)
    with pytest.raises(NotSentError, match="2 queued messages"):
        await closing
    assert [event.message for event in told.lost] == [b"1", b"3"]
    assert world.produced == [[("t", 0, [b"0", b"2"])]]
    assert producer.stats.sent == 2


async def test_reports_all_messages_of_a_batch_when_a_wrong_one_is_taken_out_and_the_rest_fails(
    world: Any, told: Any
) -> None:
    failing(world, 1, stored=False)
    producer = world.queued(world.producer(max_message_bytes=5, resends=0), callbacks=told)
    await producer.start()
    await producer.send("t", [b"a", b"too large", b"b"])
    with pytest.raises(NotSentError, match="3 queued messages"):
        await producer.close()
    assert [event.message for event in told.lost] == [b"too large", b"a", b"b"]


async def test_reports_a_failed_batch_and_sends_the_next(world: Any, told: Any) -> None:
    failing(world, 1, stored=False)
    producer = world.queued(world.producer(resends=0), batch_size=2, callbacks=told)
    await producer.start()
    await producer.send("t", [b"a", b"b", b"c"])
    with pytest.raises(NotSentError, match="2 queued messages") as caught:
        await producer.close()
    assert isinstance(caught.value.__cause__, UncertainError)
    assert world.stored("t") == [b"c"]
    assert [event.message for event in told.lost] == [b"a", b"b"]
    assert told.calls[-1] == ("close", None)
    assert (producer.stats.failed, producer.stats.sent) == (2, 1)
    assert not world.broker.connections


async def test_flush_confirms_unconfirmed_batches(world: Any) -> None:
    failing(world, 1, stored=True)
    async with world.queued(world.producer(confirm=False)) as producer:
        await producer.send("t", [b"a"])
        with pytest.raises(UncertainError):
            await producer.flush()
        await producer.send("t", [b"b"])
        await producer.flush()
    assert world.stored("t") == [b"a", b"b"]


async def test_close_drops_the_rest_after_its_timeout(world: Any, told: Any) -> None:
    stuck(world)
    producer = world.queued(batch_size=2, callbacks=told)
    await producer.start()
    await producer.send("t", [b"%d" % n for n in range(5)])
    await world.settle()
    closing = asyncio.create_task(producer.close(timeout=2.0))
    await world.advance(1.9)
    assert not closing.done()
    await world.advance(0.2)
    with pytest.raises(NotSentError, match="5 queued messages"):
        await closing
    assert [event.message for event in told.lost] == [b"%d" % n for n in range(5)]
    assert producer.stats.failed == 5


async def test_close_returns_when_everything_is_sent_before_its_timeout(world: Any) -> None:
    producer = world.queued()
    await producer.start()
    await producer.send("t", [b"a"])
    closing = asyncio.create_task(producer.close(timeout=5.0))
    await world.settle()
    assert closing.done()
    await closing
    assert world.stored("t") == [b"a"]


async def test_close_that_gives_up_fails_a_flush_that_waits(world: Any) -> None:
    stuck(world)
    producer = world.queued(batch_size=2)
    await producer.start()
    await producer.send("t", [b"a", b"b", b"c"])
    flushing = asyncio.create_task(producer.flush())
    await world.settle()
    closing = asyncio.create_task(producer.close(timeout=1.0))
    await world.advance(1.0)
    with pytest.raises(ProducerClosedError, match="stopped before all of its messages were sent"):
        await flushing
    with pytest.raises(NotSentError, match="3 queued messages"):
        await closing
    with pytest.raises(ProducerClosedError, match="stopped before all of its messages were sent"):
        await producer.flush()


async def test_flush_does_not_wait_for_a_task_that_was_cancelled_before_it_took_the_batch(world: Any) -> None:
    async with asyncio.timeout(10), world.queued() as producer:
        (task,) = (task for task in asyncio.all_tasks() if task.get_name() == "async producer")
        await producer.send("t", [b"a"])
        await world.settle()
        flushing = asyncio.create_task(producer.flush())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(ProducerClosedError, match="stopped before all of its messages were sent"):
            await flushing
        with pytest.raises(NotSentError, match="1 queued message was not sent"):
            await producer.close()


async def test_close_raises_an_error_of_the_event_handler_at_its_end(world: Any) -> None:
    class Bad(EventHandler):
        async def handle(self, events: Sequence[Event], producer: Producer, encoder: Encoder) -> None:
            await producer.send("t", [event.message for event in events])

        async def close(self) -> None:
            raise RuntimeError("no end")

    producer = world.queued(event_handler=Bad())
    await producer.start()
    await producer.send("t", [b"a"])
    with pytest.raises(RuntimeError, match="no end"):
        await producer.close()
    assert world.stored("t") == [b"a"]
    assert not world.broker.connections


async def test_accepts_nothing_after_the_task_that_sends_was_cancelled(world: Any) -> None:
    async with world.queued() as producer:
        (task,) = (task for task in asyncio.all_tasks() if task.get_name() == "async producer")
        await world.settle()
        await cancel(task)
        with pytest.raises(ProducerClosedError, match="the producer is closed"):
            await producer.send("t", [b"a"])


async def test_cancelled_close_leaves_no_task_behind(world: Any) -> None:
    stuck(world)
    producer = world.queued()
    await producer.start()
    await producer.send("t", [b"a"])
    closing = asyncio.create_task(producer.close())
    await world.settle()
    await cancel(closing)
    assert closing.cancelled()
    assert len(asyncio.all_tasks()) == 1
    assert producer.stats.failed == 1


async def test_error_in_the_block_does_not_lose_accepted_messages(world: Any) -> None:
    async def fail() -> None:
        async with world.queued() as producer:
            await producer.send("t", [b"a"])
            raise KeyError

    with pytest.raises(KeyError):
        await fail()
    assert world.stored("t") == [b"a"]


async def test_cancelled_block_ends_at_once(world: Any) -> None:
    stuck(world)

    async def work() -> None:
        async with world.queued() as producer:
            await producer.send("t", [b"a"])
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await world.settle()
    await cancel(task)
    assert task.cancelled()
    assert len(asyncio.all_tasks()) == 1


# Those who take part.


async def test_calls_callbacks_in_order(world: Any, told: Any) -> None:
    async with world.queued(batch_size=2, callbacks=told) as producer:
        await producer.send("t", [b"a"])
        await producer.send("t", [b"b"])
        await world.settle()
        await producer.send("t", [b"c"])
    assert told.calls == [
        ("before_enqueue", b"a"),
        ("after_enqueue", (b"a", True)),
        ("before_enqueue", b"b"),
        ("after_enqueue", (b"b", True)),
        ("after_dequeuing_existing_data", b"a"),
        ("after_dequeuing_existing_data", b"b"),
        ("before_sending_data", [b"a", b"b"]),
        ("before_enqueue", b"c"),
        ("after_enqueue", (b"c", True)),
        ("after_dequeuing_existing_data", b"c"),
        ("before_sending_data", [b"c"]),
        ("last_batch_before_close", None),
        ("close", None),
    ]


class Changing(CallbackHandler):
    """Changes something at every point."""

    def __init__(self) -> None:
        self.kept: list[Event] = []

    def before_enqueue(self, event: Event) -> Event:
        return event._replace(message=event.message.upper())

    def after_dequeuing_existing_data(self, event: Event) -> Sequence[Event]:
        if event.message == b"KEEP":
            self.kept.append(event)
            return ()
        return [event, event._replace(topic="copy")]

    def before_sending_data(self, events: Sequence[Event]) -> Sequence[Event]:
        return [event for event in events if event.message != b"NO"]

    def last_batch_before_close(self) -> Sequence[Event]:
        return self.kept


async def test_callbacks_can_change_add_and_remove_messages(world: Any) -> None:
    async with world.queued(callbacks=Changing()) as producer:
        await producer.send("t", [b"a", b"keep", b"no", b"b"])
        await producer.flush()
        assert world.stored("t") == world.stored("copy") == [b"A", b"B"]
    assert world.stored("t") == [b"A", b"B", b"KEEP"]
    assert producer.stats.sent == 5


async def test_topic_of_a_callback_that_is_invalid_fails_only_its_message(world: Any, told: Any) -> None:
    def rename(events: Sequence[Event]) -> Sequence[Event]:
        return [event._replace(topic="a/b") if event.message == b"bad" else event for event in events]

    told.before_sending_data = rename
    producer = world.queued(callbacks=told)
    await producer.start()
    await producer.send("t", [b"a", b"bad", b"c"])
    with pytest.raises(NotSentError, match="1 queued message was not sent") as caught:
        await producer.close()
    assert isinstance(caught.value.__cause__, InvalidTopicError)
    assert [event.message for event in told.lost] == [b"bad"]
    assert world.stored("t") == [b"a", b"c"]


@pytest.mark.parametrize("point", ["after_dequeuing_existing_data", "before_sending_data"])
async def test_failing_callback_loses_only_its_messages(world: Any, point: str) -> None:
    callbacks = CallbackHandler()
    lost: list[Event] = []

    def fail(what: Any) -> Any:
        if b"bad" in ([what.message] if isinstance(what, Event) else [event.message for event in what]):
            raise KeyError("oh")
        return [what] if isinstance(what, Event) else what

    def note(events: Sequence[Event], error: Exception) -> None:
        lost.extend(events)
        raise KeyError("here too")

    setattr(callbacks, point, fail)
    callbacks.not_sent = note  # type: ignore[method-assign]
    async with world.queued(batch_size=2, callbacks=callbacks) as producer:
        await producer.send("t", [b"a", b"bad", b"c", b"d"])
        with structlog.testing.capture_logs(), pytest.raises(NotSentError, match="oh"):
            await producer.flush()
    whole_batch = point == "before_sending_data"
    assert [event.message for event in lost] == ([b"a", b"bad"] if whole_batch else [b"bad"])
    assert world.stored("t") == ([b"c", b"d"] if whole_batch else [b"a", b"c", b"d"])


async def test_callback_that_fails_at_close_loses_only_the_last_messages(world: Any) -> None:
    class Bad(CallbackHandler):
        def last_batch_before_close(self) -> Sequence[Event]:
            raise KeyError

    async with world.queued(callbacks=Bad()) as producer:
        await producer.send("t", [b"a"])
    assert world.stored("t") == [b"a"]


async def test_callback_of_a_send_raises_to_the_sender(world: Any) -> None:
    class Picky(CallbackHandler):
        def before_enqueue(self, event: Event) -> Event:
            if event.message == b"bad":
                raise ValueError("no such thing")
            return event

    async with world.queued(callbacks=Picky()) as producer:
        with pytest.raises(ValueError, match="no such thing"):
            await producer.send("t", [b"a", b"bad", b"c"])
        assert producer.stats.enqueued == 1
    assert world.stored("t") == [b"a"]


async def test_event_handler_replaces_encoding_and_sending(world: Any) -> None:
    batches: list[tuple[list[Any], bytes]] = []
    ended = []

    class Mine(EventHandler):
        async def handle(self, events: Sequence[Event], producer: Producer, encoder: Encoder) -> None:
            batches.append(([event.message for event in events], encoder.encode("é")))
            if events[0].message == "some":
                raise EventsFailedError([(events[1], KeyError("second"))])
            if events[0].message == "all":
                raise RuntimeError("all of them")
            await producer.send("mine", [str(len(events))])

        async def close(self) -> None:
            ended.append(True)

    async with world.queued(batch_size=2, event_handler=Mine()) as producer:
        for batch in ([1, 2], ["some", 4], ["all", 6]):
            await producer.send("t", batch)
            await world.settle()
        with pytest.raises(NotSentError, match=r"3 queued messages.*second"):
            await producer.flush()
    assert batches == [([1, 2], "é".encode()), (["some", 4], "é".encode()), (["all", 6], "é".encode())]
    assert world.stored("mine") == [b"2"]
    assert ended == [True]
    assert (producer.stats.sent, producer.stats.failed, producer.stats.batches) == (3, 3, 3)


async def test_rejects_an_oversize_message_even_if_compressed(world: Any, by_key: Any) -> None:
    """A message that is too large is found before anything goes out, also when it is compressed."""
    from consumerd.wire.v07 import Codec

    rng = world.rng
    producer = world.queued(world.producer(by_key, max_message_bytes=200, codec=Codec.GZIP))
    large = rng.randbytes(400)
    async with producer:
        await producer.send("t", [b"a", large, b"b"], key="k")
        with pytest.raises(NotSentError) as caught:
            await producer.flush()
        assert isinstance(caught.value.__cause__, MessageSizeTooLargeError)
    assert world.stored("t", 1) == [b"a", b"b"]
