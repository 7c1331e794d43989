"""A connection to one broker whose versions are known: it encodes requests and decodes responses.

Strategy: brokers answer the requests of a connection in their order, so pipelining is that of `consumerd.net`; the
correlation id is checked, not searched for. A request is encoded before it is sent and refused when it is too large: a
broker would close the connection without an error. An invalid response ends the connection, because the bytes after
it cannot be trusted either.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from operator import attrgetter
from typing import Any, Protocol, TypeVar, cast

from consumerd.base.ports import Clock
from consumerd.net.client.errors import RequestTooLargeError
from consumerd.net.client.sasl_session import SaslSession
from consumerd.net.client.settings import ClientSettings
from consumerd.net.connection import BrokerConnection
from consumerd.net.errors import BadFrameError, ConnectionClosedError
from consumerd.wire.errors import WireError
from consumerd.wire.v08.headers import read_correlation_id
from consumerd.wire.v08.messages import decode_response_body, encode_request
from consumerd.wire.v08.schema import Api, RequestT, ResponseT
from consumerd.wire.v08.throttle import silence
from consumerd.wire.v08.versions import BrokerVersions

_ResponseT_co = TypeVar("_ResponseT_co", covariant=True)
_MAX_CORRELATION_ID = (1 << 31) - 1
_CORRELATION_ID_BYTES = 4
#: Largest token of a mechanism, in bytes (Kerberos tickets with large authorization data come closest).
MAX_TOKEN_BYTES = 1 << 20


class PreparedRequest(Protocol[_ResponseT_co]):
    """The body of a request for which there is a faster way than the codec of all APIs. Gives the same."""

    def encode(self, correlation_id: int, client_id: str | None) -> bytes:
        """The whole frame, header included. Raises EncodeError."""
        ...

    def decode(self, data: bytes) -> _ResponseT_co | None:
        """The fields of the response `data`, or another object with its `silence`; None if the codec has to read it."""
        ...


class KnownResponse:
    """The last response to a request that is sent again and again, as bytes: the same one is not decoded twice."""

    __slots__ = ("_data",)

    def __init__(self) -> None:
        self._data = b""

    def is_same(self, data: bytes) -> bool:
        """Whether a response is the last one, but for its correlation id; else it is the last one from now on."""
        data = data[_CORRELATION_ID_BYTES:]
        if data == self._data:
            return True
        self._data = data
        return False

    def forget(self) -> None:
        """Decode the next response, whatever it is."""
        self._data = b""


class Channel:
    """An open, authenticated connection. `versions`: those that the broker serves. Safe for concurrent callers."""

    #: Whether the connection has ended. Each request looks at it: without a call of Python code.
    closed: bool = property(attrgetter("_connection.closed"))  # type: ignore[assignment]

    def __init__(
        self,
        connection: BrokerConnection,
        address: str,
        versions: BrokerVersions,
        settings: ClientSettings,
        clock: Clock,
    ) -> None:
        self.address = address
        self.versions = versions
        self._connection = connection
        self._settings = settings
        self._clock = clock
        self._correlation_id = 0
        self._silent_until = 0.0
        #: None: the channel is not authenticated, or for as long as it is open.
        self._session: SaslSession | None = None
        #: The probable reason if the broker closes the connection before its next answer, which clears it; or "".
        self.doubt = ""

    @property
    def in_flight(self) -> int:
        """Number of requests without an answer."""
        return self._connection.in_flight

    async def call(
        self,
        api: Api[RequestT, ResponseT],
        body: RequestT | PreparedRequest[ResponseT],
        *,
        version: int | None = None,
        max_response: int | None = None,
        timeout: float | None = None,
        views: bool = False,
        known: KnownResponse | None = None,
    ) -> ResponseT:
        """Send a request and return the answer's fields, with any error codes in them.

        `version`: the highest common one by default. `timeout`: seconds that the broker may take once it works on
        this request. `views`: record sets are views of the whole answer, not copies. `known`: of earlier calls with the
        same request; without any fields if the answer is the last one of them. Raises
        UnsupportedApiError, EncodeError, RequestTooLargeError (nothing was sent), and ConnectionClosedError with its
        subclasses; BadFrameError for an invalid answer.
        """
        version = self.versions.pick(api) if version is None else version
        correlation_id, frame = self._frame(api, version, body)
        await self._admitted()
        try:
            data = await self._connection.request(frame, max_response=max_response, timeout=timeout)
        except ConnectionClosedError as error:
            if self.doubt and type(error) is ConnectionClosedError and error.blamed:
                raise ConnectionClosedError(f"{error}; {self.doubt}", blamed=True) from error
            raise
        return self._answer(api, version, body, correlation_id, data, views=views, known=known)

    def post(
        self,
        api: Api[RequestT, ResponseT],
        body: RequestT | PreparedRequest[ResponseT],
        settle: Callable[[ResponseT | Exception], object],
        *,
        version: int,
        timeout: float,
        views: bool = False,
    ) -> bool:
        """As `call`, at once and without a task; return False, and send nothing, if that would have to wait.

        `settle` is called once, with the fields of the response or the error, as soon as that is known, by the reader
        of the connection: it must not raise. Raises what `call` raises where nothing was sent.
        """
        if self.doubt or self._silent_until > self._clock.monotonic():
            return False
        if self._session is not None and not self._session.passes_now():
            return False
        correlation_id, frame = self._frame(api, version, body)
        read = partial(self._read, api, version, body, correlation_id, settle, views)
        return self._connection.post(frame, read, timeout=timeout)

    def _read(
        self,
        api: Api[RequestT, ResponseT],
        version: int,
        body: RequestT | PreparedRequest[ResponseT],
        correlation_id: int,
        settle: Callable[[ResponseT | Exception], object],
        views: bool,
        data: bytes | ConnectionClosedError,
    ) -> None:
        """Settle a request that was posted by its response, or by the reason of the connection's end.

        A response that the body can read, and that asks for no silence, is read here: a call less for each message.
        """
        answer: Any = None
        try:
            if isinstance(data, Exception):
                answer = data
            elif not isinstance(body, dict) and data.startswith(correlation_id.to_bytes(_CORRELATION_ID_BYTES)):
                prepared: Any = body  # no call of `cast` for each message
                answer = prepared.decode(data)
            if answer is None or isinstance(answer, dict) or (answer is not data and answer.silence):
                answer = self._answer(api, version, body, correlation_id, cast("bytes", data), views=views)
        except Exception as error:  # also a defect: nobody would settle it else
            answer = error
        settle(answer)

    def _answer(
        self,
        api: Api[RequestT, ResponseT],
        version: int,
        body: RequestT | PreparedRequest[ResponseT],
        correlation_id: int,
        data: bytes,
        *,
        views: bool = False,
        known: KnownResponse | None = None,
    ) -> ResponseT:
        """The fields of a response. Raises BadFrameError, which ends the connection."""
        self.doubt = ""
        try:
            if not data.startswith(correlation_id.to_bytes(_CORRELATION_ID_BYTES)):
                answered = read_correlation_id(data)
                raise BadFrameError(
                    f"broker {self.address} answered request {answered} where {correlation_id} was the next",
                    blamed=True,
                )
            if known is not None and known.is_same(data):
                return cast("ResponseT", {})
            prepared: Any = body  # no call of `cast` for each message
            answer: Any = None if isinstance(body, dict) else prepared.decode(data)
            if answer is None:
                answer = decode_response_body(api, version, memoryview(data) if views else data)
        except WireError as error:
            self._connection.abort()
            raise BadFrameError(f"broker {self.address} sent an invalid response: {error}", blamed=True) from error
        except ConnectionClosedError:
            self._connection.abort()
            raise
        if seconds := silence(api, version, answer) if isinstance(answer, dict) else answer.silence:
            self._silent_until = max(self._silent_until, self._clock.monotonic() + seconds)
            if known is not None:
                known.forget()
        return answer  # type: ignore[no-any-return]

    async def exchange_token(self, token: bytes, timeout: float) -> bytes:
        """Send bare bytes with their size before them, and return those of the answer (SASL before KIP-152)."""
        frame = len(token).to_bytes(4) + token
        return await self._connection.request(frame, min_response=0, max_response=MAX_TOKEN_BYTES, timeout=timeout)

    async def send_token(self, token: bytes) -> None:
        """As `exchange_token`, without a response."""
        await self._connection.send(len(token).to_bytes(4) + token)

    async def send(
        self, api: Api[RequestT, Any], body: RequestT | PreparedRequest[Any], *, version: int | None = None
    ) -> None:
        """Send a request that has no answer (Produce with acks 0). Raises as `call`; a refusal ends the connection."""
        version = self.versions.pick(api) if version is None else version
        _, frame = self._frame(api, version, body)
        await self._admitted()
        await self._connection.send(frame)

    def _frame(self, api: Api[RequestT, Any], version: int, body: RequestT | PreparedRequest[Any]) -> tuple[int, bytes]:
        correlation_id = self._correlation_id
        self._correlation_id = 0 if correlation_id == _MAX_CORRELATION_ID else correlation_id + 1
        client_id = self._settings.client_id
        if isinstance(body, dict):
            frame = encode_request(api, version, body, correlation_id=correlation_id, client_id=client_id)
        else:
            prepared: Any = body  # no call of `cast` for each message
            frame = prepared.encode(correlation_id, client_id)
        if len(frame) > self._settings.max_request_bytes:
            raise RequestTooLargeError(
                f"a {api.name} request of {len(frame)} bytes is larger than max_request_bytes allows "
                f"({self._settings.max_request_bytes}): send less at once, or allow more here and on the brokers "
                "(socket.request.max.bytes)"
            )
        return correlation_id, frame

    async def _admitted(self) -> None:
        """Return when a request may be sent."""
        if (left := self._silent_until - self._clock.monotonic()) > 0:
            await self._clock.sleep(left)
        if self._session is not None and not self.closed:
            await self._session.admit()

    def now(self) -> float:
        """The time on its clock."""
        return self._clock.monotonic()

    def authenticated(self, until: float, renew: Callable[[SaslSession], Awaitable[None]]) -> None:
        """The broker accepts the authentication until that time on the clock; `renew` repeats it on this connection."""
        if self._session is None:
            self._session = SaslSession(self.address, until, renew, clock=self._clock, drop=self._connection.abort)
        else:
            self._session.extend(until)

    async def wait_closed(self) -> None:
        """Return when the socket is gone."""
        await self._connection.wait_closed()

    async def close(self) -> None:
        """Close the connection; requests that wait fail. Never raises."""
        session, self._session = self._session, None  # which knows this channel
        if session is not None:
            session.cancel()
        await self._connection.close()
        if session is not None:
            await session.close()

    def abort(self) -> None:
        """Drop the connection."""
        session, self._session = self._session, None
        if session is not None:
            session.cancel()
        self._connection.abort()
