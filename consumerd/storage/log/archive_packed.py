"""Decompressing a file from the front to the end, a piece at a time: .gz here, others by a given decoder.

Strategy: the decoder gets pieces of the packed stream and a bound for its output; both sides are counted, and it ends
where the output exceeds the limit. Members in a row are one file, as gzip and zstd have it.
Zeros after a member are the padding of tapes and tars. Anything else there, and a member that is cut short, is damage,
because data is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from isal import isal_zlib

from consumerd.storage.log.archive_items import DEFAULT_EXPANSION, FREE_EXPANSION, ByteStream
from consumerd.storage.log.errors import DamagedArchiveError

#: Bytes of the packed stream read at once.
_PACKED_WINDOW = 1 << 18
#: Unpacked bytes requested from a decoder at once.
_PIECE = 1 << 20

#: Its stub calls the class an instance.
_IsalError: type[Exception] = isal_zlib.IsalError  # type: ignore[assignment]


class MemberDecoder(Protocol):
    """One member of a compressed file."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes:
        """After `eof`: the bytes after the member."""
        ...

    @property
    def unconsumed_tail(self) -> bytes:
        """The unread rest of the last input, which must be given again."""
        ...

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        """The content of `data`, of about `max_length` bytes at most. Raises DamagedArchiveError, IsalError."""
        ...


def gzip_decoder() -> MemberDecoder:
    """One gzip member, its CRC and length checked."""
    return isal_zlib.decompressobj(16 + isal_zlib.MAX_WBITS)


class UnpackedStream:
    """The content of a compressed file, as a `ByteStream`. `what` names the compression in errors."""

    def __init__(
        self,
        packed: ByteStream,
        decoder: Callable[[], MemberDecoder] = gzip_decoder,
        *,
        what: str = "gzip",
        expansion: int = DEFAULT_EXPANSION,
    ) -> None:
        self._packed = packed
        self._new_decoder = decoder
        self._what = what
        self._expansion = expansion
        self._bytes_in = 0
        self._bytes_out = 0
        self._pieces = self._unpack()
        self._piece = b""
        self._at = 0

    def read(self, size: int, /) -> bytes:
        if self._at == len(self._piece):
            self._piece, self._at = next(self._pieces, b""), 0
        found = self._piece[self._at : self._at + size]
        self._at += len(found)
        return found

    def _unpack(self) -> Iterator[bytes]:
        """Yield the unpacked bytes in pieces that are not empty."""
        data = self._more()
        if not data:
            raise DamagedArchiveError(f"it has no {self._what} data, not even that of an empty file")
        while data:
            decoder = self._new_decoder()
            while not decoder.eof:
                try:
                    piece = decoder.decompress(data, _PIECE)
                except _IsalError as error:
                    raise DamagedArchiveError(f"the {self._what} data is damaged: {error}") from error
                data = decoder.unconsumed_tail
                if piece:
                    yield self._counted(piece)
                elif not decoder.eof:
                    more = self._more()
                    if not more:
                        raise DamagedArchiveError(f"the {self._what} data is truncated")
                    data += more
            data = decoder.unused_data.lstrip(b"\0")
            while not data and (more := self._more()):
                data = more.lstrip(b"\0")

    def _more(self) -> bytes:
        data = self._packed.read(_PACKED_WINDOW)
        self._bytes_in += len(data)
        return data

    def _counted(self, piece: bytes) -> bytes:
        self._bytes_out += len(piece)
        if self._bytes_out > max(FREE_EXPANSION, self._expansion * self._bytes_in):
            raise DamagedArchiveError(
                f"the {self._what} data grows to more than {self._expansion} times its size; "
                "if that is expected, allow it"
            )
        return piece
