"""The five requests, client side (`encode`) and server side (`decode_request`).

Strategy: one frozen dataclass per request, whose `encode` gives the whole frame; one reader per request type, `(body,
position) -> (value, position)`, in a table. A frame is int32 length, int16 type, body. Single requests continue with
topic and partition, multi requests with an int16 count of entries that each begin so (spec 000, both request headers;
golden notes, 1).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Self, cast

from consumerd.base.native import codec as native_codec
from consumerd.wire.compression import at_once
from consumerd.wire.errors import EncodeError, FrameError
from consumerd.wire.v07.constants import RequestType

_INT16 = struct.Struct(">h")
_FRAME = struct.Struct(">ih")
_FETCH = struct.Struct(">iqi")
_OFFSETS = struct.Struct(">iqi")
_PRODUCE = struct.Struct(">ii")
_ERROR_BYTES = 2

#: A larger multi request or message set is read where it stands, a smaller one from a copy, which is faster.
_COPIED = 1 << 16
#: Entries and bytes of a multi request that are read in one step.
_STEP_ENTRIES = 512
_STEP_BYTES = 1 << 22
#: Bytes that are shown of a topic name that is not UTF-8.
_SHOWN = 1024


def _frame(kind: RequestType, *parts: bytes) -> bytes:
    try:
        return b"".join((_FRAME.pack(2 + sum(map(len, parts)), kind), *parts))
    except struct.error as error:
        raise EncodeError(f"a {kind.name} request is too long for one frame") from error


def _topic(topic: str) -> bytes:
    try:
        name = topic.encode()
        return _INT16.pack(len(name)) + name
    except (UnicodeEncodeError, struct.error) as error:
        raise EncodeError(f"the topic name {topic[:20]!r}... cannot be sent: not UTF-8, or too long") from error


def _numbers(layout: struct.Struct, what: str, *values: int) -> bytes:
    try:
        return layout.pack(*values)
    except struct.error as error:
        raise EncodeError(f"a number does not fit into a {what}: {', '.join(map(str, values))}") from error


def _count(kind: RequestType, entries: int) -> bytes:
    try:
        return _INT16.pack(entries)
    except struct.error as error:
        raise EncodeError(f"{entries} entries are too many for one {kind.name} request; send at most 32767") from error


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """Fetch up to `max_size` bytes of a partition's log from `offset` on."""

    topic: str
    partition: int
    offset: int
    max_size: int

    def entry(self) -> bytes:
        """The request without frame and type: what a MULTIFETCH repeats."""
        return _topic(self.topic) + _numbers(_FETCH, "fetch request", self.partition, self.offset, self.max_size)

    def encode(self) -> bytes:
        """The whole frame. Raises EncodeError."""
        return _frame(RequestType.FETCH, self.entry())

    @property
    def longest_response(self) -> int:
        """The bytes of the longest response: its error code, and `max_size` of the log."""
        return _ERROR_BYTES + self.max_size


@dataclass(frozen=True, slots=True)
class MultiFetchRequest:
    """Several fetches, answered in one frame in this order."""

    fetches: tuple[FetchRequest, ...]

    def encode(self) -> bytes:
        """The whole frame. Raises EncodeError."""
        return self.frame([fetch.entry() for fetch in self.fetches])

    @staticmethod
    def frame(entries: Sequence[bytes]) -> bytes:
        """The whole frame of entries that were encoded before (`FetchRequest.entry`). Raises EncodeError."""
        kind = RequestType.MULTIFETCH
        return _frame(kind, _count(kind, len(entries)), *entries)

    @staticmethod
    def longest_response_to(sizes: Iterable[int]) -> int:
        """The bytes of the longest response to entries for these sizes: each has its length and its error code."""
        return _ERROR_BYTES + sum(4 + _ERROR_BYTES + size for size in sizes)


