"""One connection: what is sent on it, which answers it accepts, and which end it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from consumerd.net.client.channel import Channel, KnownResponse
from consumerd.net.client.errors import RequestTooLargeError
from consumerd.net.client.settings import ClientSettings
from consumerd.net.errors import BadFrameError, ConnectionClosedError
from consumerd.testing.clock import FakeClock
from consumerd.wire.v08 import ResponseHeader, ResponseMessage, encode_response
from consumerd.wire.v08.apis import APIS, FETCH, HEARTBEAT
from consumerd.wire.v08.message_types import FetchRequest, HeartbeatRequest, HeartbeatResponse
from consumerd.wire.v08.messages import decode_request, encode_request
from consumerd.wire.v08.versions import BrokerRelease, BrokerVersions

BEAT: HeartbeatRequest = {"group_id": "g", "generation_id": 1, "member_id": "m"}
FINE = encode_response(HEARTBEAT, 0, ResponseMessage(ResponseHeader(0), {"error_code": 0}))[8:]


class Connection:
    """Answers with `answer`, behind the id of the request, and keeps the frames."""

    def __init__(self, answer: bytes = FINE) -> None:
        self.answer = answer
        self.sent: list[bytes] = []
        self.options: dict[str, Any] = {}
        #: What is added to the correlation ids.
        self.shift = 0
        self.closed = self.gone = False
        #: For what is posted: whether it would have to wait, and the end of the connection.
        self.full = False
        self.broken: ConnectionClosedError | None = None
        self.in_flight = 0

    async def request(self, frame: bytes, **options: Any) -> bytes:
        self.sent.append(frame)
        self.options = options
        return (int.from_bytes(frame[8:12]) + self.shift).to_bytes(4) + self.answer

    def post(self, frame: bytes, settle: Callable[[Any], object], *, timeout: float) -> bool:
        self.options = {"timeout": timeout}
        if self.full:
            return False
        self.sent.append(frame)
        settle(self.broken or (int.from_bytes(frame[8:12]) + self.shift).to_bytes(4) + self.answer)
        return True

    async def send(self, frame: bytes) -> None:
        self.sent.append(frame)

    async def wait_closed(self) -> None:
        await asyncio.sleep(0)
        self.gone = True

    def abort(self) -> None:
        self.closed = True

    @property
    def ids(self) -> list[int]:
        return [int.from_bytes(frame[8:12], signed=True) for frame in self.sent]


def channel_of(connection: Any, *, clock: FakeClock | None = None, last: int = 0, **settings: Any) -> Channel:
    versions = BrokerVersions("h:9", BrokerRelease.V0_10_OR_NEWER, dict.fromkeys(APIS, (0, last)))
    return Channel(connection, "h:9", versions, ClientSettings(**settings), clock or FakeClock())


async def test_numbers_requests_up_to_the_largest_number_and_then_from_0() -> None:
    connection = Connection()
    channel = channel_of(connection)
    for _ in range(2):
        await channel.call(HEARTBEAT, BEAT)
    channel._correlation_id = 2**31 - 2
    for _ in range(3):
        await channel.call(HEARTBEAT, BEAT)
    assert connection.ids == [0, 1, 2**31 - 2, 2**31 - 1, 0]


@pytest.mark.parametrize(
    ("shift", "answer", "says"),
    [
        (1, FINE, "broker h:9 answered request 6 where 5 was the next"),
        (0, b"", "broker h:9 sent an invalid response: "),
        (0, FINE + b"x", "broker h:9 sent an invalid response: "),
    ],
)
async def test_answer_that_is_not_the_one_ends_the_connection(shift: int, answer: bytes, says: str) -> None:
    connection = Connection()
    channel = channel_of(connection)
    for _ in range(5):
        await channel.call(HEARTBEAT, BEAT)
    connection.shift, connection.answer = shift, answer
    with pytest.raises(BadFrameError, match=says) as caught:
        await channel.call(HEARTBEAT, BEAT)
    assert caught.value.blamed
    assert connection.closed


async def test_first_request_waits_for_nothing() -> None:
    clock = FakeClock(0.0)
    channel = channel_of(Connection(), clock=clock)
    assert not channel.doubt
    await channel.call(HEARTBEAT, BEAT)
    assert clock.sleeps == []


class Prepared:
    """A body that encodes itself, and decodes the answer or leaves that to the codec."""

    def __init__(self, found: HeartbeatResponse | None) -> None:
        self.found = found

    def encode(self, correlation_id: int, client_id: str | None) -> bytes:
        return encode_request(HEARTBEAT, 0, BEAT, correlation_id=correlation_id, client_id=client_id) + b"own"

    def decode(self, data: bytes) -> HeartbeatResponse | None:
        return self.found


async def test_prepared_request_encodes_itself_and_decodes_its_answer_if_it_can() -> None:
    connection = Connection()
    channel = channel_of(connection)
    assert await channel.call(HEARTBEAT, Prepared({"error_code": 7})) == {"error_code": 7}
    assert (await channel.call(HEARTBEAT, Prepared(None)))["error_code"] == 0
    await channel.send(HEARTBEAT, Prepared(None))
    assert all(frame.endswith(b"own") for frame in connection.sent)
    assert connection.ids == [0, 1, 2]


@pytest.mark.parametrize("found", [{"error_code": 7}, None])
async def test_posted_request_gets_the_fields_of_its_answer(found: HeartbeatResponse | None) -> None:
    connection, answers = Connection(), list[Any]()
    assert channel_of(connection).post(HEARTBEAT, Prepared(found), answers.append, version=0, timeout=7)
    assert [answer["error_code"] for answer in answers] == [7 if found else 0]
    assert (connection.ids, connection.options, connection.closed) == ([0], {"timeout": 7}, False)


@pytest.mark.parametrize("how", ["another answer", "no answer", "an answer that cannot be read"])
async def test_posted_request_gets_the_reason_for_which_there_is_no_answer(how: str) -> None:
    connection, body, answers = Connection(), Prepared(None), list[Any]()
    if how == "another answer":
        connection.shift = 1
    elif how == "no answer":
        connection.broken = ConnectionClosedError("the end")
    else:
        body.decode = lambda _: 1 // 0  # type: ignore[method-assign, assignment, return-value]
    assert channel_of(connection).post(HEARTBEAT, body, answers.append, version=0, timeout=7)
    kinds = {"another answer": BadFrameError, "no answer": ConnectionClosedError}
    assert [type(answer) for answer in answers] == [kinds.get(how, ZeroDivisionError)]
    assert connection.closed == (how == "another answer")


async def test_posts_nothing_that_has_to_wait() -> None:
    clock, connection, answers = FakeClock(), Connection(), list[Any]()
    channel = channel_of(connection, clock=clock)

    def post() -> bool:
        return channel.post(HEARTBEAT, Prepared(None), answers.append, version=0, timeout=7)

    channel.doubt = "is this a SASL listener?"  # its first answer shows whether it must authenticate
    assert not post()
    channel.doubt, channel._silent_until = "", clock.now + 5
    assert not post()
    clock.now += 5
    connection.full = True
    assert not post()
    assert (connection.sent, answers) == ([], [])
    connection.full = False
    assert post()


@pytest.mark.parametrize(("options", "kind"), [({}, bytes), ({"views": False}, bytes), ({"views": True}, memoryview)])
async def test_record_sets_are_views_on_request(options: dict[str, Any], kind: type) -> None:
    part = {"partition_index": 0, "error_code": 0, "high_watermark": 1, "records": b"records"}
    body = {"responses": [{"topic": "t", "partitions": [part]}]}
    channel = channel_of(Connection(encode_response(FETCH, 0, ResponseMessage(ResponseHeader(0), body))[8:]))
    asked: FetchRequest = {"max_wait_ms": 0, "min_bytes": 0, "topics": []}
    answer = await channel.call(FETCH, asked, **options)
    assert type(answer["responses"][0]["partitions"][0]["records"]) is kind


async def test_response_that_is_the_last_one_is_not_decoded_again() -> None:
    def beat(error: int, throttle: int = 0) -> bytes:
        body = {"error_code": error, "throttle_time_ms": throttle}
        return encode_response(HEARTBEAT, 2, ResponseMessage(ResponseHeader(0), body))[8:]

    connection = Connection()
    clock = FakeClock()
    channel = channel_of(connection, clock=clock, last=2)
    known = KnownResponse()
    found = []
    for answer in (beat(0), beat(0), beat(27), beat(27), beat(0), beat(0, 1), beat(0, 1)):
        connection.answer = answer
        clock.jump(1.0)
        found.append((await channel.call(HEARTBEAT, BEAT, known=known)).get("error_code"))
    assert found == [0, None, 27, None, 0, 0, 0]  # the silence that a quota demands counts each time
    connection.shift = 1
    clock.jump(1.0)
    with pytest.raises(BadFrameError):
        await channel.call(HEARTBEAT, BEAT, known=known)


async def test_sends_the_highest_common_version_unless_one_is_named() -> None:
    connection = Connection()
    channel = channel_of(connection, last=1)
    await channel.send(HEARTBEAT, BEAT)
    await channel.send(HEARTBEAT, BEAT, version=0)
    assert [int.from_bytes(frame[6:8]) for frame in connection.sent] == [1, 0]
    assert decode_request(HEARTBEAT, connection.sent[0][4:]).body["member_id"] == "m"


async def test_request_without_an_answer_waits_for_a_quota_as_well() -> None:
    clock, connection = FakeClock(), Connection()
    channel = channel_of(connection, clock=clock)
    channel._silent_until = clock.now + 5
    sending = asyncio.create_task(channel.send(HEARTBEAT, BEAT))
    await clock.advance(4.9)
    assert connection.sent == []
    await clock.advance(0.1)
    await sending
    assert len(connection.sent) == 1


async def test_sends_requests_up_to_the_largest_size() -> None:
    connection = Connection()
    await channel_of(connection).call(HEARTBEAT, BEAT)
    size = len(connection.sent[0])
    await channel_of(connection, max_request_bytes=size).call(HEARTBEAT, BEAT)
    with pytest.raises(RequestTooLargeError, match=f"a Heartbeat request of {size} bytes is larger than"):
        await channel_of(connection, max_request_bytes=size - 1).call(HEARTBEAT, BEAT)
    assert len(connection.sent) == 2


async def test_exchanges_tokens_with_their_size_in_front() -> None:
    connection = Connection(b"challenge")
    channel = channel_of(connection)
    assert (await channel.exchange_token(b"token" * 3, 7.0)).endswith(b"challenge")
    await channel.send_token(b"last")
    assert connection.sent == [b"\0\0\0\x0f" + b"token" * 3, b"\0\0\0\x04last"]
    assert connection.options == {"min_response": 0, "max_response": 1 << 20, "timeout": 7.0}


async def test_waits_until_the_socket_is_gone() -> None:
    connection = Connection()
    await channel_of(connection).wait_closed()
    assert connection.gone
