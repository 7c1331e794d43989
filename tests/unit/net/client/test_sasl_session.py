"""Authentication again on a live connection: in time, in order with all requests, and without losing one."""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import threading
import time
from typing import Any

import pytest

from consumerd import OAuthBearer, OAuthToken, TokenCache
from consumerd.net.client.channel import Channel
from consumerd.net.client.errors import AuthenticationError
from consumerd.net.client.metadata import metadata_body
from consumerd.net.client.sasl import Plain, SaslAuthenticator
from consumerd.net.client.settings import ClientSettings
from consumerd.net.errors import ConnectError, ConnectionClosedError
from consumerd.testing.clock import FakeClock
from consumerd.wire.v08.apis import APIS, LIST_GROUPS, METADATA, SASL_AUTHENTICATE, SASL_HANDSHAKE
from consumerd.wire.v08.headers import ResponseHeader
from consumerd.wire.v08.message_types import ListGroupsRequest
from consumerd.wire.v08.messages import ResponseMessage, decode_request, encode_response
from consumerd.wire.v08.versions import BrokerRelease, BrokerVersions

ALL = {key: api.versions for key, api in APIS.items()}
GROUPS: ListGroupsRequest = {}


class BrokerLine:
    """A connection to a broker with `connections.max.reauth.ms`, which closes it as Kafka's do.

    It works on one request at a time, and on METADATA while `busy` is cleared not at all. Tokens are `tokens` in turn;
    any other is refused.
    """

    def __init__(self, clock: FakeClock, lifetime: float) -> None:
        self.clock, self.lifetime = clock, lifetime
        self.sent: list[str] = []
        self.tokens: list[bytes] = []
        self.accepts = True
        self.closed = False
        self.idle = asyncio.Event()
        self.idle.set()
        self._turn = asyncio.Lock()
        self._authenticating = False
        self._expires = float("inf")
        self._began = float("-inf")

    @property
    def in_flight(self) -> int:
        return 0

    async def request(self, frame: bytes, **_: Any) -> bytes:
        if self.closed:
            raise ConnectionClosedError("closed before")
        api = APIS[int.from_bytes(frame[4:6])]
        self.sent.append(api.name)
        request = decode_request(api, frame[4:])
        async with self._turn:
            if api is METADATA:
                await self.idle.wait()
            answer = self._answer(api, request.body)
        version = int.from_bytes(frame[6:8])
        return encode_response(api, version, ResponseMessage(ResponseHeader(request.header.correlation_id), answer))[4:]

    def _answer(self, api: Any, body: Any) -> dict[str, Any]:
        expired = self.clock.monotonic() >= self._expires
        if self._authenticating is not (api is SASL_AUTHENTICATE) or (expired and api is LIST_GROUPS):
            self.abort()
            raise ConnectionClosedError(f"the broker closed the connection on {api.name}", blamed=True)
        if api is SASL_HANDSHAKE:
            if self.clock.monotonic() - self._began < 1.0:
                self.abort()
                raise ConnectionClosedError("a second authentication within a second", blamed=True)
            if self.tokens:  # the first one does not count
                self._began = self.clock.monotonic()
            self._authenticating = True
            return {"error_code": 0, "mechanisms": ["PLAIN"]}
        if api is SASL_AUTHENTICATE:
            self._authenticating = False
            self.tokens.append(body["auth_bytes"])
            self._expires = self.clock.monotonic() + self.lifetime
            code, lifetime = (0, int(self.lifetime * 1000)) if self.accepts else (58, 0)
            return {"error_code": code, "error_message": "no", "auth_bytes": b"", "session_lifetime_ms": lifetime}
        return {"brokers": [], "topics": []} if api is METADATA else {"error_code": 0, "groups": []}

    def post(self, frame: bytes, settle: Any, *, timeout: float) -> bool:
        self.sent.append("posted")
        return True

    async def send(self, frame: bytes) -> None:
        self.sent.append("unanswered")

    def abort(self) -> None:
        self.closed = True

    async def close(self) -> None:
        self.closed = True


