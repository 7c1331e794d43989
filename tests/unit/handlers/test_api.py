from __future__ import annotations

import asyncio
import copy
import itertools
import pickle
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from itertools import islice
from typing import Any, cast

import pytest

from consumerd.base import native
from consumerd.base.partition import TopicPartition
from consumerd.handlers import Batch, Handler, HandlerContext, Identity, Message, make_handler, message_handler
from consumerd.handlers.sparse_content import SparseContent
from consumerd.wire.v07 import decode_batch, encode_message_set
from tests.support.waiting import cancel

MakeBatch = Callable[..., Batch]


pytestmark = pytest.mark.usefixtures("either_codec")

HEAD = 10  # bytes of a plain message beside its payload


def test_batch_is_a_sequence_of_payloads_with_their_identity(make_batch: MakeBatch) -> None:
    batch = make_batch(b"one", b"two", b"three", start=100, topic="events", broker=3, partition=7)
    assert list(batch) == [b"one", b"two", b"three"]
    assert len(batch) == 3
    assert batch[1] == b"two"
    assert batch[-2:] == [b"two", b"three"]
    assert b"two" in batch
    assert batch.index(b"three") == 2
    assert batch.partition == TopicPartition("events", 3, 7)
    assert (batch.topic, batch.broker) == ("events", 3)
    assert (batch.start_offset, batch.next_offset) == (100, 100 + 3 * HEAD + 11)
    assert not make_batch()


def test_messages_of_a_compressed_message_have_their_whole_identity(make_batch: MakeBatch) -> None:
    batch = make_batch(b"a", [b"b", b"c"], b"d")
    inside = HEAD + 1
    after = batch.next_offset - HEAD - 1
    found = list(batch.messages())
    assert [m.identity for m in found] == [
        Identity("t", 0, 0, 0, 0),
        Identity("t", 0, 0, inside, 0),
        Identity("t", 0, 0, inside, 1),
        Identity("t", 0, 0, after, 0),
    ]
    assert [m.next_offset for m in found] == [inside, inside, after, batch.next_offset]
    assert [m.payload for m in found] == [b"a", b"b", b"c", b"d"]
    assert (found[0].topic, found[0].broker, found[0].partition) == ("t", 0, TopicPartition("t", 0, 0))


def test_messages_of_a_batch_are_like_any_others(make_batch: MakeBatch) -> None:
    (message,) = make_batch(b"a").messages()
    partition = TopicPartition("t", 0, 0)
    made = Message(partition, message.offset, 0, message.next_offset, b"a")
    assert isinstance(message, Message)
    assert isinstance(message, tuple)
    assert (message, repr(message), hash(message)) == (made, repr(made), hash(made))
    assert (message == made, made == message, message == tuple(made), message != made) == (True, True, True, False)
    assert message._replace(payload=b"b") == made._replace(payload=b"b")
    for same in (pickle.loads(pickle.dumps(message)), copy.copy(message), copy.deepcopy(message)):
        assert (type(same), same) == (Message, made)
    assert (*message,) == (*made,) == (partition, 0, 0, message.next_offset, b"a")
    assert (len(message), message[-1], message[1:3], b"a" in message) == (5, b"a", (0, 0), True)
    assert message + (1,) == (*made, 1)  # noqa: RUF005 - this is what is tested
    assert message < made._replace(payload=b"b") < Message(partition, 1, 0, 2, b"")
    assert message._asdict() == made._asdict()
    assert (message.topic, message.broker, message.identity) == ("t", 0, made.identity)
    assert (message.value, message.key, message.timestamp, message.headers) == (b"a", None, -1, ())
    assert not hasattr(message, "timestamp_type")
    with pytest.raises(AttributeError, match="'Message' object has no attribute 'text'"):
        _ = cast("Any", message).text
    with pytest.raises(AttributeError):
        cast("Any", message).payload = b"b"
    match message:
        case Message(payload=payload):
            assert payload == b"a"
        case _:
            raise AssertionError("the pattern does not match")
    match message:
        case (_, 0, 0, _, payload):
            assert payload == b"a"
        case _:
            raise AssertionError("the pattern does not match")


