"""Reading a segment front to back from a stream that cannot seek: a tar's member, an unpacked .gz file, a URL.

Strategy: a window slides over the stream; it holds at least one message, so that memory follows the largest message and
not the segment. It yields *runs*: a row of plain messages of one magic, or the leaves of one compressed message, so
that the cost per message is that of the decoder's hot loop. A stretch without a readable message is a `Flaw`; runs and
flaws tile the segment exactly. A bad message whose length can be followed is one flaw, and reading continues after it;
at an impossible length it ends or, if requested, continues where a chain of intact messages begins
(`consumerd.storage.log.archive_resync`).

Readers that need no object per message ask for `read_indexed`: there the native codec, where it is in use, takes what
is whole and intact, and everything else is judged as above. So both find the same messages and flaws.

The sizes of the stream's reads have no effect: they are joined to whole windows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TypedDict, Unpack, cast

from consumerd.base.native import NativeCodec
from consumerd.base.native import codec as native_codec
from consumerd.storage.log.archive_items import (
    DEFAULT_EXPANSION,
    FREE_EXPANSION,
    MAX_SEGMENT_BYTES,
    ArchivedRun,
    ByteStream,
    Flaw,
    FlawKind,
    IndexedMessages,
)
from consumerd.storage.log.archive_resync import CHAIN_ROOM, RESYNC_WINDOW, BoundarySearch
from consumerd.storage.log.errors import DamagedArchiveError
from consumerd.wire.crc import crc32
from consumerd.wire.errors import CorruptMessageError
from consumerd.wire.v07 import DEFAULT_LIMITS, Codec, DecodeLimits, MessageSetTail, OuterMessage, read_outer
from consumerd.wire.v07.decode import LARGE_WRAPPER, NATIVE_BYTES, native_limits
from consumerd.wire.v07.outer import HEADER_SIZE
from consumerd.wire.v07.unwrap import unwrap, unwrap_pieces
from consumerd.wire.v07.walk import LAYOUTS, walk

#: Bytes requested from the stream at once.
WINDOW = 1 << 20
#: Chains that are followed to the end of a segment, one after the other.
_CHAINS_TRIED = 16
#: More than the native codec decompresses in a step: a large wrapper, after the step's megabyte.
_STEP_ROOM = 2 * LARGE_WRAPPER
#: Least bytes after a bad message that are checked before its length is believed.
_LOOK_AHEAD = 1 << 20


class ReadOptions(TypedDict, total=False):
    """How a segment is read.

    Decompressed wrappers may be `expansion` times the bytes read so far, once they are more than FREE_EXPANSION. A
    wrapper that holds more than about `piece_bytes` comes in several runs; None: in one. With `stop`, reading ends at
    that offset. Bytes after it are requested from the stream only if they are needed to classify those before it; so
    the last run or flaw may reach beyond it.
    """

    limits: DecodeLimits
    #: Bytes requested from the stream at once.
    window: int
    #: Whether to look for intact messages behind those that cannot be followed.
    resync: bool
    expansion: int
    #: More of the stream is not read.
    max_bytes: int
    piece_bytes: int | None
    stop: int | None


def read_runs(stream: ByteStream, start: int, **options: Unpack[ReadOptions]) -> Iterator[ArchivedRun | Flaw]:
    """Read everything in the segment whose first byte has offset `start`, in order and without a gap.

    Never raises for the data. Errors of the stream are raised, except DamagedArchiveError, which is a flaw.
    """
    return cast("Iterator[ArchivedRun | Flaw]", _Reader(stream, start, **options).read(None))


def read_indexed(
    stream: ByteStream, start: int, **options: Unpack[ReadOptions]
) -> Iterator[ArchivedRun | IndexedMessages | Flaw]:
    """As `read_runs`, but messages that the native codec has read come as `IndexedMessages`, which end at `stop`.

    With the pure codec there are none of these.
    """
    return _Reader(stream, start, **options).read(native_codec())


class _Reader:
    """One pass over one segment. `data[at:]` is read and not yet used; `base` is the offset of `data[0]`."""

    def __init__(self, stream: ByteStream, start: int, **options: Unpack[ReadOptions]) -> None:
        self.stream = stream
        self.start = start
        self.limits = options.get("limits", DEFAULT_LIMITS)
        self.most = self.limits.max_message_bytes
        self.window = options.get("window", WINDOW)
        self.resync = options.get("resync", False)
        self.expansion = options.get("expansion", DEFAULT_EXPANSION)
        self.left = options.get("max_bytes", MAX_SEGMENT_BYTES)
        self.piece_bytes = options.get("piece_bytes")
        stop = options.get("stop")
        self.stop = start + MAX_SEGMENT_BYTES + 1 if stop is None else stop
        self.data = b""
        self.at = 0
        self.base = start
        self.ended = False
        self.damage: str | None = None
        self.expanded = 0
        self.magic = 1
        self.search = BoundarySearch(self.most)

    @property
    def offset(self) -> int:
        return self.base + self.at

    def read(self, native: NativeCodec | None) -> Iterator[ArchivedRun | IndexedMessages | Flaw]:
        while self.offset < self.stop and self._fill(1):
            if native is not None:
                yield from self._indexed(native)
                if self.at == len(self.data):
                    continue
            elif (run := self._plain_run()) is not None:
                yield run
            if self.offset >= self.stop:
                return
            item = read_outer(self.data, self.at, self.offset, self.most)
            if isinstance(item, OuterMessage):
                yield from self._opened(item) if item.valid else (self._bad(item),)
            elif item.problem is not None or not self._fill(item.needed or 4):
                yield self._no_message(item)
        if self.offset >= self.stop:
            return
        if self.damage is not None:
            problem = f"the segment is truncated at offset {self.offset}: {self.damage}"
            yield Flaw(FlawKind.ARCHIVE, self.offset, self.offset, problem)
        elif not self.left and self.stream.read(1):
            problem = f"the segment continues at offset {self.offset}, beyond the largest size of a segment"
            yield Flaw(FlawKind.OVERSIZE, self.offset, self.offset, problem)

    def _fill(self, needed: int) -> bool:
        """Read until `needed` unused bytes are there, unless the stream ends before."""
        have = len(self.data) - self.at
        if have < needed and not self.ended:
            missing = needed - have
            fresh = self._fetch(max(missing, min(self.window, self.stop - self.base - len(self.data))))
            self.data, self.base, self.at = self.data[self.at :] + fresh, self.offset, 0
            have = len(self.data)
        return have >= needed

    def _fetch(self, wanted: int) -> bytes:
        missing = min(wanted, self.left)
        pieces: list[bytes] = []
        try:
            while missing and (piece := self.stream.read(missing)):
                pieces.append(piece)
                missing -= len(piece)
                self.left -= len(piece)
        except DamagedArchiveError as error:
            self.damage = str(error)
        self.ended = missing > 0 or not self.left
        return b"".join(pieces)

    def _indexed(self, native: NativeCodec) -> Iterator[IndexedMessages]:
        """Yield what the native codec reads of the data, in steps."""
        due = True
        # No step decompresses as much, so that it cannot exceed what is allowed.
        while due and self._allowed(self.offset) >= _STEP_ROOM and len(self.data) <= NATIVE_BYTES:
            data = memoryview(self.data)[self.at : self.stop - self.base]
            payloads = native.Payloads(data)
            used, due = payloads.read(0, native_limits(native, self.limits))
            if not used:
                return
            self.expanded += payloads.expanded_bytes
            offset = self.offset
            self.at += used
            yield IndexedMessages(offset, self.offset, data, payloads)

    def _allowed(self, offset: int) -> int:
        """Return how many bytes the wrappers up to `offset` may still be decompressed to."""
        return max(FREE_EXPANSION, self.expansion * (offset - self.start)) - self.expanded

    def _plain_run(self) -> ArchivedRun | None:
        payloads: list[bytes] = []
        layout = LAYOUTS[self.magic]
        end = walk(self.data, self.at, payloads.append, layout)
        if end - self.at > self.most and (big := self._first_too_large(payloads)) is not None:
            payloads = payloads[:big]
            end = self.at + layout.overhead * big + sum(map(len, payloads))
        if not payloads:
            return None
        run = ArchivedRun(self.offset, self.base + end, self.magic, Codec.NONE, payloads)
        self.at = end
        return run

    def _first_too_large(self, payloads: list[bytes]) -> int | None:
        # A length field counts up to six bytes beside the payload, and its limit is that of the longer header.
        most = self.most + HEADER_SIZE[1] - HEADER_SIZE[self.magic]
        return next((number for number, payload in enumerate(payloads) if len(payload) > most), None)

    def _opened(self, item: OuterMessage) -> Iterator[ArchivedRun | Flaw]:
        """Read a message that is valid in itself."""
        assert item.codec is not None
        self.at += 4 + item.size
        if item.codec is Codec.NONE:
            self.magic = item.magic
            yield ArchivedRun(item.offset, item.next_offset, item.magic, item.codec, [item.payload])
            return
        allowed = self._allowed(item.next_offset)
        limits = self.limits
        if allowed < limits.max_decompressed_bytes:
            limits = replace(limits, max_decompressed_bytes=max(0, allowed))
        try:
            if self.piece_bytes is not None:
                pieces, expanded = unwrap_pieces(item.codec, item.payload, limits=limits, piece_bytes=self.piece_bytes)
            else:
                whole, expanded = unwrap(item.codec, item.payload, limits=limits)
                pieces = iter((whole,))
        except CorruptMessageError as error:
            problem = f"the message at offset {item.offset} cannot be decompressed: {error}"
            yield Flaw(
                FlawKind.WRAPPER, item.offset, item.next_offset, problem, item.magic, item.codec, True, item.payload
            )
            return
        self.expanded += expanded
        first, leaves = 0, next(pieces)
        for following in pieces:
            yield ArchivedRun(item.offset, item.offset, item.magic, item.codec, leaves, first)
            first, leaves = first + len(leaves), following
        yield ArchivedRun(item.offset, item.next_offset, item.magic, item.codec, leaves, first)

    def _bad(self, item: OuterMessage) -> Flaw:
        """Read a message that is whole but bad."""
        size = 4 + item.size
        if self.resync:
            self._fill(size + _LOOK_AHEAD)
            if not self.search.is_followed(self.data, self.at + size):
                # Its length is wrong, or part of it is missing: messages may begin before it ends.
                found = self.search.find(self.data, self.at + 1, self.at + size, at_end=self.ended)
                if found is not None:
                    return self._skipped(self.offset, found)
        kind, raw = FlawKind.CODEC, item.payload
        if item.magic > 1 or item.size < HEADER_SIZE[item.magic]:
            kind = FlawKind.MAGIC if item.magic > 1 else FlawKind.HEADER
            raw = self.data[self.at + 4 : self.at + size]
        elif crc32(item.payload) != item.crc:
            kind = FlawKind.CRC
        self.at += size
        problem = f"the message at offset {item.offset} has {item.problem}"
        crc_ok = kind is FlawKind.CODEC
        return Flaw(kind, item.offset, item.next_offset, problem, item.magic, item.codec, crc_ok, raw)

    def _no_message(self, tail: MessageSetTail) -> Flaw:
        """Return the flaw at a place where neither a message begins nor its length is possible."""
        origin, head = self.offset, self.data[self.at : self.at + 4]
        length = int.from_bytes(head, signed=True) if len(head) == 4 else None
        if self.resync and (found := self._next_chain(to_end=tail.problem is None)) is not None:
            return self._skipped(origin, found)
        rest = len(self.data) - self.at
        if tail.problem is None and not (rest > 4 and self.data[self.at + 4] > 1):
            self.at = len(self.data)  # the stream has ended, or the message would not be cut
            return self._torn(tail, rest)._replace(length=length)
        self._drain()
        what = tail.problem or "the beginning of a message of unknown magic"
        problem = f"at offset {origin} stands {what}; the last {self.offset - origin} bytes are unreadable"
        return Flaw(FlawKind.NONSENSE, origin, self.offset, problem, length=length)

    def _torn(self, tail: MessageSetTail, rest: int) -> Flaw:
        kind = FlawKind.TORN
        if self.damage is not None:
            kind, problem = FlawKind.ARCHIVE, f"the message at offset {tail.offset} is cut off: {self.damage}"
            self.damage = None
        elif tail.needed is not None:
            problem = f"the message at offset {tail.offset} is torn: it has {rest} of its {tail.needed} bytes"
        else:
            problem = f"the segment ends {rest} bytes into a length field, at offset {tail.offset}"
        return Flaw(kind, tail.offset, self.offset, problem)

    def _next_chain(self, *, to_end: bool) -> int | None:
        """Return the position in `data` where messages continue after the present one; read as far as needed.

        `to_end`: only where they continue to the very end. A cut-off message there need not be damaged otherwise, and
        may be a compressed one, which can contain chains.
        """
        low, tried = 1, 0
        while tried < _CHAINS_TRIED:
            self._fill(RESYNC_WINDOW)
            high = len(self.data) if self.ended else len(self.data) - CHAIN_ROOM
            found = self.search.find(self.data, self.at + low, high, at_end=self.ended)
            if found is not None and to_end and not self.search.reaches_end(self.data, found):
                low, tried = found + 1 - self.at, tried + 1
                continue
            if found is not None or self.ended:
                return found
            self.at, low = high, 0
        return None

    def _skipped(self, origin: int, found: int) -> Flaw:
        self.at = found
        size = self.offset - origin
        problem = f"the {size} bytes from offset {origin} on are not messages; intact ones continue at {self.offset}"
        return Flaw(FlawKind.NONSENSE, origin, self.offset, problem)

    def _drain(self) -> None:
        """Use up everything, without keeping it."""
        self.at = len(self.data)
        while not self.ended:
            self.base, self.data, self.at = self.offset, b"", 0
            self.base += len(self._fetch(self.window))
