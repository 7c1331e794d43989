"""Message sets for one broker -> PRODUCE and MULTIPRODUCE frames.

Strategy: one set alone is a PRODUCE, several are a MULTIPRODUCE with an entry each, in order, also for one and the
same partition: what 0.7.2's synchronous producer does, while its asynchronous one sends nothing but MULTIPRODUCE
(golden notes, 7). Requests stay under the size limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from consumerd.wire.v07 import MultiProduceRequest, ProduceRequest

#: Type and count of a MULTIPRODUCE, which the limit counts; the length field itself it does not.
_FRAME_OVERHEAD = 4
#: Topic length, partition and set size of an entry.
_ENTRY_OVERHEAD = 10
#: The count of entries is an int16.
_MAX_ENTRIES = 32767


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