def test_a_message_that_is_kept_does_not_hold_the_batch() -> None:
    data = encode_message_set([b"x" * 100] * 100)
    before = sys.getrefcount(data)
    batch = Batch(TopicPartition("t", 0, 0), decode_batch(data, 0))
    assert (sys.getrefcount(data) > before) == (native.codec() is not None)
    kept = next(batch.messages())
    del batch
    assert (kept.payload, sys.getrefcount(data)) == (b"x" * 100, before)


@pytest.mark.parametrize(
    "kept", [{0}, {63}, {64}, {1, 5, 64, 130, 199}, set(range(1, 200, 3)), set(range(200))], ids=len
)
async def test_messages_that_are_kept_stay_as_they_were(kept: set[int]) -> None:
    payloads = [b"%d" % number for number in range(200)]
    batch = Batch(TopicPartition("t", 0, 0), decode_batch(encode_message_set(payloads), 0))
    expected = list(batch.messages_as(Message._make, batch.partition))
    handled: dict[int, Message] = {}
    numbers = itertools.count()

    @message_handler
    def keep(message: Message) -> None:
        if (number := next(numbers)) in kept:
            handled[number] = message

    await keep.handle(batch)
    iterated = {number: message for number, message in enumerate(batch.messages()) if number in kept}
    wanted = {number: expected[number] for number in sorted(kept)}
    assert (handled, iterated) == (wanted, wanted)


async def test_the_native_codec_makes_no_objects_for_messages_that_nobody_keeps() -> None:
    payloads = [b"%d" % number for number in range(1000)]
    batch = Batch(TopicPartition("t", 0, 0), decode_batch(encode_message_set(payloads), 0))
    objects: set[int] = set()
    read: list[bytes] = []

    @message_handler
    async def read_one(message: Message) -> None:
        objects.add(id(message))
        read.append(message.payload)

    await read_one.handle(batch)
    assert read == payloads
    if native.codec() is not None:
        # The first list's and the shorter last one's; the message in hand when a list is made is replaced in it.
        assert len(objects) <= 2 * 64


def test_rest_starts_at_the_first_unmarked_message(make_batch: MakeBatch) -> None:
    batch = make_batch(b"a", [b"b", b"c"], b"d")
    assert batch.rest(0) is batch
    rest = batch.rest(2)  # in the middle of the compressed message
    assert list(rest) == [b"c", b"d"]
    assert len(rest) == 2
    assert rest[0] == b"c"
    assert rest.start_offset == HEAD + 1
    assert rest.next_offset == batch.next_offset
    assert list(rest.messages()) == list(batch.messages())[2:]
    assert [rest.prefix(n) for n in range(3)] == [batch.prefix(n) for n in (2, 3, 4)]
    assert list(rest.rest(1)) == [b"d"]


def test_marks_only_move_forward_within_the_batch(make_batch: MakeBatch) -> None:
    batch = make_batch(b"a", b"b")
    assert (batch.handled, batch.counted) == (0, False)
    batch.mark(1)
    assert (batch.handled, batch.counted) == (1, True)
    for wrong in (0, 3):
        with pytest.raises(ValueError, match="cannot mark"):
            batch.mark(wrong)


async def test_message_handler_runs_in_order_and_marks_each_message(make_batch: MakeBatch) -> None:
    seen: list[Message] = []

    @message_handler
    async def collect(message: Message) -> None:
        """Collect."""
        if message.payload == b"poison":
            raise ValueError(message.payload)
        seen.append(message)

    batch = make_batch(b"a", b"b", b"poison", b"c")
    with pytest.raises(ValueError, match="poison"):
        await collect.handle(batch)
    assert [m.payload for m in seen] == [b"a", b"b"]
    assert batch.handled == 2
    assert isinstance(collect, Handler)
    assert collect.__doc__ == "Collect."
    await collect(next(batch.messages()))  # the function itself, for its own tests
    assert len(seen) == 3


