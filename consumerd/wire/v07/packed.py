"""The leaves of a large compressed message: checked in steps, kept as the bytes of their set, made on access.

Strategy: 128 kB may hold 6.6 million empty messages, which would take hundreds of megabytes as a list and seconds to
make. So a wrapper is opened and checked in pieces, with a step's end after each millisecond or two, and for each piece
is noted where it stands. A broker only counts. A consumer keeps the decompressed sets and cuts payloads out of them
piece by piece, as often as they are asked for.

What an inner set may hold is said in `consumerd.wire.v07.unwrap`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Generator, Iterator, Sequence
from typing import Protocol, overload

from consumerd.wire.compression import Codec, DecompressionAllowance, decompress_steps
from consumerd.wire.errors import CorruptMessageError
from consumerd.wire.v07.constants import DEFAULT_LIMITS, DecodeLimits
from consumerd.wire.v07.outer import OuterMessage, read_outer
from consumerd.wire.v07.unwrap import allowance_of, inner_message
from consumerd.wire.v07.walk import ANY_LENGTH, LAYOUTS, verify, walk

#: Bytes of a set that are read, or made into payloads, at once.
PIECE = 1 << 16
#: Work of reading a message by itself, in bytes of a set (`consumerd.wire.compression.STEP`).
SINGLE = 1 << 9
#: A place in an array of 64-bit numbers, three of which are kept for each piece, and one for its set.
_PLACE = 8


class Note(Protocol):
    """Takes note of `count` plain, whole, intact messages in `data[start:end]`."""

    def __call__(self, data: bytes | bytearray, start: int, end: int, count: int, /) -> None: ...


def open_steps(
    codec: Codec, payload: bytes, note: Note, allowance: DecompressionAllowance, max_depth: int, depth: int = 1
) -> Generator[None, None, None]:
    """Open a wrapper's payload in steps and `note` all its leaves in order, those of wrappers inside among them.

    Raises CorruptMessageError (DecompressionError among it), and what `note` raises.
    """
    if depth > max_depth:
        raise CorruptMessageError(f"compressed messages are nested deeper than {max_depth}")
    data = yield from decompress_steps(codec, payload, allowance)
    view = memoryview(data)
    position, end = 0, len(data)
    while position < end:
        used, count = verify(view[position : position + PIECE], 0, ANY_LENGTH, LAYOUTS[1])
        item = inner_message(view, position + used)
        plain = item is not None and item.codec is Codec.NONE
        after = position + used if item is None else item.next_offset
        run = after if plain else position + used
        if run > position:
            note(data, position, run, count + plain)
        if item is None:
            break
        if not plain:
            assert item.codec is not None
            yield from open_steps(item.codec, bytes(item.payload), note, allowance, max_depth, depth + 1)
        if allowance.due(work_of(after - position, count)):
            yield
        position = after


def work_of(size: int, count: int) -> int:
    """Return the work of reading `count` messages at once and one by itself, which have `size` bytes together."""
    return (size >> 2) + (count << 4) + SINGLE


def pack_steps(
    codec: Codec, payload: bytes, *, limits: DecodeLimits = DEFAULT_LIMITS
) -> Generator[None, None, PackedPayloads]:
    """The leaves of a wrapper's payload. Raises CorruptMessageError (DecompressionError among it)."""
    packed = PackedPayloads()
    yield from open_steps(codec, payload, packed.note, allowance_of(payload, limits), limits.max_depth)
    return packed


class PackedPayloads(Sequence[bytes]):
    """Payloads in the sets that they came in. Reading them in order costs one walk over the sets each time.

    `memory_bytes` is the memory held for them.
    """

    def __init__(self) -> None:
        self._sets: list[bytes | bytearray] = []
        self._starts, self._ends, self._firsts = array("q"), array("q"), array("q")
        self._length = 0
        self._at = -1
        self._made: list[bytes] = []
        self.memory_bytes = 0

    def note(self, data: bytes | bytearray, start: int, end: int, count: int) -> None:
        """Append `count` plain messages, all checked, that stand in `data[start:end]`."""
        last = len(self._sets) - 1
        if last >= 0 and self._sets[last] is data:
            if self._ends[last] == start and end - self._starts[last] <= PIECE:  # a row of single ones
                self._ends[last] = end
                self._length += count
                return
        else:
            self.memory_bytes += len(data)
        self._sets.append(data)
        self._starts.append(start)
        self._ends.append(end)
        self._firsts.append(self._length)
        self._length += count
        self.memory_bytes += 4 * _PLACE

    def _piece(self, number: int) -> list[bytes]:
        """The payloads of one piece. The last piece that was made is kept."""
        if number != self._at:
            made: list[bytes] = []
            view = memoryview(self._sets[number])[self._starts[number] : self._ends[number]]
            position, end = 0, len(view)
            while position < end:
                position = walk(view, position, made.append, LAYOUTS[1])
                item = read_outer(view, position, position, ANY_LENGTH)
                assert isinstance(item, OuterMessage)
                made.append(bytes(item.payload))
                position = item.next_offset
            self._at, self._made = number, made
        return self._made

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[bytes]:
        for number in range(len(self._sets)):
            yield from self._piece(number)

    @overload
    def __getitem__(self, position: int) -> bytes: ...
    @overload
    def __getitem__(self, position: slice) -> list[bytes]: ...
    def __getitem__(self, position: int | slice) -> bytes | list[bytes]:
        if isinstance(position, slice):
            start, stop, step = position.indices(self._length)
            return self._between(start, stop) if step == 1 else [self[at] for at in range(start, stop, step)]
        if position < 0:
            position += self._length
        if not 0 <= position < self._length:
            raise IndexError("there is no such payload")
        number = bisect_right(self._firsts, position) - 1
        return self._piece(number)[position - self._firsts[number]]

    def _between(self, start: int, stop: int) -> list[bytes]:
        found: list[bytes] = []
        number = bisect_right(self._firsts, start) - 1
        while start < stop:
            first = self._firsts[number]
            part = self._piece(number)[start - first : stop - first]
            found += part
            start += len(part)
            number += 1
        return found
