"""The handler around its feeds: when one begins, ends and begins again, and which errors stop the daemon."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from structlog.testing import capture_logs

from consumerd.base.errors import HandlerFailedError
from consumerd.base.partition import LogId, TopicPartition
from consumerd.handlers import Batch, HandlerContext, SinkPosition
from consumerd.handlers.forward import handler as tested
from consumerd.handlers.forward.handler import ForwardHandler
from consumerd.handlers.forward.identity import SourceIdentity
from consumerd.handlers.forward.mapping import BrokerMajorNumbering, TopicNaming
from consumerd.handlers.forward.settings import ForwardResume, ForwardSettings
from consumerd.handlers.forward.target_log import LogBounds
from consumerd.net.client.errors import AuthenticationError, NoBrokerReachedError
from consumerd.testing.clock import FakeClock
from consumerd.wire.v07 import decode_batch, encode_message_set

SOURCE = TopicPartition("t", 1, 4)
KNOWN = SourceIdentity(SOURCE, 70, 2, None, None, LogId(b"\x01" * 16, 3))


class Client:
    """The target: three partitions of every topic, at brokers that support headers from `headers_since` on."""

    def __init__(self, error: Exception | None = None, headers: bool = True) -> None:
        self.error, self.headers = error, headers
        self.closed = False
        self.metadata = SimpleNamespace(topics={"t": SimpleNamespace(partitions=dict.fromkeys(range(3)))})
        self.channel = SimpleNamespace(address="h:9", versions=self)

    def has(self, api: Any, version: int) -> bool:
        return self.headers

    async def any_channel(self) -> Any:
        return self.channel

    async def refresh(self) -> None:
        if self.error:
            raise self.error

    async def retrying(self, what: str, ask: Any) -> Any:
        assert what == "find the target"
        return await ask()

    async def close(self) -> None:
        self.closed = True


class Feed:
    """A feed that takes notes, or fails with `error`."""

    made: ClassVar[list[Feed]]
    error: BaseException | None

    def __init__(self, source: TopicPartition, topic: str, place: int, *_: Any, counts: Any, **__: Any) -> None:
        self.source, self.topic, self.place = source, topic, place
        self.known: Any = None
        self.began: int | None = None
        self.transactions: Any = None
        self.did: list[str] = []
        self._counts = counts
        self.made.append(self)

    async def open(self) -> None:
        self.did.append("open")

    async def abort(self) -> None:
        self.did.append("abort")

    async def forward(self, batch: Batch) -> None:
        self.did.append("forward")
        batch.mark(1)
        self._counts.confirmed["t"] += 1
        if self.error:
            raise self.error


@pytest.fixture
def feeds(monkeypatch: pytest.MonkeyPatch) -> type[Feed]:
    class Fresh(Feed):
        made: ClassVar[list[Feed]] = []
        error = None

    async def last(*_: Any) -> SourceIdentity | None:
        return KNOWN

    monkeypatch.setattr(tested, "PartitionFeed", Fresh)
    monkeypatch.setattr(tested, "last_forwarded", last)
    return Fresh


def handler_of(client: Client, naming: TopicNaming | None = None, **settings: Any) -> ForwardHandler:
    def make(*_: Any) -> Any:
        return client

    return ForwardHandler(
        make, naming or TopicNaming(), BrokerMajorNumbering(), ForwardSettings(**settings), rng=random.Random(1)
    )


async def started(client: Client | None = None, naming: TopicNaming | None = None, **settings: Any) -> ForwardHandler:
    handler = handler_of(client or Client(), naming, **settings)
    await handler.start(HandlerContext("g", "m", FakeClock()))
    return handler


def batch(source: TopicPartition = SOURCE) -> Batch:
    return Batch(source, decode_batch(encode_message_set([b"one", b"two"]), 0))


@pytest.mark.parametrize("headers", [True, False])
async def test_starts_at_a_target_that_supports_what_is_set(headers: bool) -> None:
    await started(Client(headers=headers), headers=headers)
    await started(Client(headers=True), headers=False)
    with pytest.raises(HandlerFailedError, match=r"h:9 is older than 0\.11 and does not support headers"):
        await started(Client(headers=False), headers=True)
    with pytest.raises(HandlerFailedError, match=r"h:9 is older than 2\.5, and positions in transactions"):
        await started(Client(headers=False), headers=False, exactly_once=True)
    with pytest.raises(HandlerFailedError, match="cannot forward: no broker"):
        await started(Client(NoBrokerReachedError("no broker")))


async def test_sends_each_partition_through_a_feed_of_its_own_until_it_stops(feeds: type[Feed]) -> None:
    client = Client()
    handler = await started(client)
    other = TopicPartition("t", 0, 1)
    for source in (SOURCE, other, SOURCE):
        await handler.handle(batch(source))
    assert [(feed.source, feed.topic, feed.place, feed.did) for feed in feeds.made] == [
        (SOURCE, "t", 5 % 3, ["open", "forward", "forward"]),
        (other, "t", 1, ["open", "forward"]),
    ]
    assert all(feed.known is None for feed in feeds.made)  # resumes at the committed offset
    assert handler.sent == 3
    await handler.stop()
    assert [feed.did[-1] for feed in feeds.made] == ["abort", "abort"]
    assert client.closed
    await handler_of(Client()).stop()  # one that was never started


async def test_position_is_that_of_the_last_message_on_the_target(feeds: type[Feed]) -> None:
    handler = await started(resume=ForwardResume.TARGET)
    for _ in range(2):  # begun again after a failure
        position = await handler.position(SOURCE)
        assert position == SinkPosition(70, KNOWN.log.topic_id_text, 3)
    first, second = feeds.made
    assert first.did == ["open", "abort"]
    assert (second.known, second.began, second.did) == (KNOWN, 70, ["open"])
    await handler.handle(batch())
    assert second.did == ["open", "forward"]


async def test_position_is_unknown_where_the_target_has_none_or_the_committed_offset_counts(
    feeds: type[Feed], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def none(*_: Any) -> None:
        return None

    handler = await started()
    await handler.handle(batch())
    assert await handler.position(SOURCE) is None
    [feed] = feeds.made
    assert feed.did == ["open", "forward", "abort"]
    monkeypatch.setattr(tested, "last_forwarded", none)
    handler = await started(resume=ForwardResume.TARGET)
    assert await handler.position(SOURCE) is None
    assert (feeds.made[1].known, feeds.made[1].began) == (None, None)


@pytest.mark.parametrize(
    ("error", "final"),
    [(NoBrokerReachedError("gone"), False), (AuthenticationError("refused"), True), (KeyboardInterrupt(), False)],
)
async def test_ends_a_feed_that_failed_and_tells_whether_a_retry_can_help(
    feeds: type[Feed], monkeypatch: pytest.MonkeyPatch, error: BaseException, final: bool
) -> None:
    async def fails(*_: Any) -> None:
        raise error

    expected: Any = pytest.raises(HandlerFailedError if final else type(error))
    feeds.error = error
    handler, some = await started(), batch()
    with expected as failed:
        await handler.handle(some)
    if final:
        assert str(failed.value) == f"cannot forward t/1-4 from {some.prefix(1)}: refused"
    feeds.error = None
    await handler.handle(batch())
    assert [feed.did for feed in feeds.made] == [["open", "forward", "abort"], ["open", "forward"]]
    monkeypatch.setattr(tested, "last_forwarded", fails)
    handler = await started(resume=ForwardResume.TARGET)
    with pytest.raises(HandlerFailedError if final else type(error)) as failed:
        await handler.position(SOURCE)
    if final:
        assert str(failed.value) == "cannot forward t/1-4: refused"


async def test_topic_whose_name_is_not_valid_at_the_target_stops_the_daemon(feeds: type[Feed]) -> None:
    handler = await started(naming=TopicNaming("{topic}.x"))
    with pytest.raises(HandlerFailedError, match=r"cannot forward a b/0-1: topic 'a b' would be forwarded"):
        await handler.handle(batch(TopicPartition("a b", 0, 1)))
    assert feeds.made == []


@pytest.mark.parametrize(("start", "searched"), [(0, 500_000), (1, None), (70_000, None)])
async def test_warns_where_the_last_messages_of_the_target_have_none_of_the_partition(
    start: int, searched: int | None
) -> None:
    ranges: list[tuple[int, int]] = []

    class Log:
        async def bounds(self, topic: str, partition: int) -> LogBounds:
            return LogBounds(start, 500_001)

        async def read(self, topic: str, partition: int, low: int, high: int) -> AsyncIterator[list[Any]]:
            ranges.append((low, high))
            yield []

    log: Any = Log()
    with capture_logs() as logs:
        assert await tested.last_forwarded(log, "target", 0, SOURCE, None) is None
    assert [line["searched_offsets"] for line in logs] == ([searched] if searched else [])
    highs = [500_001, *(low for low, _ in ranges[:-1])]
    assert [high for _, high in ranges] == highs  # each window ends where the one before began
    assert ranges[-1][0] == max(start, 1)
    assert len(ranges) <= 6