class Login:
    """Makes PLAIN with the first password, and afterwards with `password`, or fails."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.asked, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()

    def __call__(self) -> Any:
        login = self

        class Made(Plain):
            def first(self, host: str) -> bytes:
                login.asked.set()
                assert login.go_on.wait(60)
                if login.error:
                    raise login.error
                return super().first(host)

        return Made("u", "p")


class Bearer:
    """A token of OAUTHBEARER that expires `left` seconds from now, by its own times; None: it does not say."""

    name = "OAUTHBEARER"

    def __init__(self, left: float | None) -> None:
        claims = {} if left is None else {"iat": 0, "exp": time.time() + left}
        text = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
        token = OAuthToken(f"e.{text}.s", 100.0)
        self._tokens = TokenCache(lambda: token)

    def __call__(self) -> Any:
        return OAuthBearer(self._tokens)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def login() -> Login:
    return Login()


async def opened(
    clock: FakeClock, login: Login, lifetime: float = 10.0, *, accepts: bool = True
) -> tuple[Channel, BrokerLine]:
    line = BrokerLine(clock, lifetime)
    line.accepts = accepts
    versions = BrokerVersions("b:9", BrokerRelease.V0_10_OR_NEWER, ALL)
    connection: Any = line
    channel = Channel(connection, "b:9", versions, ClientSettings(), clock)
    await SaslAuthenticator(login)(channel)
    line.sent.clear()
    login.asked.clear()
    return channel, line


async def asked(login: Login) -> None:
    await asyncio.to_thread(login.asked.wait, 60)


async def sent(line: BrokerLine, name: str) -> None:
    async with asyncio.timeout(30):
        while name not in line.sent:
            await asyncio.sleep(0)


H, A, LIST = SASL_HANDSHAKE.name, SASL_AUTHENTICATE.name, LIST_GROUPS.name


async def test_authenticates_again_before_the_session_expires_and_between_requests(
    clock: FakeClock, login: Login
) -> None:
    channel, line = await opened(clock, login)
    for _ in range(100):
        clock.jump(0.5)
        await asyncio.gather(*(channel.call(LIST_GROUPS, GROUPS) for _ in range(5)))
    assert not line.closed
    assert line.sent.count(LIST) == 500
    assert 5 <= line.sent.count(H) == line.sent.count(A) <= 7
    assert len(line.tokens) == line.sent.count(A) + 1


async def test_lifetime_of_less_than_a_second_makes_requests_wait(login: Login) -> None:
    """Brokers refuse a second authentication within a second, and requests after the session has expired."""
    clock = FakeClock(auto=True)
    channel, line = await opened(clock, login, lifetime=0.3)
    for _ in range(20):
        clock.jump(0.1)
        await channel.call(LIST_GROUPS, GROUPS)
    assert not line.closed
    assert line.sent.count(LIST) == 20
    assert line.sent.count(H) >= 4


async def test_idle_connection_is_authenticated_again_by_its_next_request(clock: FakeClock, login: Login) -> None:
    channel, line = await opened(clock, login)
    clock.jump(86_400)
    await asyncio.gather(*(channel.call(LIST_GROUPS, GROUPS) for _ in range(3)))
    assert line.sent == [H, A, LIST, LIST, LIST]


async def test_no_lifetime_means_no_further_authentication(clock: FakeClock, login: Login) -> None:
    channel, line = await opened(clock, login, lifetime=0.0)
    line.lifetime, line._expires = 10.0, float("inf")
    clock.jump(86_400)
    await channel.call(LIST_GROUPS, GROUPS)
    assert line.sent == [LIST]


async def test_requests_go_on_while_the_token_is_made(clock: FakeClock, login: Login) -> None:
    channel, line = await opened(clock, login)
    clock.jump(8.5)
    login.go_on.clear()
    await channel.call(LIST_GROUPS, GROUPS)
    await asked(login)
    await channel.call(LIST_GROUPS, GROUPS)
    assert channel.post(METADATA, prepared(), lambda _: None, version=0, timeout=1.0)
    assert line.sent == [LIST, LIST, "posted"]
    clock.jump(1.0)  # 9.5 of 10 s: the broker might be late with it
    last = asyncio.create_task(channel.call(LIST_GROUPS, GROUPS))
    await asyncio.sleep(0)
    assert not channel.post(METADATA, prepared(), lambda _: None, version=0, timeout=1.0)
    assert line.sent == [LIST, LIST, "posted"]
    login.go_on.set()
    await last
    assert line.sent[3:] == [H, A, LIST]
    assert not line.closed


def prepared() -> Any:
    class Prepared:
        def encode(self, correlation_id: int, client_id: str | None) -> bytes:
            return b""

    return Prepared()


async def test_requests_wait_in_their_order_behind_a_slow_one_and_the_authentication(
    clock: FakeClock, login: Login
) -> None:
    channel, line = await opened(clock, login)
    line.idle.clear()
    slow = asyncio.create_task(channel.call(METADATA, metadata_body(9, []), version=9))
    await asyncio.sleep(0)
    clock.jump(11.0)  # expired meanwhile: the broker checks that when it works on a request
    order: list[int] = []

    async def call(number: int) -> None:
        await channel.call(LIST_GROUPS, GROUPS)
        order.append(number)

    calls = [asyncio.create_task(call(number)) for number in range(3)]
    await sent(line, H)
    assert not channel.post(METADATA, prepared(), lambda _: None, version=0, timeout=1.0)
    unanswered = asyncio.create_task(channel.send(LIST_GROUPS, GROUPS))
    for _ in range(3):
        await asyncio.sleep(0)
    assert line.sent == [METADATA.name, H]
    line.idle.set()
    await asyncio.gather(slow, *calls, unanswered)
    assert line.sent == [METADATA.name, H, A, LIST, LIST, LIST, "unanswered"]
    assert order == [0, 1, 2]
    assert channel.post(METADATA, prepared(), lambda _: None, version=0, timeout=1.0)


async def test_a_caller_that_is_cancelled_does_not_end_the_authentication(clock: FakeClock, login: Login) -> None:
    channel, line = await opened(clock, login)
    line.idle.clear()
    slow = asyncio.create_task(channel.call(METADATA, metadata_body(9, []), version=9))
    await asyncio.sleep(0)
    clock.jump(11.0)
    first = asyncio.create_task(channel.call(LIST_GROUPS, GROUPS))
    await sent(line, H)
    first.cancel()
    second = asyncio.create_task(channel.call(LIST_GROUPS, GROUPS))
    await asyncio.wait([first])
    line.idle.set()
    await asyncio.gather(slow, second)
    assert line.sent == [METADATA.name, H, A, LIST]


async def test_failure_to_make_a_token_has_no_effect_while_the_session_lasts(clock: FakeClock, login: Login) -> None:
    channel, line = await opened(clock, login)
    login.error = ConnectError("the provider is down")
    for now in (8.1, 8.2, 9.2, 9.9):
        clock.now = 1000.0 + now
        await channel.call(LIST_GROUPS, GROUPS)
        while channel._session is not None and channel._session._renewal is not None:
            await asyncio.sleep(0.001)
    assert line.sent == [LIST] * 4
    clock.now = 1010.5
    with pytest.raises(ConnectionClosedError, match="b:9 was closed: authenticating again failed: the provider is dow"):
        await channel.call(LIST_GROUPS, GROUPS)
    assert line.closed
    with pytest.raises(ConnectionClosedError, match="closed before"):
        await channel.call(LIST_GROUPS, GROUPS)
    assert line.sent == [LIST] * 4


async def test_refused_authentication_drops_the_connection_with_the_brokers_words(
    clock: FakeClock, login: Login
) -> None:
    channel, line = await opened(clock, login)
    line.accepts = False
    clock.jump(11.0)
    calls = await asyncio.gather(*(channel.call(LIST_GROUPS, GROUPS) for _ in range(3)), return_exceptions=True)
    assert line.closed
    assert line.sent == [H, A]
    assert all(isinstance(each, ConnectionClosedError) for each in calls)
    assert all("refuses the authentication" in str(each) for each in calls)
    with pytest.raises(AuthenticationError):  # what the next connection says
        await opened(clock, login, accepts=False)


async def test_defect_of_a_mechanism_drops_the_connection(clock: FakeClock, login: Login) -> None:
    channel, line = await opened(clock, login)
    login.error = ZeroDivisionError("defect")
    problems: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, problem: problems.append(problem))
    clock.jump(11.0)
    with pytest.raises(ConnectionClosedError):
        await channel.call(LIST_GROUPS, GROUPS)
    assert line.closed
    gc.collect()  # the loop reports the exceptions of tasks when they are freed
    assert [type(problem["exception"]) for problem in problems] == [ZeroDivisionError]


@pytest.mark.parametrize("how", ["close", "abort"])
async def test_end_of_the_channel_ends_the_authentication(clock: FakeClock, login: Login, how: str) -> None:
    channel, line = await opened(clock, login)
    clock.jump(8.5)
    login.go_on.clear()
    await channel.call(LIST_GROUPS, GROUPS)
    await asked(login)
    session: Any = channel._session
    renewal = session._renewal
    if how == "close":
        await channel.close()
        assert renewal.cancelled()
    else:
        channel.abort()
        await asyncio.wait([renewal])
    assert line.closed
    login.go_on.set()
    assert line.sent == [LIST]


@pytest.mark.parametrize(
    ("left", "words"),
    [
        (-3.0, r"on ListGroups; it accepted the token \(OAUTHBEARER\) without a lifetime.*T.*Z \([34] s ago\); renew"),
        (9000.0, r"without a lifetime.*\(in (9000|8999) s\); renew the token, and compare the clocks$"),
        (None, r"on ListGroups$"),
    ],
)
async def test_a_connection_that_ends_after_a_token_without_a_lifetime_says_when_the_token_expires(
    clock: FakeClock, left: float | None, words: str
) -> None:
    """A broker accepts a token that expired within its clock skew, and ends the session at the first request."""
    connection: Any = BrokerLine(clock, 0.0)
    versions = BrokerVersions("b:9", BrokerRelease.V0_10_OR_NEWER, ALL)
    channel = Channel(connection, "b:9", versions, ClientSettings(), clock)
    await SaslAuthenticator(Bearer(left))(channel)
    with pytest.raises(ConnectionClosedError, match=words) as raised:
        await channel.call(LIST_GROUPS, GROUPS)
    assert raised.value.blamed


async def test_a_connection_that_ends_after_an_answer_is_not_blamed_on_the_token(clock: FakeClock) -> None:
    connection: Any = BrokerLine(clock, 0.0)
    versions = BrokerVersions("b:9", BrokerRelease.V0_10_OR_NEWER, ALL)
    channel = Channel(connection, "b:9", versions, ClientSettings(), clock)
    await SaslAuthenticator(Bearer(-3.0))(channel)
    await channel.call(METADATA, metadata_body(9, []), version=9)
    with pytest.raises(ConnectionClosedError, match=r"on ListGroups$"):
        await channel.call(LIST_GROUPS, GROUPS)
