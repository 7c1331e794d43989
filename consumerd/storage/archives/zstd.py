"""Zstandard frames, for `UnpackedStream` and for packing exported files.

Strategy: the library's bounded reader ends at a cut frame without an error, so frames are fed to its incremental
decoder in slices so small that even a bomb makes no more than some 64 MiB of one.
"""

from __future__ import annotations

from typing import Any

from consumerd.storage import DamagedArchiveError
from consumerd.storage.archives.extras import extra

#: A slice of a frame can hold a block of 128 KiB in each 4 bytes.
_SLICE = 2048
#: Memory that a frame may ask for: 128 MiB, the default of the zstd command.
_MAX_WINDOW = 1 << 27


class ZstdDecoder:
    """One Zstandard frame. See `consumerd.storage.log.archive_packed.MemberDecoder`."""

    def __init__(self) -> None:
        library = extra("zstandard", "reading .zst files")
        self._error: type[Exception] = library.ZstdError
        self._decoder: Any = library.ZstdDecompressor(max_window_size=_MAX_WINDOW).decompressobj()
        self.unconsumed_tail = b""

    @property
    def eof(self) -> bool:
        return bool(self._decoder.eof)

    @property
    def unused_data(self) -> bytes:
        return bytes(self._decoder.unused_data) + self.unconsumed_tail

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        pieces: list[bytes] = []
        position = length = 0
        try:
            while length < max_length and position < len(data) and not self._decoder.eof:
                piece = self._decoder.decompress(data[position : position + _SLICE])
                position += _SLICE
                pieces.append(piece)
                length += len(piece)
        except self._error as error:
            raise DamagedArchiveError(f"the zstd data is damaged: {error}") from error
        self.unconsumed_tail = data[position:]
        return b"".join(pieces)
