"""A batch on its way through a stream: what is in use, what is marked, and how it ends."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from consumerd.base.partition import TopicPartition
from consumerd.handlers import Batch
from consumerd.member.consumer.sinks import HandedBackError
from consumerd.member.consumer.streams import MessageStream, StreamedBatch, StreamSink
from consumerd.wire.v07 import Codec, decode_batch, encode_message_set

TP = TopicPartition("t", 0, 1)


def batch(*message_sets: bytes) -> Batch:
    return Batch(TP, decode_batch(b"".join(message_sets), 0))


def five() -> Batch:
    return batch(encode_message_set([b"%d" % number for number in range(5)]))


class Stream:
    """Notes the calls of its sinks, and the deliveries that they are about."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.delivery = cast("StreamedBatch", None)

    def offer(self, delivery: StreamedBatch) -> None:
        self._note("offer", delivery)

    def withdraw(self, delivery: StreamedBatch) -> None:
        self._note("withdraw", delivery)

    def reconsider(self, delivery: StreamedBatch) -> None:
        self._note("reconsider", delivery)

    def _note(self, call: str, delivery: StreamedBatch) -> None:
        self.calls.append(call)
        self.delivery = delivery


class Setup:
    """A sink whose stream has a batch of five messages."""

    def __init__(self) -> None:
        self.stream = Stream()
        self.sink = StreamSink(cast("MessageStream", self.stream), lambda: True)
        self.batch = five()

    async def begin(self) -> asyncio.Task[None]:
        handling = asyncio.create_task(self.sink.handle(self.batch))
        await asyncio.sleep(0)
        return handling


async def delivery_of(whole: Batch) -> StreamedBatch:
    stream = Stream()
    return StreamedBatch(
        whole, StreamSink(cast("MessageStream", stream), lambda: True), asyncio.get_running_loop().create_future()
    )


async def test_boundaries_are_the_ends_of_outer_messages() -> None:
    delivery = await delivery_of(
        batch(
            encode_message_set([b"a", b"b"], codec=Codec.GZIP),
            encode_message_set([b"c"]),
            encode_message_set([b"d", b"e"], codec=Codec.GZIP),
        )
    )
    boundaries = []
    for handled in range(6):
        delivery.handled = handled
        boundaries.append(delivery.at_boundary)
    assert boundaries == [True, False, True, True, False, True]


async def test_messages_are_in_use_from_their_delivery_until_they_are_handled() -> None:
    delivery = await delivery_of(five())
    in_use = []
    for delivery.taken, delivery.handled in [(0, 0), (2, 0), (2, 1), (2, 2)]:
        in_use.append(delivery.in_use)
    assert in_use == [False, True, True, False]


async def test_gives_the_remaining_messages_as_one_batch() -> None:
    whole = five()
    delivery = await delivery_of(whole)
    assert [next(delivery.messages).payload for _ in range(2)] == [b"0", b"1"]
    delivery.taken = delivery.handled = 2
    given = delivery.give()
    assert list(given) == [b"2", b"3", b"4"]
    assert (list(delivery.messages), delivery.taken) == ([], 5)
    delivery.settle()
    assert whole.handled == 2
    given.mark(1)
    delivery.settle()
    assert whole.handled == 3
    delivery.handled = 5
    delivery.settle()
    assert whole.handled == 5


async def test_gives_a_batch_of_which_nothing_was_taken_as_it_is() -> None:
    whole = five()
    delivery = await delivery_of(whole)
    assert delivery.give() is whole
    delivery.settle()
    assert not whole.counted  # the program has marked nothing
    whole.mark(4)
    delivery.settle()
    assert whole.handled == 4


async def test_sink_offers_a_batch_until_it_ends() -> None:
    setup = Setup()
    handling = await setup.begin()
    assert setup.stream.calls == ["offer"]
    setup.stream.delivery.handled = 2
    setup.sink.settle()
    assert setup.batch.handled == 2
    setup.stream.delivery.handled = 5
    setup.stream.delivery.end(whole=True)
    setup.stream.delivery.end(whole=False)  # too late
    await handling
    assert setup.batch.handled == 5
    assert setup.stream.calls == ["offer", "withdraw"]
    # Nothing is delivered now.
    setup.sink.settle()
    setup.sink.discard()
    setup.sink.hold(True)
    setup.sink.hold(False)
    setup.sink.wind_down()
    assert setup.stream.calls == ["offer", "withdraw"]


@pytest.mark.parametrize("cancelled", [True, False])
async def test_sink_marks_what_was_handled_of_a_batch_that_is_not(cancelled: bool) -> None:
    setup = Setup()
    handling = await setup.begin()
    setup.stream.delivery.handled = 2
    if cancelled:
        handling.cancel()
    else:
        setup.stream.delivery.end(whole=False)
    with pytest.raises(asyncio.CancelledError if cancelled else HandedBackError):
        await handling
    assert setup.batch.handled == 2
    assert setup.stream.calls == ["offer", "withdraw"]


async def test_sink_that_winds_down_begins_nothing() -> None:
    setup = Setup()
    handling = await setup.begin()
    before = setup.sink.winding
    setup.sink.wind_down()
    assert (before, setup.sink.winding) == (False, True)
    assert setup.stream.calls == ["offer", "reconsider"]
    setup.stream.delivery.end(whole=True)
    await handling
    with pytest.raises(HandedBackError):
        await setup.sink.handle(five())
    assert setup.stream.calls == ["offer", "reconsider", "withdraw"]


async def test_discarded_batch_is_withdrawn_at_once_and_given_back() -> None:
    setup = Setup()
    handling = await setup.begin()
    setup.sink.discard()
    assert setup.stream.calls == ["offer", "withdraw"]
    with pytest.raises(HandedBackError):
        await handling


async def test_sink_offers_nothing_while_it_holds() -> None:
    setup = Setup()
    setup.sink.hold(True)
    handling = await setup.begin()
    assert setup.stream.calls == []
    setup.sink.hold(False)
    assert setup.stream.calls == ["offer"]
    setup.sink.hold(True)
    assert setup.sink.held
    assert setup.stream.calls == ["offer", "reconsider"]
    setup.stream.delivery.end(whole=True)
    await handling
