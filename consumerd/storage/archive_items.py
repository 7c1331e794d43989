"""The items that a reader of segments yields: runs of messages and flaws; its input stream, and the limits of both.

Strategy: values without behaviour, apart from the reader, because code that makes rows of them needs nothing else of
this room.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from consumerd.native import NativePayloads
    from consumerd.wire.v07 import Codec

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


class IndexedMessages(NamedTuple):
    """Whole and intact messages in a row, plain ones and wrappers, as the native codec has indexed them.

    `offset` is where `data` begins, of which the messages are the beginning; `payloads.runs` has positions in `data`.
    """

    offset: int
    next_offset: int
    data: memoryview
    payloads: NativePayloads


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


#: Flaws that have the extent of a message.
MESSAGE_FLAWS = frozenset({FlawKind.CRC, FlawKind.MAGIC, FlawKind.HEADER, FlawKind.CODEC, FlawKind.WRAPPER})


class Flaw(NamedTuple):
    """A stretch of the segment without a message that can be read. `problem` is a sentence that names the offset.

    `raw` is a message's payload, undecoded; if its header is unreadable, the bytes after the length; empty if it is
    not a message. `crc_ok`: the payload's CRC was checked and is right.
    """

    kind: FlawKind
    offset: int
    next_offset: int
    problem: str
    magic: int | None = None
    codec: Codec | None = None
    crc_ok: bool = False
    raw: bytes = b""
