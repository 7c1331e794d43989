"""What a feed skips because the target has it, and how it sends the rest; its producer only takes notes."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from consumerd.base.errors import HandlerFailedError
from consumerd.base.partition import UNKNOWN_LOG, LogId, TopicPartition
from consumerd.handlers import Batch, KeyedMessage
from consumerd.handlers.counts import TargetCounts
from consumerd.handlers.forward.errors import OtherLogError
from consumerd.handlers.forward.feed import PartitionFeed
from consumerd.handlers.forward.identity import SourceIdentity, SourceMark, read_identity
from consumerd.handlers.forward.settings import ForwardPlacing, ForwardResume, ForwardSettings
from consumerd.handlers.sparse_content import SparseContent
from consumerd.net.client.errors import BrokerRefusedError, error_of
from consumerd.net.client.settings import ClientSettings
from consumerd.producer.v08.batches import message_size
from consumerd.testing.clock import FakeClock
from consumerd.wire.crc import crc32
from consumerd.wire.v07 import Codec, decode_batch, encode_message_set
from consumerd.wire.v08.error_codes import ErrorCode

OLD, NEW = TopicPartition("t", 0, 1), TopicPartition.numbered("t", 1)
MESSAGES = [b"one", b"two", b"three"]


class Client:
    settings = ClientSettings()


class Producer:
    """Takes notes of what it is sent, and refuses batches of more than `most` messages with `error`."""

    def __init__(self, most: int = 1 << 30, error: int = ErrorCode.MESSAGE_TOO_LARGE) -> None:
        self.most, self.error = most, error
        #: Of each call the values and what they have in common.
        self.calls: list[tuple[list[Any], dict[str, Any]]] = []
        #: Of each flush the number of messages before it, and all messages that were acknowledged.
        self.flushed: list[int] = []
        self.taken: list[Any] = []
        self._open: list[tuple[Any, asyncio.Future[None]]] = []

    @property
    def sent(self) -> list[dict[str, Any]]:
        return [common for values, common in self.calls for _ in values]

    async def send(self, topic: str, value: Any, **common: Any) -> asyncio.Future[None]:
        return (await self._sent([value], topic, common))[0]

    async def send_many(self, topic: str, values: list[Any], **common: Any) -> Any:
        outcomes = await self._sent(values, topic, common)

        async def confirm() -> None:
            for outcome in outcomes:
                await outcome

        return SimpleNamespace(confirm=confirm)

    async def _sent(self, values: list[Any], topic: str, common: dict[str, Any]) -> list[asyncio.Future[None]]:
        assert topic == "t"
        self.calls.append((values, common))
        made = [(value, asyncio.get_running_loop().create_future()) for value in values]
        self._open += made
        return [outcome for _, outcome in made]

    async def flush(self) -> None:
        refused = error_of(self.error, "no") if len(self._open) > self.most else None
        self.flushed.append(len(self._open))
        for value, outcome in self._open:
            if refused:
                outcome.set_exception(refused)
                outcome.exception()  # the first one alone is awaited
            else:
                outcome.set_result(None)
                self.taken.append(value)
        self._open = []


def feed(source: TopicPartition, producer: Any = None, **settings: Any) -> PartitionFeed:
    settings = settings or {"resume": ForwardResume.TARGET}
    client: Any = Client()
    counts = TargetCounts()
    made = PartitionFeed(
        source, "t", 0, ForwardSettings(**settings), client, clock=FakeClock(), rng=random.Random(1), counts=counts
    )
    if producer is not None:
        made._producer = producer
    return made


def keyed(*messages: KeyedMessage, log: LogId = UNKNOWN_LOG, start: int | None = None) -> Batch:
    content = SparseContent(messages, log=log, contiguous=True)
    if start is not None:
        content.start_offset = start
    return Batch(messages[0].partition, content)


def message(offset: int, payload: bytes | None = b"x", *, source: TopicPartition = NEW, **fields: Any) -> KeyedMessage:
    return KeyedMessage(source, offset, 0, offset + 1, payload, None, -1, -1, ())._replace(**fields)


def batch(source: TopicPartition, start: int) -> Batch:
    return Batch(source, decode_batch(encode_message_set(MESSAGES), start))


@pytest.mark.parametrize("source", [OLD, NEW])
async def test_rejects_a_log_that_ends_before_what_the_target_has(source: TopicPartition) -> None:
    one = feed(source)
    one.known, one.began = SourceIdentity(source, 5000, 0, crc32(b"x")), 5000
    with pytest.raises(
        OtherLogError, match=r"restarts at offset 0, and the target has its message at offset 5000 already"
    ):
        await one.forward(batch(source, 0))
    again = feed(source)  # a batch that is delivered again, of which another process sent all
    again.known = SourceIdentity(source, 5000, 0, crc32(b"x"))
    whole = batch(source, 0)
    whole.mark(len(MESSAGES))
    await again.forward(whole)


async def test_skips_what_the_target_has() -> None:
    one, whole = feed(OLD), batch(OLD, 700)
    last = list(whole.messages())[-1]
    one.known, one.began = SourceIdentity(OLD, last.offset, 0, crc32(b"three")), 700
    await one.forward(whole)
    assert whole.handled == len(MESSAGES)
    one.known = SourceIdentity(OLD, last.offset, 0, crc32(b"else"))
    with pytest.raises(OtherLogError, match=f"offset {last.offset} of t/0-1 differs from the last one"):
        await one.forward(batch(OLD, 700))


async def test_takes_the_rest_of_a_compressed_message_whose_beginning_the_target_has() -> None:
    """Another attempt, in the same process, begins behind the message that the target has."""
    payloads = [b"one", b"two", b"three"]
    whole = Batch(OLD, decode_batch(encode_message_set(payloads, codec=Codec.GZIP), 700))
    rest = whole.rest(1)
    assert rest.start_offset == 700
    one = feed(OLD)
    one.known = SourceIdentity(OLD, 700, 0, crc32(b"one"))
    rest.mark(len(rest))  # nothing is left to send
    await one.forward(rest)
    other = feed(OLD)
    other.known = SourceIdentity(OLD, 700, 1, crc32(b"else"))
    with pytest.raises(OtherLogError, match="offset 700 of t/0-1 differs from the last one"):
        await other.forward(whole.rest(1))


async def test_all_of_a_topic_that_was_made_again_is_sent() -> None:
    former, present = LogId(b"\x01" * 16, 3), LogId(b"\x02" * 16, 0, 77)
    known = SourceIdentity(NEW, 1, 0, crc32(b"two"), None, former)  # the new log has the very same message there

    def messages(log: LogId) -> Batch:
        return keyed(*(message(at, each) for at, each in enumerate(MESSAGES)), log=log)

    for log, sent in ((present, 3), (former, 1), (former._replace(topic_id=None), 1)):
        producer = Producer()
        one = feed(NEW, producer)
        one.known = known
        await one.forward(messages(log))
        assert len(producer.sent) == sent
    one = feed(NEW, Producer())
    one.known, one.began = known._replace(offset=9), 9
    await one.forward(messages(present))
    one.known, one.began = known._replace(offset=9), 9
    with pytest.raises(OtherLogError, match="restarts at offset 0"):
        await one.forward(messages(former))


async def test_yields_to_others_while_it_compares_a_large_batch() -> None:
    count = 45_000
    whole = Batch(OLD, decode_batch(encode_message_set([b""] * count, codec=Codec.GZIP), 700))
    one, turns = feed(OLD), 0
    one.known = SourceIdentity(OLD, 700, count - 1, crc32(b""))
    forwarding = asyncio.create_task(one.forward(whole))
    while not forwarding.done():
        await asyncio.sleep(0)
        turns += 1
    await forwarding
    assert whole.handled == count
    assert 4 <= turns <= 10


async def test_headers_tell_the_log_that_each_message_was_read_from() -> None:
    logs = [LogId(), LogId(b"\x01" * 16, 3), LogId(b"\x01" * 16, 4), LogId(b"\x02" * 16, 0), LogId()]
    producer = Producer()
    one = feed(NEW, producer)
    for number, log in enumerate(logs):
        await one.forward(keyed(message(number), log=log))
    found = [read_identity(sent["headers"]) for sent in producer.sent]
    assert [each and each.log for each in found] == logs
    assert [name for name, _ in producer.sent[0]["headers"]] == [
        "consumerd.source." + name for name in ("topic", "partition", "offset", "index", "crc")
    ]


async def test_skips_what_stands_before_a_message_that_compaction_took_away() -> None:
    rest = keyed(message(0), message(1), message(3))
    producer = Producer()
    one = feed(NEW, producer)
    one.known = SourceIdentity(NEW, 2, 0, crc32(b"x"))
    with capture_logs() as logs:
        await one.forward(rest)
        await one.forward(keyed(message(4)))
    assert [read_identity(sent["headers"]) for sent in producer.sent] == [
        SourceIdentity(NEW, at, 0, crc32(b"x")) for at in (3, 4)
    ]
    assert [line["messages"] for line in logs if line["event"] == "forwarded_messages_skipped"] == [2]


async def test_compares_the_last_message_itself() -> None:
    """Not its neighbours, which may be equal; and a tombstone, which has no checksum."""
    one = feed(NEW, Producer())
    one.known = SourceIdentity(NEW, 1, 0, None)
    await one.forward(keyed(message(0), message(1, None), message(2)))
    whole = batch(OLD, 700)
    first, second, _ = whole.messages()
    for offset, checksum in ((first.offset + 1, b"one"), (second.offset, b"one"), (second.offset, b"three")):
        one = feed(OLD, Producer())
        one.known = SourceIdentity(OLD, offset, 0, crc32(checksum))
        with pytest.raises(OtherLogError, match=f"the message at offset {offset} of t/0-1 differs from the last one"):
            await one.forward(batch(OLD, 700))
    one = feed(OLD, Producer())  # a log whose message there cannot be read any more
    one.known = SourceIdentity(OLD, 700, 0, crc32(b"one"))
    with pytest.raises(OtherLogError, match="offset 700"):
        await one.forward(keyed(message(800, source=OLD), start=700))


@pytest.mark.parametrize("source", [OLD, NEW])
async def test_sends_all_of_a_batch_that_ends_before_what_the_target_has(source: TopicPartition) -> None:
    whole = batch(source, 0)
    producer = Producer()
    one = feed(source, producer)
    one.known = SourceIdentity(source, whole.next_offset, 0, crc32(b"x"))
    await one.forward(whole)
    assert producer.taken == MESSAGES


@pytest.mark.parametrize("headers", [True, False])
@pytest.mark.parametrize(("spare", "together"), [(-1, [2, 2, 2, 1]), (0, [3, 3, 1]), (1, [3, 3, 1])])
async def test_sends_as_many_messages_together_as_fit_into_a_chunk(
    headers: bool, spare: int, together: list[int]
) -> None:
    marked = SourceMark(NEW).headers(2**63 - 1, 2**63 - 1, b"") if headers else ()
    size = 61 + message_size(None, b"x", marked)  # a batch of its own, with the largest offset
    producer = Producer()
    one = feed(NEW, producer, headers=headers, chunk_bytes=3 * size + spare, max_message_bytes=size)
    whole = keyed(*(message(at) for at in range(7)))
    await one.forward(whole)
    assert producer.flushed == together
    assert whole.handled == 7
    with pytest.raises(HandlerFailedError, match=rf"offset 8 \(index 0\) of t/1 has {size + 1} bytes with its headers"):
        await one.forward(keyed(message(7), message(8, b"xx")))


@pytest.mark.parametrize(
    ("count", "most", "sizes", "later"),
    [
        (7, 2, [7, 4, 2, 2, 3, 2, 1], [1, 1, 1, 1]),
        (4, 2, [4, 2, 2], [2, 2]),
        (5, 4, [5, 3, 2], [2, 2]),
        (2, 1, [2, 1, 1], [1, 1, 1, 1]),
    ],
)
@pytest.mark.parametrize("headers", [True, False])
async def test_halves_a_chunk_that_is_too_large_for_the_target(
    headers: bool, count: int, most: int, sizes: list[int], later: list[int]
) -> None:
    producer = Producer(most)
    one = feed(NEW, producer, headers=headers)
    whole = keyed(*(message(at, b"%d" % at) for at in range(count)))
    await one.forward(whole)
    assert producer.flushed == sizes
    assert producer.taken == [b"%d" % at for at in range(count)]
    assert whole.handled == one._counts.confirmed["t"] == count
    assert one._counts.sent["t"] == sum(sizes)
    producer.flushed.clear()
    await one.forward(keyed(*(message(at) for at in range(4))))
    assert producer.flushed == later


@pytest.mark.parametrize(("error", "sizes"), [(ErrorCode.MESSAGE_TOO_LARGE, [4, 2, 1]), (ErrorCode.UNKNOWN, [4])])
async def test_raises_for_a_message_that_is_too_large_alone_and_for_other_errors_at_once(
    error: int, sizes: list[int]
) -> None:
    producer = Producer(0, error)
    one, whole = feed(NEW, producer), keyed(*(message(at) for at in range(4)))
    with pytest.raises(BrokerRefusedError):
        await one.forward(whole)
    assert producer.flushed == sizes
    assert whole.handled == 0
    assert whole.counted  # so that those who see the failure know that nothing arrived
    assert one._counts.confirmed["t"] == 0


@pytest.mark.parametrize(
    ("messages", "calls"),
    [
        ([message(0, b"a"), message(1, b"longer"), message(2, None)], 1),
        ([message(0, key=b"k"), message(1, key=b"k")], 1),
        ([message(0, key=b"k"), message(1, key=b"l")], 2),
        ([message(0, timestamp=5), message(1, timestamp=6)], 2),
        ([message(0, headers=(("own", b"1"),)), message(1)], 1),
    ],
)
async def test_sends_messages_in_one_call_that_differ_in_their_values_alone(
    messages: list[KeyedMessage], calls: int
) -> None:
    producer = Producer()
    await feed(NEW, producer, headers=False).forward(keyed(*messages))
    assert len(producer.calls) == calls
    assert producer.taken == [each.payload for each in messages]
    assert [sent["key"] for sent in producer.sent] == [each.key for each in messages]
    assert [sent["headers"] for sent in producer.sent] == [()] * len(messages)


async def test_sends_the_headers_of_a_message_alone_where_they_are_to_be_kept() -> None:
    producer = Producer()
    messages = [message(5, headers=(("own", None),)), message(6)]
    await feed(NEW, producer, headers=False, keep_headers=True).forward(keyed(*messages))
    assert [sent["headers"] for sent in producer.sent] == [(("own", None),), ()]


async def test_sends_the_headers_of_a_message_before_its_identity() -> None:
    producer = Producer()
    await feed(NEW, producer, cluster="dc").forward(keyed(message(5, headers=(("own", None),))))
    [sent] = producer.sent
    assert sent["headers"] == (("own", None), *SourceMark(NEW, "dc").headers(5, 0, b"x"))


@pytest.mark.parametrize(("kept", "timestamp", "sent"), [
    (True, -1, None), (True, 0, 0), (True, 7, 7), (False, -1, None), (False, 7, None),
])  # fmt: skip
async def test_keeps_the_timestamps_that_messages_have(kept: bool, timestamp: int, sent: int | None) -> None:
    producer = Producer()
    await feed(NEW, producer, keep_timestamps=kept).forward(keyed(message(0, timestamp=timestamp)))
    assert [each["timestamp"] for each in producer.sent] == [sent]


@pytest.mark.parametrize(
    ("own", "payload", "required", "key"),
    [
        (b"own", b"K-x", True, b"own"),
        (None, b"K-x", True, b"K"),
        (None, b"-x", False, None),
        (None, None, False, None),
        (None, b"-x", True, "fails"),
        (None, None, True, "fails"),
    ],
)
async def test_takes_the_key_of_a_message_else_one_from_its_payload(
    own: bytes | None, payload: bytes | None, required: bool, key: Any
) -> None:
    producer = Producer()
    one = feed(NEW, producer, key=lambda payload: payload.partition(b"-")[0] or None, key_required=required)
    whole = keyed(message(4, payload, key=own))
    if key == "fails":
        with pytest.raises(HandlerFailedError, match=r"offset 4 \(index 0\) of t/1 has no key, and key_missing is"):
            await one.forward(whole)
    else:
        await one.forward(whole)
    assert [sent["key"] for sent in producer.sent] == [] if key == "fails" else [key]


@pytest.mark.parametrize("placing", ForwardPlacing)
async def test_messages_without_a_key_are_placed_one_by_one_for_round_robin_only(placing: ForwardPlacing) -> None:
    producer = feed(NEW, placing=placing)._producer
    assert producer.settings.keyless == ("round_robin" if placing == "round_robin" else "sticky")
    assert not producer.settings.create_topics


async def test_sends_nothing_more_once_it_is_aborted() -> None:
    class Ending(Producer):
        ended = False

        async def abort(self) -> None:
            self.ended = True

    producer = Ending()
    await feed(NEW, producer).abort()
    assert producer.ended
