from __future__ import annotations

import io
import random
import struct

import pytest
import zstandard

from consumerd.wire import DecompressionError
from consumerd.wire.zstd import MAGIC, zstd_compress, zstd_decompress

TEXT = b"to be or not to be, that is the question; " * 5000
SAMPLES = [b"", b"a", TEXT, random.Random(1).randbytes(200_000), bytes(3_000_000)]


def streamed(data: bytes, *, checksum: bool = False) -> bytes:
    """As the JVM's stream writes it: without a content size."""
    out = io.BytesIO()
    with zstandard.ZstdCompressor(write_checksum=checksum).stream_writer(out, closefd=False) as writer:
        writer.write(data)
    return out.getvalue()


@pytest.mark.parametrize("data", SAMPLES, ids=len)
def test_frames_come_back(data: bytes) -> None:
    frame = zstd_compress(data)
    assert zstandard.ZstdDecompressor().decompressobj().decompress(frame) == data
    for made in (frame, streamed(data), streamed(data, checksum=True), zstandard.compress(data)):
        assert zstd_decompress(made, limit=len(data)) == data


def test_frames_in_a_row_are_read_on() -> None:
    assert zstd_decompress(streamed(b"one") + zstd_compress(b"two"), limit=6) == b"onetwo"


@pytest.mark.parametrize("data", SAMPLES[1:], ids=len)
def test_the_limit_holds(data: bytes) -> None:
    for made in (zstd_compress(data), streamed(data), zstandard.compress(data), streamed(data) * 2):
        with pytest.raises(DecompressionError, match="limit"):
            zstd_decompress(made, limit=len(data) - 1)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "empty"),
        (b"abcdef", "begin with a frame"),
        (zstd_compress(b"one") + b"junk", "begin with a frame"),
        (MAGIC, "cut short"),
        (MAGIC + b"\x20", "cut short"),
        (zstd_compress(TEXT)[:-1], "cut short"),
        (streamed(TEXT, checksum=True)[:-1], "cut short"),
        # A block of the reserved kind, and one that is too large.
        (MAGIC + b"\x20\x01" + b"\x07\x00\x00", "damaged"),
        (MAGIC + b"\x20\x01" + b"\xfd\xff\xff", "damaged"),
        # A checksum that is wrong.
        (streamed(b"one", checksum=True)[:-1] + b"\x00", "damaged"),
    ],
)
def test_what_is_no_frame(data: bytes, what: str) -> None:
    with pytest.raises(DecompressionError, match=what):
        zstd_decompress(data, limit=1 << 20)


def test_a_bomb_costs_no_more_than_the_limit() -> None:
    """A run-length block says 128 KiB in four bytes."""
    bomb = MAGIC + b"\x00\x58" + b"\x02\x00\x10a" * 1000 + b"\x03\x00\x10a"
    with pytest.raises(DecompressionError, match="limit of 1000 bytes"):
        zstd_decompress(bomb, limit=1000)


@pytest.mark.parametrize("data", [MAGIC + b"\x00\x58" + bytes(30_000) + b"\1\0\0", (MAGIC + b"\x20\0\1\0\0") * 4000])
def test_blocks_that_hold_nothing_keep_nobody_busy(data: bytes) -> None:
    with pytest.raises(DecompressionError, match=r"more than \d+ blocks in \d+ bytes"):
        zstd_decompress(data, limit=1 << 20)


def test_many_blocks_that_hold_something_are_read() -> None:
    blocks = [struct.pack("<I", 40 << 3)[:3] + b"%040d" % number for number in range(3000)]
    text = b"".join(block[3:] for block in blocks)
    assert zstd_decompress(MAGIC + b"\x00\x58" + b"".join(blocks) + b"\1\0\0", limit=1 << 20) == text
