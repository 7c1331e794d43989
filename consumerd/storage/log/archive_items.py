"""The items that a reader of segments yields: runs of messages and flaws; its input stream, and the limits of both.

Strategy: values apart from the reader, because code that makes rows of them needs nothing else of this room.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import StrEnum
from itertools import accumulate
from typing import NamedTuple, Protocol

from consumerd.base.native import NativePayloads
from consumerd.wire.v07 import Codec
from consumerd.wire.v07.walk import LAYOUTS

#: No segment is larger: log.file.size is an int32, and one message set of at most 2 GiB may overshoot it.
MAX_SEGMENT_BYTES = 1 << 32
#: Compressed data may become this many times its own size ...
DEFAULT_EXPANSION = 200
#: ... once it has become this many bytes.
FREE_EXPANSION = 1 << 30


class ByteStream(Protocol):
    """Bytes in order. Raises DamagedArchiveError where they are truncated."""

    def read(self, size: int, /) -> bytes:
        """Return at least one and at most `size` bytes; b"" at the end."""
        ...


def unread(stream: ByteStream, count: int) -> bool:
    """Whether the stream went back by `count` bytes that were read: some have a method `unread` for that."""
    again: Callable[[int], bool] | None = getattr(stream, "unread", None)  # a check of the protocol takes 10 us
    return again is not None and again(count)


class ArchivedRun(NamedTuple):
    """Messages in a row: plain ones (`codec` NONE, offsets follow from the lengths) or the leaves of one wrapper.

    `next_offset` is the position to commit after the last of them. A wrapper may come in several runs: `first` is the
    index of the first leaf, and all but the last run end where the wrapper begins.
    """

    offset: int
    next_offset: int
    magic: int
    codec: Codec
    payloads: list[bytes]
    first: int = 0

    def boundaries(self) -> list[int]:
        """Of plain messages: the offset of each, and the end of the last."""
        overhead = LAYOUTS[self.magic].overhead
        return list(accumulate(map(overhead.__add__, map(len, self.payloads)), initial=self.offset))


class IndexedMessages(NamedTuple):
    """Whole and intact messages in a row, plain ones and wrappers, as the native codec has indexed them.

    `offset` is where `data` begins, of which the messages are the beginning; `payloads.runs` has positions in `data`.
    """

    offset: int
    next_offset: int
    data: memoryview
    payloads: NativePayloads

    def kinds(self, first: int, stop: int) -> Iterator[tuple[int, int, Codec]]:
        """Of messages `first` to `stop`, by runs: how many there are, magic and codec of the outermost message."""
        runs = self.payloads.runs
        ends = [*(run[0] for run in runs[1:]), len(self.payloads)]
        for (begin, position, overhead), end in zip(runs, ends, strict=True):
            if (count := min(end, stop) - max(begin, first)) > 0:
                yield count, *self._kind(position, overhead)

    def as_runs(self) -> Iterator[ArchivedRun]:
        """The same messages as the pure codec reads them, with an object for each payload."""
        runs = self.payloads.runs
        ends = [*((run[0], self.offset + run[1]) for run in runs[1:]), (len(self.payloads), self.next_offset)]
        for (begin, position, overhead), (end, next_offset) in zip(runs, ends, strict=True):
            magic, codec = self._kind(position, overhead)
            yield ArchivedRun(self.offset + position, next_offset, magic, codec, self.payloads[begin:end])

    def _kind(self, position: int, overhead: int) -> tuple[int, Codec]:
        if not overhead:
            return 1, Codec(self.data[position + _ATTRIBUTES] & _CODEC_BITS)
        return int(overhead != LAYOUTS[0].overhead), Codec.NONE


#: The byte of a message of magic 1 that has the codec, and its bits in there.
_ATTRIBUTES, _CODEC_BITS = 5, 3


class FlawKind(StrEnum):
    """The kind of a stretch without a message. The values are the names that `consumerd log verify` prints."""

    CRC = "bad-crc"
    MAGIC = "unknown-magic"
    HEADER = "short-header"
    CODEC = "unknown-codec"
    #: A compressed message that is intact itself and cannot be decompressed: damaged, a bad inner CRC, or too large.
    WRAPPER = "unreadable-wrapper"
    #: Bytes that are not messages (spec 003, 5.5: a block that was added without having been written).
    NONSENSE = "nonsense-block"
    #: The segment ends inside a message (spec 003, 5.5: a block that was lost).
    TORN = "torn-tail"
    #: The compressed file or tar around the segment is damaged from here on.
    ARCHIVE = "damaged-archive"
    OVERSIZE = "oversize-segment"
    #: A readable batch of 0.8 and later whose offsets do not follow those before it.
    ORDER = "offset-order"
    #: A readable batch whose leader epoch is less than one before it.
    EPOCH = "leader-epoch-order"


#: Flaws that have the extent of a message.
MESSAGE_FLAWS = frozenset({FlawKind.CRC, FlawKind.MAGIC, FlawKind.HEADER, FlawKind.CODEC, FlawKind.WRAPPER})


class Flaw(NamedTuple):
    """A stretch of the segment without a message that can be read. `problem` is a sentence that names the offset.

    `raw` is a message's payload, undecoded; if its header is unreadable, the bytes after the length; empty if it is
    not a message. `crc_ok`: the payload's CRC was checked and is right. `length`: where no message follows, what stands
    in the place of its length, which does not count itself.
    """

    kind: FlawKind
    offset: int
    next_offset: int
    problem: str
    magic: int | None = None
    codec: Codec | None = None
    crc_ok: bool = False
    raw: bytes = b""
    length: int | None = None
