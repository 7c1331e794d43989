"""One blocking connection to a 0.7 broker, for tasks and planners: FETCH and OFFSETS, one request at a time.

Strategy: a plain socket. The length of a response is compared with the request before anything is allocated for it. Any
failure is one error that names the broker, and closes the connection: without correlation ids, later responses could
not be attributed (golden notes, 1).
"""

from __future__ import annotations

import socket
import time
from typing import Final, Self

from consumerd.base.errors import reason_of
from consumerd.spark.source.errors import (
    BrokerReadError,
    BrokerTimeoutError,
    BrokerUnavailableError,
    OffsetUnavailableError,
)
from consumerd.spark.source.request import DEFAULT_TIMEOUT
from consumerd.wire.errors import WireError
from consumerd.wire.tls import is_tls_alert
from consumerd.wire.v07 import (
    ErrorCode,
    FetchRequest,
    OffsetsRequest,
    decode_fetch_response,
    decode_offsets_response,
)

#: Bytes of a FETCH response before those of the log: the error code.
_FETCH_HEAD: Final = 2
#: Error code and count of an answer to OFFSETS.
_OFFSETS_HEAD: Final = 6
#: A broker's whole list of segments is never longer: it is an int32 of bytes.
_MAX_OFFSETS: Final = 1 << 20


class BrokerClient:
    """A connection, made at once. Close it, or use it as a context manager.

    Every method raises BrokerReadError, after which the client is closed: BrokerUnavailableError if the broker is
    unreachable or closes the connection, BrokerTimeoutError after `timeout` seconds, for each whole response: a broker
    that trickles bytes times out like one that is silent. `name`: `host:port`. Not for several threads.
    """

    def __init__(self, host: str, port: int, timeout: float = DEFAULT_TIMEOUT) -> None:
        self.name = f"{host}:{port}"
        self._timeout = timeout
        try:
            self._socket = socket.create_connection((host, port), timeout=timeout)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except (OSError, UnicodeError, OverflowError) as error:  # names and numbers that no address has
            raise BrokerUnavailableError(
                f"cannot connect to broker {self.name}: {_reason(error)}; is it running, and reachable from executors?"
            ) from error

    def fetch(self, topic: str, partition: int, offset: int, size: int) -> bytes:
        """Up to `size` bytes of the log from `offset` on, cut off anywhere; b"" at its end and for unknown topics.

        A fetch never crosses a segment. Raises OffsetUnavailableError too, after which the client can still be used.
        """
        where = f"{topic}/{partition} from {offset}"
        try:
            request = FetchRequest(topic, partition, offset, size).encode()
            answer = decode_fetch_response(self._ask(request, _FETCH_HEAD, _FETCH_HEAD + size, where))
        except WireError as error:
            raise self._broken(f"sent an invalid response to a fetch of {where}: {error}") from error
        if answer.error is ErrorCode.OFFSET_OUT_OF_RANGE:
            raise OffsetUnavailableError(f"broker {self.name} does not have {where}: OffsetOutOfRange")
        if answer.error is not ErrorCode.NONE:
            raise self._broken(f"rejected a fetch of {where}: {answer.error.name}")
        return answer.data

    def offsets(self, topic: str, partition: int, when: int, count: int) -> tuple[int, ...]:
        """Up to `count` offsets of segments, descending, written before `when` (ms since 1970, LATEST or EARLIEST)."""
        where = f"{topic}/{partition}"
        # A real broker answers EARLIEST and LATEST with one offset even if none is requested (golden notes, 1).
        most = _OFFSETS_HEAD + 8 * max(1, min(count, _MAX_OFFSETS))
        try:
            request = OffsetsRequest(topic, partition, when, count).encode()
            answer = decode_offsets_response(self._ask(request, _OFFSETS_HEAD, most, where))
        except WireError as error:
            raise self._broken(f"sent an invalid response to an offsets request for {where}: {error}") from error
        if answer.error is not ErrorCode.NONE:
            raise self._broken(f"rejected an offsets request for {where}: {answer.error.name}")
        if any(offset < 0 for offset in answer.offsets):
            raise self._broken(f"sent negative offsets of {where}")
        return answer.offsets

    def close(self) -> None:
        """End the connection; more than once is fine."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, request: bytes, least: int, most: int, where: str) -> memoryview:
        """The body of the response, which must have this many bytes. `where`: the partition, for errors."""
        deadline = time.monotonic() + self._timeout
        try:
            self._socket.settimeout(self._timeout)
            self._socket.sendall(request)
            size = int.from_bytes(self._receive(4, deadline), signed=True)
            if size > most and is_tls_alert(size):
                raise self._broken("answered with TLS, which brokers of Kafka 0.7 do not speak")
            if not least <= size <= most:
                raise self._broken(
                    f"announced a response of {size} bytes to a request for {where}; expected {least} to {most} bytes"
                )
            return self._receive(size, deadline)
        except TimeoutError as error:
            what = f"did not respond to a request for {where} within {self._timeout:g} s; is it overloaded?"
            raise self._broken(what, BrokerTimeoutError) from error
        except OSError as error:
            what = f"closed the connection before it responded to a request for {where}: {_reason(error)}"
            raise self._broken(what, BrokerUnavailableError) from error

    def _broken(self, what: str, kind: type[BrokerReadError] = BrokerReadError) -> BrokerReadError:
        """Close the connection; returns the error to raise, which names the broker before `what`."""
        self.close()
        return kind(f"broker {self.name} {what}")

    def _receive(self, size: int, deadline: float) -> memoryview:
        """Exactly this many bytes. Raises OSError, TimeoutError."""
        view, filled = memoryview(bytearray(size)), 0  # large ones take memory only as they fill
        while filled < size:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._socket.settimeout(left)
            count = self._socket.recv_into(view[filled:])
            if not count:
                raise ConnectionResetError(0, f"end of stream after {filled} of {size} bytes")
            filled += count
        return view


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "timed out"
    return error.strerror if isinstance(error, OSError) and error.strerror else reason_of(error)
