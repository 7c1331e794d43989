"""The bodies that the handler `http` sends: NDJSON or one JSON array, plain or compressed with gzip.

Strategy: the records are those of `consumerd.handlers.builtin.records`, made in a thread, piece by piece. A body of
ordinary size is made as a whole and sent with its length, which every receiver takes. One compressed message of a
hundred kilobytes can make half a gigabyte of records: beyond `WHOLE` a body is sent in chunks, of which one is in
memory at a time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from itertools import chain
from typing import Final, Literal

from isal import isal_zlib

from consumerd.handlers.builtin.records import encode_pieces
from consumerd.handlers.messages import Batch
from consumerd.handlers.threads import in_thread

BodyFormat = Literal["ndjson", "json"]

CONTENT_TYPES: Final[dict[BodyFormat, str]] = {"ndjson": "application/x-ndjson", "json": "application/json"}
#: Bytes up to which a body is sent as a whole.
WHOLE: Final = 8 << 20
#: Records, and their bytes, that are made at once.
_RECORDS, _BYTES = 10_000, 1 << 20
#: Of isal's levels 0 to 3, as for messages.
_GZIP_LEVEL: Final = 2


async def make_body(batch: Batch, form: BodyFormat, *, compressed: bool) -> bytes | AsyncIterator[bytes]:
    """The body for `batch`: bytes, or from `WHOLE` bytes on an iterator of pieces that is used once."""
    pieces = body_pieces(batch, form, compressed=compressed)
    head, ended = await in_thread(lambda: _take(pieces, WHOLE))
    return b"".join(head) if ended else _chunks(head, pieces)


def body_pieces(batch: Batch, form: BodyFormat, *, compressed: bool) -> Iterator[bytes]:
    """The body for `batch`, in pieces that are made as they are consumed."""
    lines = encode_pieces(batch, _RECORDS, _BYTES)
    pieces = _array(lines) if form == "json" else lines
    return _gzipped(pieces) if compressed else pieces


def _array(lines: Iterable[bytes]) -> Iterator[bytes]:
    """NDJSON as one JSON array: no newline is ever within a record."""
    before = b"["
    for piece in lines:
        yield before + piece.removesuffix(b"\n").replace(b"\n", b",\n")
        before = b",\n"
    yield b"]\n"


def _gzipped(pieces: Iterable[bytes]) -> Iterator[bytes]:
    packer = isal_zlib.compressobj(_GZIP_LEVEL, isal_zlib.DEFLATED, 16 + isal_zlib.MAX_WBITS)
    for piece in pieces:
        if packed := packer.compress(piece):
            yield packed
    yield packer.flush()


def _take(pieces: Iterator[bytes], size: int) -> tuple[list[bytes], bool]:
    """Pieces until they have `size` bytes, and whether they are all."""
    taken = []
    for piece in pieces:
        taken.append(piece)
        size -= len(piece)
        if size <= 0:
            return taken, False
    return taken, True


async def _chunks(head: list[bytes], pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    while head:
        yield head.pop(0)
    while (piece := await in_thread(lambda: next(chain(pieces, [None])))) is not None:
        yield piece
