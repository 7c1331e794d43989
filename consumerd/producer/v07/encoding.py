"""Payloads -> message sets and frames that a broker accepts, or a clear refusal before anything is sent.

Strategy: brokers drop a set with an oversize message silently and close the connection on an oversize request (golden
notes, 1), and there is no answer that could tell. So both limits are kept here: a message over the limit is an
error, a wrapper over it is made again from halves, and a set over the request limit becomes several.

Of the sets for one broker, one alone is a PRODUCE, several are a MULTIPRODUCE with an entry each, in order, also for
one and the same partition: what 0.7.2's synchronous producer does, while its asynchronous one sends nothing but
MULTIPRODUCE (golden notes, 7).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from consumerd.producer.errors import MessageSizeTooLargeError
from consumerd.wire.compression import Codec
from consumerd.wire.v07 import MultiProduceRequest, ProduceRequest, encode_message_set

#: Bytes of a magic-1 message beside its payload: length, magic, attributes, CRC.
HEADER = 10
#: A wrapper over more messages than this is not made, however well they compress: consumers hold it decompressed, and
#: refuse a wrapper that grows too much (`wire.v07.DecodeLimits`).
MAX_WRAPPED_BYTES = 16 * 1024 * 1024
#: Type and count of a MULTIPRODUCE, which the limit counts; the length field itself it does not.
_FRAME_OVERHEAD = 4
#: Topic length, partition and set size of an entry.
_ENTRY_OVERHEAD = 10
#: The count of entries is an int16.
_MAX_ENTRIES = 32767


def encode_sets(
    topic: str, payloads: Sequence[bytes], *, magic: int, codec: Codec, max_message_bytes: int, max_set_bytes: int
) -> list[bytes]:
    """The message sets to send, in order; each has at most `max_set_bytes`.

    `max_message_bytes` bounds the payload of an outermost message, as the broker's max.message.size does. `topic` is
    only for the error. Raises MessageSizeTooLargeError.
    """
    if codec is Codec.NONE:
        _check(topic, max(map(len, payloads), default=0), max_message_bytes)
        return [encode_message_set(part, magic=magic) for part in _parts(payloads, max_set_bytes)]
    wrappers = (
        wrapper
        for part in _parts(payloads, MAX_WRAPPED_BYTES)
        for wrapper in _wrappers(topic, part, magic, codec, max_message_bytes)
    )
    return _join(wrappers, max_set_bytes)


def _check(topic: str, size: int, limit: int) -> None:
    if size > limit:
        raise MessageSizeTooLargeError(
            f"a message for topic {topic!r} has {size} bytes and the limit is {limit}: brokers drop larger ones "
            "silently; if yours have a larger max.message.size, raise the producer's limit."
        )


def _parts(payloads: Sequence[bytes], max_set_bytes: int) -> Iterator[Sequence[bytes]]:
    """Consecutive parts of `payloads` whose message sets have at most `max_set_bytes`, as few as can be."""
    if sum(map(len, payloads)) + HEADER * len(payloads) <= max_set_bytes:
        yield payloads
        return
    first, size = 0, 0
    for position, payload in enumerate(payloads):
        more = HEADER + len(payload)
        if size + more > max_set_bytes and position > first:
            yield payloads[first:position]
            first, size = position, 0
        size += more
    yield payloads[first:]


def _wrappers(
    topic: str, payloads: Sequence[bytes], magic: int, codec: Codec, max_message_bytes: int
) -> Iterator[bytes]:
    """Compressed messages over all of `payloads`: one, unless that would be too large."""
    wrapper = encode_message_set(payloads, magic=magic, codec=codec)
    if len(wrapper) - HEADER <= max_message_bytes:
        yield wrapper
    elif len(payloads) > 1:
        middle = len(payloads) // 2
        yield from _wrappers(topic, payloads[:middle], magic, codec, max_message_bytes)
        yield from _wrappers(topic, payloads[middle:], magic, codec, max_message_bytes)
    else:  # it does not compress; plain it may still fit
        _check(topic, len(payloads[0]), max_message_bytes)
        yield encode_message_set(payloads, magic=magic)


def _join(messages: Iterator[bytes], max_set_bytes: int) -> list[bytes]:
    sets: list[bytes] = []
    current = b""
    for message in messages:
        if current and len(current) + len(message) > max_set_bytes:
            sets.append(current)
            current = b""
        current += message
    return [*sets, current]


def entry_overhead(topic: str) -> int:
    """Bytes of a request beside the message set, if it is the only one."""
    return _FRAME_OVERHEAD + _ENTRY_OVERHEAD + len(topic.encode())


def frames(entries: Sequence[ProduceRequest], max_request_bytes: int, *, multi: bool = False) -> Iterator[bytes]:
    """Frames with their length fields that hold all `entries`, in order, as few as the limit allows.

    With `multi` a frame with one entry is a MULTIPRODUCE too.
    """
    together: list[ProduceRequest] = []
    size = _FRAME_OVERHEAD
    for entry in entries:
        more = entry_overhead(entry.topic) - _FRAME_OVERHEAD + len(entry.messages)
        if together and (size + more > max_request_bytes or len(together) == _MAX_ENTRIES):
            yield _frame(together, multi)
            together, size = [], _FRAME_OVERHEAD
        together.append(entry)
        size += more
    if together:
        yield _frame(together, multi)


def _frame(entries: list[ProduceRequest], multi: bool) -> bytes:
    return entries[0].encode() if len(entries) == 1 and not multi else MultiProduceRequest(tuple(entries)).encode()
