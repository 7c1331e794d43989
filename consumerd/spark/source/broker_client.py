"""One blocking connection to a 0.7 broker, for tasks and planners: FETCH and OFFSETS, one request at a time.

Strategy: frames over a `FrameSocket`. Whatever goes wrong ends the connection: without correlation ids nothing could be
told apart after it (golden notes, 1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Self

from consumerd.spark.source.errors import OffsetGoneError
from consumerd.spark.source.frames import FrameSocket
from consumerd.wire.errors import WireError
from consumerd.wire.v07 import (
    ErrorCode,
    FetchRequest,
    OffsetsRequest,
    decode_fetch_response,
    decode_offsets_response,
)

if TYPE_CHECKING:
    from types import TracebackType

#: Seconds for connecting, and for each answer.
DEFAULT_TIMEOUT: Final = 30.0
#: What a fetch's answer has before the log's bytes: the error code.
_FETCH_HEAD: Final = 2
#: Error code and count of an answer to OFFSETS.
_OFFSETS_HEAD: Final = 6
#: A broker's whole list of segments is never longer: it is an int32 of bytes.
_MAX_OFFSETS: Final = 1 << 20


class BrokerClient:
    """A connection, made at once. Close it, or use it as a context manager.

    Every method raises BrokerReadError (unreachable, hung up, late, or no valid answer), after which the client is
    closed. Not for several threads.
    """

    def __init__(self, host: str, port: int, timeout: float = DEFAULT_TIMEOUT) -> None:
        self._frames = FrameSocket(host, port, timeout)
        self.name = self._frames.name

    def fetch(self, topic: str, partition: int, offset: int, size: int) -> bytes:
        """Up to `size` bytes of the log from `offset` on, cut off anywhere; b"" at its end and for unknown topics.

        A fetch never crosses a segment. Raises OffsetGoneError too, after which the client can still be used.
        """
        where = f"{topic}/{partition} from {offset}"
        try:
            request = FetchRequest(topic, partition, offset, size).encode()
            answer = decode_fetch_response(self._frames.ask(request, _FETCH_HEAD, _FETCH_HEAD + size, where))
        except WireError as error:
            raise self._frames.broken(f"has no valid answer to a fetch of {where}: {error}") from error
        if answer.error is ErrorCode.OFFSET_OUT_OF_RANGE:
            raise OffsetGoneError(f"broker {self.name} has nothing of {where}: OffsetOutOfRange")
        if answer.error is not ErrorCode.NONE:
            raise self._frames.broken(f"refuses a fetch of {where}: {answer.error.name}")
        return answer.data

    def offsets(self, topic: str, partition: int, when: int, count: int) -> tuple[int, ...]:
        """Up to `count` offsets of segments, descending, written before `when` (ms since 1970, LATEST or EARLIEST)."""
        where = f"{topic}/{partition}"
        # A real broker answers EARLIEST and LATEST with one offset even where none is asked for (golden notes, 1).
        most = _OFFSETS_HEAD + 8 * max(1, min(count, _MAX_OFFSETS))
        try:
            request = OffsetsRequest(topic, partition, when, count).encode()
            answer = decode_offsets_response(self._frames.ask(request, _OFFSETS_HEAD, most, where))
        except WireError as error:
            raise self._frames.broken(f"has no valid answer about the offsets of {where}: {error}") from error
        if answer.error is not ErrorCode.NONE:
            raise self._frames.broken(f"refuses to tell the offsets of {where}: {answer.error.name}")
        if any(offset < 0 for offset in answer.offsets):
            raise self._frames.broken(f"tells negative offsets of {where}")
        return answer.offsets

    def close(self) -> None:
        """End the connection; more than once is fine."""
        self._frames.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