@dataclass(frozen=True, slots=True)
class ProduceRequest:
    """Append `messages`, an encoded message set, to a partition; with partition -1 the broker chooses.

    There is never an answer (golden notes, 1).
    """

    topic: str
    partition: int
    messages: bytes

    def parts(self) -> tuple[bytes, bytes, bytes]:
        """The request without frame and type, in parts: what a MULTIPRODUCE repeats."""
        sizes = _numbers(_PRODUCE, "produce request", self.partition, len(self.messages))
        return _topic(self.topic), sizes, self.messages

    def encode(self) -> bytes:
        """The whole frame. Raises EncodeError."""
        return _frame(RequestType.PRODUCE, *self.parts())


@dataclass(frozen=True, slots=True)
class EncodedProduceRequest:
    """A `ProduceRequest` of plain messages that was encoded at once, from its payloads into one buffer: `frame`."""

    topic: str
    partition: int
    frame: bytes

    @classmethod
    def of(cls, topic: str, partition: int, payloads: Sequence[bytes], largest: int, most: int) -> Self | None:
        """The request with a message of magic 1 for each payload, by the native codec.

        None without it, or where the pure code has to decide: payloads that are not a list of bytes, one of more than
        `largest` bytes, a message set of more than `most`, and what no request can have.
        """
        native = native_codec()
        if native is None:
            return None
        try:
            name = topic.encode()
        except UnicodeEncodeError:
            return None
        frame = native.encode_produce(name, partition, payloads, largest, most)
        return None if frame is None else cls(topic, partition, frame)


@dataclass(frozen=True, slots=True)
class MultiProduceRequest:
    """Several produce requests in one frame. No answer comes."""

    produces: tuple[ProduceRequest, ...]

    def encode(self) -> bytes:
        """The whole frame. Raises EncodeError."""
        kind = RequestType.MULTIPRODUCE
        return _frame(
            kind, _count(kind, len(self.produces)), *chain.from_iterable(each.parts() for each in self.produces)
        )


@dataclass(frozen=True, slots=True)
class OffsetsRequest:
    """List up to `max_number` offsets, descending, of segments last written before `time` (ms since 1970, LATEST or
    EARLIEST).

    A negative `max_number` can be sent; brokers close the connection over it.
    """

    topic: str
    partition: int
    time: int
    max_number: int

    def encode(self) -> bytes:
        """The whole frame. Raises EncodeError."""
        numbers = _numbers(_OFFSETS, "offsets request", self.partition, self.time, self.max_number)
        return _frame(RequestType.OFFSETS, _topic(self.topic), numbers)

    @property
    def longest_response(self) -> int:
        """The bytes of the longest response: its error code, the number of the offsets, and eight for each."""
        return _ERROR_BYTES + 4 + 8 * max(self.max_number, 1)


Request = FetchRequest | MultiFetchRequest | ProduceRequest | MultiProduceRequest | OffsetsRequest


def decode_request(body: bytes | memoryview) -> Request:
    """Read a request; `body` is the frame without its length field. Bytes after a whole request are ignored.

    Topic names and numbers are passed on as they came, for the broker to judge; in names, bytes that are not UTF-8
    become U+FFFD, which no valid topic holds, and of a long one only the beginning comes. Raises FrameError for an
    unknown type, a cut-off body, a null topic, or a negative count or set size: for all of these a real broker closes
    the connection (golden notes, 1).
    """
    request = at_once(decode_request_steps(body))
    # Message sets are to be bytes, not parts of a buffer.
    if isinstance(request, MultiProduceRequest):
        return MultiProduceRequest(tuple(_owned_entry(entry) for entry in request.produces))
    return _owned_entry(request) if isinstance(request, ProduceRequest) else request


def _owned_entry(entry: ProduceRequest) -> ProduceRequest:
    return replace(entry, messages=bytes(entry.messages))


