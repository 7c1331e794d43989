"""The client infers a broker's version from its responses and from the requests that it does not answer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any, cast

import pytest

from consumerd.base.clock import SystemClock
from consumerd.base.errors import BrokerError
from consumerd.net.client.cluster import ClusterClient
from consumerd.net.client.errors import AuthenticationError, BrokerRefusedError, V07BrokerError
from consumerd.net.client.opening import ChannelOpener
from consumerd.net.client.settings import ClientSettings
from consumerd.net.errors import ClientCertificateError, ConnectionClosedError, RequestTimeoutError
from consumerd.testing.clock import FakeClock
from consumerd.wire.v07 import FetchRequest
from consumerd.wire.v07 import decode_request as decode_request_v07
from consumerd.wire.v08.apis import API_VERSIONS, APIS, LIST_GROUPS, METADATA, SASL_HANDSHAKE
from consumerd.wire.v08.error_codes import ErrorCode
from consumerd.wire.v08.headers import ResponseHeader
from consumerd.wire.v08.message_types import ListGroupsRequest
from consumerd.wire.v08.messages import ResponseMessage, decode_request, encode_response
from consumerd.wire.v08.versions import BrokerRelease, BrokerVersions

ALL_GROUPS: ListGroupsRequest = {}
SERVED = {"error_code": 0, "api_keys": [{"api_key": key, "min_version": 0, "max_version": 9} for key in APIS]}
ANSWERS: dict[int, dict[str, Any]] = {
    API_VERSIONS.key: SERVED,
    LIST_GROUPS.key: {"error_code": 0, "groups": []},
    METADATA.key: {"brokers": [], "topics": []},
    SASL_HANDSHAKE.key: {"error_code": ErrorCode.ILLEGAL_SASL_STATE, "mechanisms": []},
}


class Broker:
    """`says(key, version, number)` of that request: "answer", "close", "refusal", "silence" or an error code."""

    def __init__(self, says: Callable[[int, int, int], str | int]) -> None:
        self.says = says
        #: Whether it closes connections that are not authenticated.
        self.closed_to_strangers = False
        self.asked: list[tuple[int, int]] = []
        self.open: set[Line] = set()

    async def connect(self, host: str, port: int) -> Any:
        line = Line(self)
        self.open.add(line)
        return line


class Line:
    """A connection."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.closed = self.authenticated = False

    async def request(self, frame: bytes, **_: Any) -> bytes:
        key, version = int.from_bytes(frame[4:6]), int.from_bytes(frame[6:8])
        self.broker.asked.append((key, version))
        await asyncio.sleep(0)
        stranger = self.broker.closed_to_strangers and not self.authenticated
        match "close" if stranger else self.broker.says(key, version, len(self.broker.asked)):
            case "close":
                self.abort()
                raise ConnectionClosedError("the broker hung up", blamed=True)
            case "refusal":
                self.abort()
                raise ClientCertificateError("the broker refused the client's certificate", blamed=True)
            case "silence":
                self.abort()
                raise RequestTimeoutError("the broker did not answer")
            case int(error):
                answer, version = {"error_code": error, "api_keys": []}, 0
            case _:
                answer = ANSWERS[key]
        api = APIS[key]
        header = ResponseHeader(decode_request(api, frame[4:]).header.correlation_id)
        return encode_response(api, version, ResponseMessage(header, answer))[4:]

    def abort(self) -> None:
        self.closed = True
        self.broker.open.discard(self)


def kafka_09(key: int, version: int, number: int) -> str:
    return "silence" if key == API_VERSIONS.key else "answer"


def kafka_08(key: int, version: int, number: int) -> str:
    return "answer" if key == METADATA.key else "close"


def slow(key: int, version: int, number: int) -> str:
    return "silence" if number == 1 else "answer"


def early_sasl(key: int, version: int, number: int) -> str:
    return "close" if version else "answer"


@pytest.mark.parametrize(
    ("says", "release"),
    [
        (kafka_08, BrokerRelease.V0_8),
        (kafka_09, BrokerRelease.V0_9),
        (slow, BrokerRelease.V0_10_OR_NEWER),
        (early_sasl, BrokerRelease.V0_10_OR_NEWER),
        (lambda *_: "answer", BrokerRelease.V0_10_OR_NEWER),
    ],
)
async def test_infers_broker_version_from_response(
    says: Callable[[int, int, int], str], release: BrokerRelease
) -> None:
    broker = Broker(says)
    channel = await ChannelOpener(broker.connect, ClientSettings(), SystemClock()).open("h", 9)
    assert channel.versions.release is release
    assert len(broker.open) == 1  # whatever else was tried


