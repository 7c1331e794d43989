"""A feed skips the messages that were sent before; these tests send nothing."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from consumerd.client import ClientSettings
from consumerd.forward import ForwardResume, ForwardSettings, SourceIdentity, read_identity
from consumerd.forward.errors import OtherLogError
from consumerd.forward.feed import PartitionFeed
from consumerd.handlers import Batch, KeyedMessage
from consumerd.handlers.picked import PickedContent
from consumerd.partition import LogId, TopicPartition
from consumerd.testing.clock import FakeClock
from consumerd.wire.crc import crc32
from consumerd.wire.v07 import Codec, decode_batch, encode_message_set

pytestmark = pytest.mark.asyncio
OLD, NEW = TopicPartition("t", 0, 1), TopicPartition.numbered("t", 1)
MESSAGES = [b"one", b"two", b"three"]


class Client:
    settings = ClientSettings()


def feed(source: TopicPartition) -> PartitionFeed:
    settings = ForwardSettings(resume=ForwardResume.TARGET)
    client: Any = Client()
    return PartitionFeed(source, "t", 0, settings, client, clock=FakeClock(), rng=random.Random(1))


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


async def test_all_of_a_topic_that_was_made_again_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    former, present = LogId(b"\x01" * 16, 3), LogId(b"\x02" * 16, 0, 77)
    known = SourceIdentity(NEW, 1, 0, crc32(b"two"), None, former)  # the new log has the very same message there

    def messages(log: LogId) -> Batch:
        found = [KeyedMessage(NEW, at, 0, at + 1, each, None, 1, 0, ()) for at, each in enumerate(MESSAGES)]
        return Batch(NEW, PickedContent(found, log=log, contiguous=True))

    for log, sent in ((present, 3), (former, 1), (former._replace(topic_id=None), 1)):
        one, producer = feed(NEW), Producer()
        monkeypatch.setattr(one, "_producer", producer)
        one.known = known
        await one.forward(messages(log))
        assert len(producer.sent) == sent
    one = feed(NEW)
    one.known, one.began = known._replace(offset=9), 9
    monkeypatch.setattr(one, "_producer", Producer())
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
    assert turns >= 4


class Producer:
    """Acknowledges what it is sent."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    async def send(self, _topic: str, _value: bytes, *, headers: Any, **_rest: Any) -> asyncio.Future[None]:
        self.sent.append(headers)
        acknowledged: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        acknowledged.set_result(None)
        return acknowledged

    async def flush(self) -> None: ...


async def test_headers_tell_the_log_that_each_message_was_read_from(monkeypatch: pytest.MonkeyPatch) -> None:
    logs = [LogId(), LogId(b"\x01" * 16, 3), LogId(b"\x01" * 16, 4), LogId(b"\x02" * 16, 0), LogId()]
    one, producer = feed(NEW), Producer()
    monkeypatch.setattr(one, "_producer", producer)
    for number, log in enumerate(logs):
        message = KeyedMessage(NEW, number, 0, number + 1, b"x", None, 1, 0, ())
        await one.forward(Batch(NEW, PickedContent([message], log=log, contiguous=True)))
    found = [read_identity(headers) for headers in producer.sent]
    assert [each and each.log for each in found] == logs
    assert [name for name, _ in producer.sent[0]] == [
        "consumerd.source." + name for name in ("topic", "partition", "offset", "index", "crc")
    ]
