"""The low-level consumer of 0.7: one broker, one request at a time, no state but the connection (spec 003, 5.1).

Strategy: each method is one request and its answer. A request whose connection broke is sent once more over a new
one, as the real client does (golden notes, 6): all three requests only read, so repeating them is safe. The connection
is made when it is needed; concurrent calls share it, and their requests are pipelined. Each error code that a broker
answers a fetch with is an error class of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Self, TypeVar

import structlog

from consumerd.base.errors import BrokerError, reason_of
from consumerd.base.settings.processing import FetchSection
from consumerd.member.consumer.errors import ConnectorStateError
from consumerd.net.connect import Connection, Connector
from consumerd.net.connect import connect as connect_to_broker
from consumerd.net.connection import ConnectionSettings
from consumerd.net.errors import ConnectionClosedError
from consumerd.wire.errors import FrameError, WireError
from consumerd.wire.v07 import (
    DEFAULT_LIMITS,
    DecodeLimits,
    ErrorCode,
    FetchRequest,
    FetchResponse,
    MessageBatch,
    MultiFetchRequest,
    OffsetsRequest,
    decode_batch,
    decode_fetch_response,
    decode_multifetch_response,
    decode_offsets_response,
)

_T = TypeVar("_T")


log = structlog.get_logger(__name__)

#: Largest size in the protocol: an int32.
LARGEST = 2**31 - 1


class FetchRefusedError(BrokerError):
    """The broker answered a fetch with an error. `request` is the request."""

    def __init__(self, request: FetchRequest, code: ErrorCode) -> None:
        super().__init__(
            f"the broker refused to fetch {request.topic!r}, partition {request.partition}, from offset "
            f"{request.offset}: {_REASONS[code]}"
        )
        self.request = request
        self.code = code


class OffsetOutOfRangeError(FetchRefusedError):
    """The offset does not exist (any more, or yet)."""


class WrongPartitionError(FetchRefusedError):
    """The broker does not have a partition of this number."""


class InvalidMessageError(FetchRefusedError):
    """The broker found a corrupt message. Brokers of 0.7.2 never send this (golden notes, 1)."""


class InvalidFetchSizeError(FetchRefusedError):
    """The requested size is invalid. Brokers of 0.7.2 never send this; the client raises it before sending."""


class UnknownRefusalError(FetchRefusedError):
    """The broker failed for another reason: an illegal topic name, or an error that only its log shows."""


_REASONS: dict[ErrorCode, str] = {
    ErrorCode.UNKNOWN: "an unknown error; is the topic's name legal? The broker's log says more",
    ErrorCode.OFFSET_OUT_OF_RANGE: "it has no such offset; get_offsets_before returns the offsets it has",
    ErrorCode.INVALID_MESSAGE: "the message there is corrupt",
    ErrorCode.WRONG_PARTITION: "it has no such partition",
    ErrorCode.INVALID_FETCH_SIZE: "a size to fetch lies between 0 and 2 GiB",
}
_CLASSES: dict[ErrorCode, type[FetchRefusedError]] = {
    ErrorCode.UNKNOWN: UnknownRefusalError,
    ErrorCode.OFFSET_OUT_OF_RANGE: OffsetOutOfRangeError,
    ErrorCode.INVALID_MESSAGE: InvalidMessageError,
    ErrorCode.WRONG_PARTITION: WrongPartitionError,
    ErrorCode.INVALID_FETCH_SIZE: InvalidFetchSizeError,
}


def refusal(request: FetchRequest, code: ErrorCode) -> FetchRefusedError:
    """Return the error for a code other than NONE."""
    return _CLASSES[code](request, code)


@dataclass(frozen=True, slots=True)
class FetchResult:
    """One entry of a `multifetch`: `error` is None, or `batch` raises it."""

    request: FetchRequest
    error: FetchRefusedError | None
    _batch: MessageBatch | None = field(repr=False)

    @property
    def batch(self) -> MessageBatch:
        """The messages. Raises FetchRefusedError."""
        if self.error is not None:
            raise self.error
        assert self._batch is not None
        return self._batch


class SimpleConsumer:
    """A connection to the broker at `host:port`, as `async with SimpleConsumer(...) as consumer:`.

    `timeout` is for one answer, `connect_timeout` for a connection, in seconds. `limits` bound the memory and work of
    decoding. Every method may raise ConnectError, ConnectionClosedError (RequestTimeoutError, ...), and FrameError for
    an invalid response.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        timeout: float = FetchSection.socket_timeout,
        connect_timeout: float = FetchSection.connect_timeout,
        limits: DecodeLimits = DEFAULT_LIMITS,
        connect: Connector | None = None,
    ) -> None:
        self._host = host
        self._port = port
        settings = ConnectionSettings(connect_timeout=connect_timeout, socket_timeout=timeout, max_frame_bytes=LARGEST)
        self._connect = connect or partial(connect_to_broker, settings=settings)
        self._limits = limits
        self._connection: Connection | None = None
        self._connecting = asyncio.Lock()
        self._closed = False

    async def __aenter__(self) -> Self:
        await self._connected()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection; calls under way fail, later ones raise ConnectorStateError."""
        self._closed = True
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def fetch(self, topic: str, partition: int, offset: int, max_size: int) -> MessageBatch:
        """Fetch the messages from `offset` on, in at most `max_size` bytes of the log; the next begin at `next_offset`.

        An empty batch is the end of the log, an unknown topic, or a message larger than `max_size`: then `end`
        is PARTIAL, and `needed` the size to request, if known. Corrupt messages are not raised but reported by `end`
        and `problem`. Raises FetchRefusedError: OffsetOutOfRangeError, WrongPartitionError, UnknownRefusalError, ...
        """
        request = FetchRequest(topic, partition, offset, max_size)
        _check_size(request)
        body = await self._ask(request, request.longest_response)
        return self._result(request, await self._read(decode_fetch_response, body)).batch

    async def multifetch(self, requests: Iterable[FetchRequest]) -> list[FetchResult]:
        """Several fetches in one request; one result for each, in this order. A refused one does not affect others."""
        fetches = tuple(requests)
        for fetch in fetches:
            _check_size(fetch)
        longest = MultiFetchRequest.longest_response_to(fetch.max_size for fetch in fetches)
        body = await self._ask(MultiFetchRequest(fetches), min(longest, LARGEST))
        answer = await self._read(lambda data: decode_multifetch_response(data, len(fetches)), body)
        if answer.error:  # for all of them; real brokers never send it
            return [FetchResult(fetch, refusal(fetch, answer.error), None) for fetch in fetches]
        return [self._result(fetch, entry) for fetch, entry in zip(fetches, answer.entries, strict=True)]

    async def get_offsets_before(self, topic: str, partition: int, time: int, max_number: int) -> tuple[int, ...]:
        """Up to `max_number` offsets, descending, of segments last written before `time`.

        `time` is in milliseconds since 1970, or LATEST (the end offset) or EARLIEST (the first one kept). Brokers
        close the connection on a bad topic or partition: ConnectionClosedError (golden notes, 1).
        """
        request = OffsetsRequest(topic, partition, time, max_number)
        body = await self._ask(request, min(request.longest_response, LARGEST))
        return await self._read(self._offsets, body)

    def _offsets(self, body: bytes) -> tuple[int, ...]:
        offsets = decode_offsets_response(body).offsets
        if any(offset < 0 for offset in offsets):
            raise FrameError(f"broker {self._host}:{self._port} answered with the offset {min(offsets)}")
        return offsets

    def _result(self, request: FetchRequest, answer: FetchResponse) -> FetchResult:
        if answer.error != ErrorCode.NONE:
            return FetchResult(request, refusal(request, answer.error), None)
        return FetchResult(request, None, decode_batch(answer.data, request.offset, limits=self._limits))

    async def _ask(self, request: FetchRequest | MultiFetchRequest | OffsetsRequest, longest: int) -> bytes:
        frame = request.encode()
        connection = await self._connected()
        try:
            return await connection.request(frame, max_response=longest)
        except ConnectionClosedError as error:
            log.info("request_repeated", broker=f"{self._host}:{self._port}", reason=reason_of(error))
        connection = await self._connected()
        return await connection.request(frame, max_response=longest)

    async def _read(self, decode: Callable[[bytes], _T], body: bytes) -> _T:
        try:
            return decode(body)
        except WireError:
            connection, self._connection = self._connection, None
            if connection is not None:
                await connection.close()
            raise

    async def _connected(self) -> Connection:
        async with self._connecting:
            if self._closed:
                raise ConnectorStateError("the consumer is closed; create a new one")
            if self._connection is None or self._connection.closed:
                self._connection = await self._connect(self._host, self._port)
            return self._connection


def _check_size(request: FetchRequest) -> None:
    """Reject a negative size: a broker answers it with a broken frame, and closes the connection (golden notes, 1)."""
    if request.max_size < 0 or request.longest_response > LARGEST:
        raise InvalidFetchSizeError(request, ErrorCode.INVALID_FETCH_SIZE)