@pytest.mark.parametrize("answer", [b"\x00\x00", b"\x00\x03"])
async def test_recognises_a_broker_of_0_7_by_its_answer_to_a_fetch(answer: bytes) -> None:
    class V07Line(Line):
        async def request(self, frame: bytes, **_: Any) -> bytes:
            match int.from_bytes(frame[4:6]):
                case 1:
                    assert decode_request_v07(frame[4:]) == FetchRequest("consumerd-looks-for-kafka-0.7", 0, 0, 1)
                    return answer
                case 3:
                    self.abort()
                    raise RequestTimeoutError("the broker did not answer")
            self.abort()
            raise ConnectionClosedError("the broker hung up", blamed=True)

    async def connect(host: str, port: int) -> Any:
        return V07Line(Broker(kafka_08))

    opener = ChannelOpener(connect, ClientSettings(), SystemClock())
    client = ClusterClient([("h", 9)], opener, ClientSettings(), clock=SystemClock(), rng=random.Random(1))
    with pytest.raises(V07BrokerError, match=r"broker h:9 runs Kafka 0\.7, .*--zookeeper"):
        await client.retrying("find a broker", client.refresh)


async def test_remembers_an_old_broker_for_five_minutes() -> None:
    clock, broker = FakeClock(), Broker(kafka_09)
    remembered: dict[Any, Any] = {}
    opener = ChannelOpener(broker.connect, ClientSettings(), clock, remembered=remembered)
    await opener.open("h", 9)
    asked = list(broker.asked)
    clock.jump(299.9)
    for each in (opener, ChannelOpener(broker.connect, ClientSettings(), clock, remembered=remembered)):
        channel = await each.open("h", 9)
        assert channel.versions == BrokerVersions.of("h:9", BrokerRelease.V0_9)
    assert broker.asked == asked
    await opener.open("h", 8)
    assert broker.asked == asked * 2  # of another one nothing is known
    clock.now = 1300.0
    broker.says = lambda *_: "answer"  # upgraded
    assert (await opener.open("h", 9)).versions.release is BrokerRelease.V0_10_OR_NEWER
    assert (await opener.open("h", 8)).versions.release is BrokerRelease.V0_9  # asked 0.1 s ago


async def test_asks_a_slow_broker_again_in_the_first_version() -> None:
    broker = Broker(slow)
    await ChannelOpener(broker.connect, ClientSettings(), SystemClock()).open("h", 9)
    last = API_VERSIONS.versions[1]
    assert broker.asked == [(API_VERSIONS.key, last), (LIST_GROUPS.key, 0), (API_VERSIONS.key, 0)]


async def test_broker_that_does_not_know_the_version_of_api_versions_is_asked_in_the_first() -> None:
    """It answers in that one, too."""
    broker = Broker(lambda key, version, number: ErrorCode.UNSUPPORTED_VERSION if version else "answer")
    channel = await ChannelOpener(broker.connect, ClientSettings(), SystemClock()).open("h", 9)
    assert channel.versions.has(METADATA)
    assert broker.asked == [(API_VERSIONS.key, API_VERSIONS.versions[1]), (API_VERSIONS.key, 0)]
    assert len(broker.open) == 1
    broker = Broker(lambda *_: ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    with pytest.raises(BrokerRefusedError, match="broker h:9 did not return its API versions"):
        await ChannelOpener(broker.connect, ClientSettings(), SystemClock()).open("h", 9)
    assert not broker.open


async def test_broker_that_refuses_the_certificate_is_asked_no_more() -> None:
    broker = Broker(lambda *_: "refusal")
    with pytest.raises(ClientCertificateError, match="the broker refused"):
        await ChannelOpener(broker.connect, ClientSettings(), SystemClock()).open("h", 9)
    assert broker.asked == [(API_VERSIONS.key, API_VERSIONS.versions[1])]


async def test_broker_that_hangs_is_asked_no_more() -> None:
    broker = Broker(lambda *_: "silence")
    with pytest.raises(RequestTimeoutError):
        await ChannelOpener(broker.connect, ClientSettings(), SystemClock()).open("h", 9)
    assert [key for key, _ in broker.asked] == [API_VERSIONS.key, LIST_GROUPS.key]
    assert not broker.open


class Ticket:
    """Authenticates by bare tokens, as GSSAPI does, or fails with `error`."""

    def __init__(self, *, speaks_first: bool = True, error: Exception | None = None) -> None:
        self.speaks_first, self.error = speaks_first, error
        self.times = 0

    async def __call__(self, channel: Any) -> None:
        self.times += 1
        if self.error:
            raise self.error
        channel._connection.authenticated = True


def rejected(cause: Exception | None) -> AuthenticationError:
    error = AuthenticationError("rejected")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("ticket", "says", "result", "times"),
    [
        (Ticket(), kafka_09, BrokerRelease.V0_9, 2),
        (Ticket(), lambda *_: "close", "hung up", 1),
        (Ticket(), lambda *_: "silence", "hung up", 1),
        (Ticket(speaks_first=False), kafka_09, "hung up", 0),
        (None, kafka_09, "hung up", 0),
        (Ticket(error=rejected(None)), kafka_09, "rejected", 1),
        (Ticket(error=rejected(ConnectionClosedError("closed"))), kafka_09, "hung up", 1),
    ],
)
async def test_authenticates_first_where_a_broker_closes_the_connection_on_every_request(
    ticket: Ticket | None, says: Callable[[int, int, int], str], result: BrokerRelease | str, times: int
) -> None:
    broker = Broker(says)
    broker.closed_to_strangers = True
    opener = ChannelOpener(broker.connect, ClientSettings(), SystemClock(), authenticate=cast("Any", ticket))
    if isinstance(result, str):
        with pytest.raises(BrokerError, match=result):
            await opener.open("h", 9)
        assert not broker.open
    else:
        channel = await opener.open("h", 9)
        assert channel.versions.release is result
        assert not channel.doubt
        assert len(broker.open) == 1
    assert ticket is None or ticket.times == times


