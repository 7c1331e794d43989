"""The three responses (PRODUCE and MULTIPRODUCE have none), client side (`decode_*`) and server side (`encode`).

Strategy: a response frame names neither request nor topic; only the order of requests tells, and a MULTIFETCH
answer does not even have the number of its entries, so the caller passes the count. Every length counts the error code
after it (spec 000, Response Header; spec 003, 5.5 Reads; golden notes, 1). A broker sends log bytes straight from the
file: for it there are headers alone.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass

from consumerd.wire.errors import EncodeError, FrameError
from consumerd.wire.v07.constants import ErrorCode

_HEAD = struct.Struct(">ih")
_ERROR = struct.Struct(">h")
_OFFSETS_HEAD = struct.Struct(">hi")


def fetch_response_header(error: int, size: int) -> bytes:
    """The 6 bytes before `size` bytes of log: a whole FETCH answer's header, or that of one entry of a MULTIFETCH
    answer.

    A negative size gives the broken frame that 0.7.2 answers to a negative max size. Raises EncodeError beyond int32.
    """
    try:
        return _HEAD.pack(2 + size, error)
    except struct.error as failure:
        raise EncodeError(f"{size} bytes are too many for one response") from failure


def multifetch_response_header(sizes: Iterable[int], error: int = ErrorCode.NONE) -> bytes:
    """The 6 bytes before the entries of a MULTIFETCH answer; `sizes`: the bytes of log in each. Raises EncodeError."""
    return fetch_response_header(error, sum(_HEAD.size + size for size in sizes))


@dataclass(frozen=True, slots=True)
class FetchResponse:
    """Bytes of the log, cut off anywhere, or an error."""

    error: ErrorCode
    data: bytes

    def encode(self) -> bytes:
        """The whole frame. Raises EncodeError."""
        return fetch_response_header(self.error, len(self.data)) + self.data


@dataclass(frozen=True, slots=True)
class MultiFetchResponse:
    """One entry per fetch, in the order of the request; `error` is always 0 from real brokers."""

    error: ErrorCode
    entries: tuple[FetchResponse, ...]

    def encode(self) -> bytes:
        """The whole frame. Raises EncodeError."""
        head = multifetch_response_header((len(entry.data) for entry in self.entries), self.error)
        return b"".join((head, *(entry.encode() for entry in self.entries)))


@dataclass(frozen=True, slots=True)
class OffsetsResponse:
    """Offsets, descending. Errors are never coded: brokers close the connection instead."""

    error: ErrorCode
    offsets: tuple[int, ...]

    def encode(self) -> bytes:
        """The whole frame. Raises EncodeError."""
        count = len(self.offsets)
        try:
            return struct.pack(f">ihi{count}q", 6 + 8 * count, self.error, count, *self.offsets)
        except struct.error as error:
            raise EncodeError("an offset does not fit into 64 bits, or there are too many") from error


def _error_code(number: int) -> ErrorCode:
    """Codes that are not in the table count as UNKNOWN, as the real client maps them."""
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNKNOWN


def split_fetch_response(body: bytes | memoryview) -> tuple[ErrorCode, memoryview]:
    """As `decode_fetch_response`, but the messages are a part of `body`, not a copy. Raises FrameError."""
    if len(body) < _ERROR.size:
        raise FrameError(f"a fetch response of {len(body)} bytes has no room for its error code")
    (error,) = _ERROR.unpack_from(body)
    return _error_code(error), memoryview(body)[_ERROR.size :]


def decode_fetch_response(body: bytes | memoryview) -> FetchResponse:
    """Read a FETCH answer; `body` is the frame without its length field. Raises FrameError."""
    error, messages = split_fetch_response(body)
    return FetchResponse(error, bytes(messages))


_NOTHING = FetchResponse(ErrorCode.NONE, b"")
_NOTHING_BYTES = _HEAD.pack(_ERROR.size, ErrorCode.NONE)


def decode_multifetch_response(body: bytes | memoryview, count: int) -> MultiFetchResponse:
    """Read the answer to a MULTIFETCH of `count` fetches; `body` is the frame without its length field.

    With an overall error there are no entries. Raises FrameError, also when more or fewer entries than `count` came.
    """
    if len(body) < _ERROR.size:
        raise FrameError(f"a multifetch response of {len(body)} bytes has no room for its error code")
    (error,) = _ERROR.unpack_from(body)
    if error != ErrorCode.NONE:
        return MultiFetchResponse(_error_code(error), ())
    position = _ERROR.size
    if len(body) == position + count * len(_NOTHING_BYTES) and body[position:] == _NOTHING_BYTES * count:
        return MultiFetchResponse(ErrorCode.NONE, (_NOTHING,) * count)  # as most polls of idle partitions are answered
    entries = []
    for number in range(count):
        if len(body) - position < _HEAD.size:
            raise FrameError(f"a multifetch response ends before entry {number} of {count}")
        size, code = _HEAD.unpack_from(body, position)
        start, end = position + _HEAD.size, position + 4 + size
        if size < _ERROR.size or end > len(body):
            raise FrameError(
                f"entry {number} of a multifetch response claims {size} bytes, {len(body) - start + 2} are left"
            )
        entries.append(FetchResponse(_error_code(code), bytes(body[start:end])))
        position = end
    if position != len(body):
        raise FrameError(f"a multifetch response has {len(body) - position} bytes after its {count} entries")
    return MultiFetchResponse(ErrorCode.NONE, tuple(entries))


def decode_offsets_response(body: bytes | memoryview) -> OffsetsResponse:
    """Read an OFFSETS answer; `body` is the frame without its length field. Raises FrameError."""
    if len(body) < _OFFSETS_HEAD.size:
        raise FrameError(f"an offsets response of {len(body)} bytes has no room for its header")
    error, count = _OFFSETS_HEAD.unpack_from(body)
    if count < 0 or len(body) != _OFFSETS_HEAD.size + 8 * count:
        raise FrameError(f"an offsets response of {len(body)} bytes claims {count} offsets")
    return OffsetsResponse(_error_code(error), struct.unpack_from(f">{count}q", body, _OFFSETS_HEAD.size))