def decode_request_steps(body: bytes | memoryview) -> Generator[None, None, Request]:
    """As `decode_request`, in steps of a millisecond or two: a multi request may have 32,767 entries.

    `body` must stay as it is until the end. Message sets of a large memoryview are parts of it, not copies: they are
    good for as long as its bytes stay as they are.
    """
    single = decode_single_request(body)
    if single is not None:
        return single
    data = body if len(body) > _COPIED else bytes(body)
    try:
        (number,) = _INT16.unpack_from(data)
        read = _ENTRY_READERS[number]
        count, position = _read_count(data, 2)
        entries: list[Any] = []
        step = 0  # the first entry begins one
        for _ in range(count):
            if not len(entries) % _STEP_ENTRIES or position - step > _STEP_BYTES:
                step = position
                yield
            entry, position = read(data, position)
            entries.append(entry)
        return _MULTIPLE[number](tuple(entries))
    except struct.error as error:
        raise _cut(data) from error


def decode_single_request(body: bytes | memoryview) -> Request | None:
    """As `decode_request_steps`, at once; None for a multi request, of which only the type was read."""
    try:
        (number,) = _INT16.unpack_from(body)
        read = _READERS.get(number)
        if read is not None:
            return read(body, 2)[0]
    except struct.error as error:
        raise _cut(body) from error
    if number not in _ENTRY_READERS:
        raise FrameError(f"request type {number} does not exist; 0 to 4 do")
    return None


def _cut(data: bytes | memoryview) -> FrameError:
    return FrameError(f"a request of {len(data)} bytes ends within a field")


def _read_topic(data: bytes | memoryview, position: int) -> tuple[str, int]:
    (size,) = _INT16.unpack_from(data, position)
    start, end = position + 2, position + 2 + size
    if size < 0 or end > len(data):
        raise FrameError(f"a topic name of {size} bytes where {len(data) - start} are left")
    try:
        return str(data[start:end], "utf-8"), end
    except UnicodeDecodeError:
        shown = str(data[start : min(end, start + _SHOWN)], "utf-8", "replace")  # 30 ns a byte: not of all that comes
        return (shown if end - start <= _SHOWN else shown + "\ufffd"), end


def _read_count(data: bytes | memoryview, position: int) -> tuple[int, int]:
    (count,) = _INT16.unpack_from(data, position)
    if count < 0:
        raise FrameError(f"a request with {count} entries")
    return count, position + 2


def _read_fetch(data: bytes | memoryview, position: int) -> tuple[FetchRequest, int]:
    topic, position = _read_topic(data, position)
    return FetchRequest(topic, *_FETCH.unpack_from(data, position)), position + _FETCH.size


def _read_produce(data: bytes | memoryview, position: int) -> tuple[ProduceRequest, int]:
    topic, position = _read_topic(data, position)
    partition, size = _PRODUCE.unpack_from(data, position)
    start, end = position + _PRODUCE.size, position + _PRODUCE.size + size
    if size < 0 or end > len(data):
        raise FrameError(f"a message set of {size} bytes where {len(data) - start} are left")
    messages = data[start:end]
    if size <= _COPIED:
        messages = bytes(messages)
    return ProduceRequest(topic, partition, cast("bytes", messages)), end


def _read_offsets(data: bytes | memoryview, position: int) -> tuple[OffsetsRequest, int]:
    topic, position = _read_topic(data, position)
    return OffsetsRequest(topic, *_OFFSETS.unpack_from(data, position)), position + _OFFSETS.size


_READERS: dict[int, Callable[[bytes | memoryview, int], tuple[Request, int]]] = {
    RequestType.PRODUCE: _read_produce,
    RequestType.FETCH: _read_fetch,
    RequestType.OFFSETS: _read_offsets,
}
#: The entries of multi requests, and what is made of them.
_ENTRY_READERS: dict[int, Callable[[bytes | memoryview, int], tuple[Any, int]]] = {
    RequestType.MULTIFETCH: _read_fetch,
    RequestType.MULTIPRODUCE: _read_produce,
}
_MULTIPLE: dict[int, Callable[[tuple[Any, ...]], Request]] = {
    RequestType.MULTIFETCH: MultiFetchRequest,
    RequestType.MULTIPRODUCE: MultiProduceRequest,
}