async def test_continues_after_the_marked_messages_of_a_batch(make_batch: MakeBatch) -> None:
    seen: list[bytes] = []

    @message_handler
    async def collect(message: Message) -> None:
        seen.append(message.payload)

    batch = make_batch(b"a", b"b", b"c")
    batch.mark(1)
    await collect.handle(batch)
    assert seen == [b"b", b"c"]
    assert batch.handled == 3


async def test_decorator_works_on_a_method(make_batch: MakeBatch) -> None:
    class Words:
        def __init__(self) -> None:
            self.seen: list[bytes] = []

        @message_handler
        async def handle(self, message: Message) -> None:
            self.seen.append(message.payload)

    words = Words()
    await words.handle(make_batch(b"a", b"b"))
    assert words.seen == [b"a", b"b"]


def test_decorator_rejects_what_is_not_a_function_of_a_message() -> None:
    def generator(message: Message) -> Iterator[Message]:
        yield message

    async def asynchronous(message: Message) -> AsyncIterator[Message]:
        yield message

    wrong: list[Any] = [generator, asynchronous, Message, staticmethod(print), "print", None]
    for each in wrong:
        with pytest.raises(TypeError, match="requires a `def` or `async def` of one message"):
            message_handler(each)


async def test_a_plain_function_is_called_with_each_message_and_marked(make_batch: MakeBatch) -> None:
    seen: list[tuple[bytes, int]] = []

    @message_handler
    def collect(message: Message) -> bool:
        if message.payload == b"poison":
            raise ValueError(message.payload)
        seen.append((message.payload, batch.handled))
        return True

    class Words:
        @message_handler
        def handle(self, message: Message) -> None:
            seen.append((message.payload, -1))

    batch = make_batch(*[b"%d" % number for number in range(40)], b"poison", b"last")
    with pytest.raises(ValueError, match="poison"):
        await collect.handle(batch)
    assert seen == [(b"%d" % number, number) for number in range(40)]
    assert (batch.handled, batch.counted) == (40, True)
    assert collect(next(batch.messages())) is True
    seen.clear()
    handler = make_handler(Words)
    await handler.handle(batch.rest(41))
    assert seen == [(b"last", -1)]


async def test_what_a_plain_function_returns_is_awaited_before_the_next_message(make_batch: MakeBatch) -> None:
    seen: list[bytes] = []

    def decorated(function: Callable[[Message], Awaitable[None]]) -> Callable[[Message], Awaitable[None]]:
        def wrapper(message: Message) -> Awaitable[None]:
            return function(message)

        return wrapper

    @message_handler
    @decorated
    async def collect(message: Message) -> None:
        seen.append(b"begin " + message.payload)
        await asyncio.sleep(0)
        seen.append(b"end " + message.payload)

    batch = make_batch(b"a", b"b")
    await collect.handle(batch)
    assert seen == [b"begin a", b"end a", b"begin b", b"end b"]
    assert batch.handled == 2


async def test_progress_is_seen_at_each_message_while_it_waits(make_batch: MakeBatch) -> None:
    steps: asyncio.Queue[bytes] = asyncio.Queue()
    go = asyncio.Semaphore(0)

    @message_handler
    async def work(message: Message) -> None:
        steps.put_nowait(message.payload)
        await go.acquire()

    batch = make_batch(*[b"%d" % number for number in range(40)])
    task = asyncio.create_task(work.handle(batch))
    for number in range(35):
        assert await steps.get() == b"%d" % number
        assert batch.handled == number
        go.release()
    assert await steps.get() == b"35"
    await cancel(task)
    assert task.cancelled()
    assert batch.handled == 35


