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
def test_reads_its_own_frames(data: bytes) -> None:
    frame = zstd_compress(data)
    assert zstandard.ZstdDecompressor().decompressobj().decompress(frame) == data
    for made in (frame, streamed(data), streamed(data, checksum=True), zstandard.compress(data)):
        assert zstd_decompress(made, limit=len(data)) == data


def test_reads_concatenated_frames() -> None:
    assert zstd_decompress(streamed(b"one") + zstd_compress(b"two"), limit=6) == b"onetwo"


@pytest.mark.parametrize("data", SAMPLES[1:], ids=len)
def test_enforces_the_limit(data: bytes) -> None:
    for made in (zstd_compress(data), streamed(data), zstandard.compress(data), streamed(data) * 2):
        with pytest.raises(DecompressionError, match="limit"):
            zstd_decompress(made, limit=len(data) - 1)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "empty"),
        (b"abcdef", "begin with a frame"),
        (zstd_compress(b"one") + b"junk", "begin with a frame"),
        (MAGIC, "truncated"),
        (MAGIC + b"\x20", "truncated"),
        (zstd_compress(TEXT)[:-1], "truncated"),
        (streamed(TEXT, checksum=True)[:-1], "truncated"),
        # A block of the reserved kind, and one that is too large.
        (MAGIC + b"\x20\x01" + b"\x07\x00\x00", "damaged"),
        (MAGIC + b"\x20\x01" + b"\xfd\xff\xff", "damaged"),
        # A checksum that is wrong.
        (streamed(b"one", checksum=True)[:-1] + b"\x00", "damaged"),
    ],
)
def test_rejects_invalid_frames(data: bytes, what: str) -> None:
    with pytest.raises(DecompressionError, match=what):
        zstd_decompress(data, limit=1 << 20)


def test_decompression_bomb_costs_no_more_than_the_limit() -> None:
    """A run-length block says 128 KiB in four bytes."""
    bomb = MAGIC + b"\x00\x58" + b"\x02\x00\x10a" * 1000 + b"\x03\x00\x10a"
    with pytest.raises(DecompressionError, match="limit of 1000 bytes"):
        zstd_decompress(bomb, limit=1000)


@pytest.mark.parametrize("data", [MAGIC + b"\x00\x58" + bytes(30_000) + b"\1\0\0", (MAGIC + b"\x20\0\1\0\0") * 4000])
def test_rejects_endless_empty_blocks(data: bytes) -> None:
    with pytest.raises(DecompressionError, match=r"more than \d+ blocks in \d+ bytes"):
        zstd_decompress(data, limit=1 << 20)


def test_reads_many_blocks_with_content() -> None:
    blocks = [struct.pack("<I", 40 << 3)[:3] + b"%040d" % number for number in range(3000)]
    text = b"".join(block[3:] for block in blocks)
    assert zstd_decompress(MAGIC + b"\x00\x58" + b"".join(blocks) + b"\1\0\0", limit=1 << 20) == text