@pytest.mark.parametrize("said", ["close", "silence"])
async def test_raises_broker_error_when_no_probe_is_answered(said: str) -> None:
    broker = Broker(lambda *_: said)
    opener = ChannelOpener(broker.connect, ClientSettings(), SystemClock())
    words = "the broker hung up; is this the port of a Kafka broker" if said == "close" else "the broker did not answer"
    with pytest.raises(BrokerError, match=words):
        await opener.open("h", 9)
    assert not broker.open
    broker.says = lambda *_: "answer"
    assert (await opener.open("h", 9)).versions.release is BrokerRelease.V0_10_OR_NEWER


async def test_suggests_sasl_when_broker_closes_on_first_request() -> None:
    def with_sasl(key: int, version: int, number: int) -> str:
        return "answer" if key == API_VERSIONS.key else "close"

    def soon_gone(key: int, version: int, number: int) -> str:
        return "close" if number > 2 else "answer"

    for says, answered, hint in ((with_sasl, 0, "; is this a SASL listener?"), (soon_gone, 1, "")):
        opener = ChannelOpener(Broker(says).connect, ClientSettings(), SystemClock())
        channel = await opener.open("h", 1)
        for _ in range(answered):
            await channel.call(LIST_GROUPS, ALL_GROUPS, version=0)
        with pytest.raises(ConnectionClosedError) as caught:
            await channel.call(LIST_GROUPS, ALL_GROUPS, version=0)
        assert str(caught.value) == f"the broker hung up{hint}"
        assert caught.value.blamed
    channel = await ChannelOpener(
        Broker(with_sasl).connect, ClientSettings(), SystemClock(), authenticate=cast("Any", Ticket())
    ).open("h", 1)
    with pytest.raises(ConnectionClosedError, match=r"hung up$"):  # it is one, and we are authenticated
        await channel.call(LIST_GROUPS, ALL_GROUPS, version=0)
    channel = await ChannelOpener(Broker(kafka_08).connect, ClientSettings(), SystemClock()).open("h", 1)
    with pytest.raises(ConnectionClosedError, match=r"hung up$"):  # which 0.8 does not have
        await channel.call(LIST_GROUPS, ALL_GROUPS, version=0)


async def test_does_not_suggest_sasl_where_a_request_was_answered_before() -> None:
    """As a broker that stops: it accepts a last connection, and closes it."""
    stops = False

    def says(key: int, version: int, number: int) -> str:
        return "close" if stops and key != API_VERSIONS.key else "answer"

    opener = ChannelOpener(Broker(says).connect, ClientSettings(), SystemClock())
    await (await opener.open("h", 1)).call(LIST_GROUPS, ALL_GROUPS, version=0)
    stops = True
    for _ in range(2):
        channel = await opener.open("h", 1)
        with pytest.raises(ConnectionClosedError, match=r"hung up$"):
            await channel.call(LIST_GROUPS, ALL_GROUPS, version=0)
    channel = await opener.open("h", 2)  # of which nothing is known
    with pytest.raises(ConnectionClosedError, match=r"hung up; is this a SASL listener\?$"):
        await channel.call(LIST_GROUPS, ALL_GROUPS, version=0)