@pytest.mark.parametrize("slow", [0, 20])
async def test_all_that_was_called_is_marked_when_it_is_cancelled_between_two_messages(
    make_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch, slow: int
) -> None:
    now, called = 0.0, 0

    @message_handler
    def work(message: Message) -> None:
        nonlocal now, called
        called += 1
        now += 0.03 if called > slow else 0.0

    monkeypatch.setattr(time, "monotonic", lambda: now)
    batch = make_batch(*[b"x"] * 100)
    task = asyncio.create_task(work.handle(batch))
    await asyncio.sleep(0)  # until it yields
    assert batch.handled == called
    assert slow < called < 100
    await cancel(task)
    assert task.cancelled()
    assert (batch.handled, batch.counted) == (called, True)


async def test_all_before_a_message_that_cannot_be_made_are_marked() -> None:
    class Broken(SparseContent):
        def messages_as(self, *arguments: Any, **options: Any) -> Iterator[Any]:
            yield from islice(super().messages_as(*arguments, **options), 33)
            raise ValueError("broken")

    called: list[Message] = []
    partition = TopicPartition("t", 0, 0)
    batch = Batch(partition, Broken([Message(partition, number, 0, number + 1, b"") for number in range(40)]))
    with pytest.raises(ValueError, match="broken"):
        await message_handler(called.append).handle(batch)
    assert len(called) == batch.handled > 20


async def test_optional_methods_have_defaults(make_batch: MakeBatch, clock: Any) -> None:
    class Mine(Handler):
        async def handle(self, batch: Batch) -> None:
            batch.mark(len(batch))

    mine = Mine()
    await mine.start(HandlerContext("g", "g_1", clock))
    assert await mine.position(TopicPartition("t", 0, 0)) is None
    await mine.stop()


def test_rest_is_the_same_wherever_it_begins(make_batch: MakeBatch) -> None:
    plain = [b"%d" % number for number in range(1500)]  # more than are made at once
    batch = make_batch(*plain, [], [b"x"] * 1100, b"last", [b"a", b"b"], [], start=70)
    messages, payloads = list(batch.messages()), list(batch)
    for done in (*range(len(batch) + 1), 1, 1499):  # also backwards
        rest = batch.rest(done)
        assert next(rest.messages(), None) == (messages[done] if done < len(messages) else None)
        if done % 97 == 0 or done > len(batch) - 5:
            assert list(rest.messages()) == messages[done:]
            assert list(rest) == payloads[done:]


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("cost", [0.0001, 0.005, 0.1])
async def test_message_handler_yields_soon_after_its_time(
    make_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch, cost: float, plain: bool
) -> None:
    now = looks = before = 0.0
    spans: list[float] = []

    def monotonic() -> float:
        nonlocal looks
        looks += 1
        return now

    def work(message: Message) -> None:
        nonlocal now
        now += cost

    async def asynchronous_work(message: Message) -> None:
        work(message)

    handler = message_handler(work if plain else asynchronous_work)

    async def other() -> None:
        nonlocal before
        while True:
            spans.append(now - before)
            before = now
            await asyncio.sleep(0)

    monkeypatch.setattr(time, "monotonic", monotonic)
    batch = make_batch(*[b"x"] * 1000)
    others = asyncio.ensure_future(other())
    await handler.handle(batch)
    others.cancel()
    assert batch.handled == 1000
    assert max(spans) <= 0.02 + cost + 1e-9
    assert looks < 1000 / 10 or cost > 0.0001


async def test_message_handler_that_never_waits_yields_to_other_tasks(make_batch: MakeBatch) -> None:
    turns = handled = 0

    @message_handler
    async def handler(message: Message) -> None:
        nonlocal handled
        time.sleep(0.001)
        handled += 1

    async def count() -> None:
        nonlocal turns
        while handled < 100:
            await asyncio.sleep(0)
            turns += 0 < handled < 100

    await asyncio.gather(count(), handler.handle(make_batch(*[b"x"] * 100)))
    assert turns
