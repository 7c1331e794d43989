"""A batch and the queue of its partition: what it holds in each format, its size, its outcome, and when it may go."""

from __future__ import annotations

import asyncio
import gc
import struct
from typing import Any

import pytest

from consumerd.base.partition import TopicPartition
from consumerd.producer.v08.batches import BatchRange, Deliveries, PartitionQueue, ProducerBatch, message_size
from consumerd.wire.errors import EncodeError
from consumerd.wire.v08.records import RecordCodec, decode_records

PLACE = TopicPartition.numbered("t", 3)
HEADERS = (("h", b"v"),)


def batch(due: float = 0.0) -> ProducerBatch:
    return ProducerBatch(PLACE, due, asyncio.get_running_loop().create_future())


@pytest.mark.usefixtures("either_codec")
@pytest.mark.parametrize("codec", [RecordCodec.NONE, RecordCodec.GZIP])
@pytest.mark.parametrize("magic", [0, 1, 2])
async def test_keeps_keys_times_and_headers_with_their_messages(magic: int, codec: RecordCodec) -> None:
    made = batch()
    first = made.add(None, b"0", 10, (), 1)
    made.extend(None, [b"1", None], 20, (), 2)
    single = made.add(b"k", b"3", 30, (), 3)
    made.add(None, b"4", 40, (), 4)
    part = made.extend(b"l", [b"5", b"6"], 50, HEADERS if magic == 2 else (), 5)
    made.add(b"m", b"7", 60, HEADERS if magic == 2 else (), 6)
    made.extend(None, [b"8"], 70, (), 7)
    assert (first, single, part) == ((made, 0), (made, 3), BatchRange(made, 5, 2))
    assert made.size == 28
    data = made.encode(magic, codec)
    assert data[16] == magic
    if magic == 2:  # without a producer id
        assert struct.unpack_from(">qhi", data, 43) == (-1, -1, -1)
    records = decode_records(data, 0)
    assert records.problem is None
    found = list(records.messages())
    assert [each.payload for each in found] == [b"0", b"1", None, *(b"%d" % n for n in range(3, 9))]
    assert [each.key for each in found] == [None, None, None, b"k", None, b"l", b"l", b"m", None]
    if magic:
        assert [each.timestamp for each in found] == [10, 20, 20, 30, 40, 50, 50, 60, 70]
    if magic == 2:
        assert [each.headers for each in found] == [(), (), (), (), (), HEADERS, HEADERS, HEADERS, ()]


async def test_messages_without_keys_and_headers_take_no_room_for_them() -> None:
    made = batch()
    made.add(None, b"0", 10, (), 1)
    made.extend(None, [b"1", b"2"], 20, (), 2)
    assert (made.keys, made.headers, made.leased) == (None, {}, False)


async def test_formats_before_0_11_cannot_hold_headers() -> None:
    made = batch()
    made.add(None, b"x", 0, HEADERS, 1)
    with pytest.raises(EncodeError, match=r"brokers before 0\.11 do not support headers"):
        made.encode(1, RecordCodec.NONE)


@pytest.mark.usefixtures("either_codec")
@pytest.mark.parametrize(
    ("key", "value", "headers", "size"),
    [
        (None, None, (), 36),
        (None, b"1234", (), 36 + 4),
        (b"12", b"1234", (), 36 + 6),
        (b"12", None, (("abc", b"12345"),), 36 + 2 + 10 + 3 + 5),
        (None, None, (("abc", None), ("дд", b"1")), 36 + 10 + 3 + 10 + 8 + 1),
    ],
)
async def test_size_of_a_message_is_at_least_what_it_adds_to_a_batch(
    key: bytes | None, value: bytes | None, headers: Any, size: int
) -> None:
    assert message_size(key, value, headers) == size
    lengths = []
    for count in (1, 2):
        made = batch()
        for _ in range(count):
            made.add(key, value, 1 << 40, headers, size)
        lengths.append(len(made.encode(2, RecordCodec.NONE)))
    assert 0 < lengths[1] - lengths[0] <= size


async def test_first_outcome_stands() -> None:
    for begin, end in ((0, 1), (1, 0)):
        made = batch()
        deliveries: Any = Deliveries([BatchRange(made, 2, 2)])
        outcomes: list[Any] = [lambda made=made: made.succeed(5, 77), lambda made=made: made.fail(ValueError("no"))]
        assert not deliveries.done
        outcomes[begin]()
        outcomes[end]()
        assert deliveries.done
        if begin == 0:
            assert await deliveries == [(PLACE, 7, 77), (PLACE, 8, 77)]
            assert await deliveries[1] == (PLACE, 8, 77)
        else:
            with pytest.raises(ValueError, match="no"):
                await deliveries[0]
    made = batch()
    made.succeed(None, -1)
    assert await Deliveries([BatchRange(made, 0, 1)]) == [(PLACE, None, -1)]
    assert await Deliveries([BatchRange(made, 0, 1)])[0] == (PLACE, None, -1)


async def test_failure_that_nobody_awaits_is_not_an_unhandled_error() -> None:
    unhandled: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
    made = batch()
    made.fail(ValueError("no"))
    del made
    gc.collect()
    assert unhandled == []


async def test_batch_may_go_when_it_is_due_and_nothing_holds_its_partition_back() -> None:
    queue: Any = PartitionQueue(PLACE)
    queue.seal()
    assert queue.ready_at(5.0, hurry=False) is None
    queue.open = first = batch(due=7.0)
    assert queue.ready_at(5.0, hurry=False) == 7.0
    queue.not_before = 8.0
    assert queue.ready_at(5.0, hurry=False) == 8.0
    queue.seal()
    assert (queue.open, list(queue.sealed)) == (None, [first])
    assert queue.ready_at(5.0, hurry=False) == 8.0
    assert queue.ready_at(9.0, hurry=False) == 9.0
    queue.open = second = batch(due=6.0)
    queue.busy = True
    assert queue.ready_at(9.0, hurry=False) is None
    queue.seal()
    assert list(queue.sealed) == [first, second]
