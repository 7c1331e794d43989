from __future__ import annotations

import random
import struct

import cramjam
import lz4.frame
import pytest
import xxhash

from consumerd.wire import DecompressionError
from consumerd.wire.lz4 import MAGIC, header_checksum, lz4_compress, lz4_decompress

TEXT = b"to be or not to be, that is the question; " * 5000
NOISE = random.Random(1).randbytes(200_000)
SAMPLES = [b"", b"a", TEXT, NOISE, bytes(1_000_000)]


@pytest.mark.parametrize("size", range(16))
def test_header_checksum_is_a_byte_of_xxh32(size: int) -> None:
    header = random.Random(size).randbytes(size)
    assert header_checksum(header) == xxhash.xxh32(header).intdigest() >> 8 & 0xFF


@pytest.mark.parametrize("data", SAMPLES, ids=len)
def test_writes_standard_frames(data: bytes) -> None:
    frame = lz4_compress(data)
    assert lz4.frame.decompress(frame) == data
    info = lz4.frame.get_frame_info(frame)
    assert (info["block_linked"], info["block_size"], info["content_checksum"]) == (False, 65536, False)


@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize("data", SAMPLES, ids=len)
def test_reads_both_framings(data: bytes, broken: bool) -> None:
    frame = lz4_compress(data, broken_checksum=broken)
    assert lz4_decompress(frame, limit=len(data)) == data
    assert lz4_decompress(frame + b"what follows", limit=1 << 21) == data


def test_broken_checksum_covers_the_magic() -> None:
    """The bytes that clients of 0.8 and 0.9 write for empty data: KAFKA-3160."""
    assert lz4_compress(b"").hex() == "04224d1860408200000000"
    assert lz4_compress(b"", broken_checksum=True).hex() == "04224d1860401a00000000"


@pytest.mark.parametrize(
    "options",
    [
        {"content_checksum": True},
        {"store_size": False},
        {"block_linked": False, "block_checksum": True, "block_size": 7},
        {"block_linked": True, "block_size": 5},
    ],
)
def test_reads_other_forms_of_frames(options: dict[str, bool]) -> None:
    assert lz4_decompress(lz4.frame.compress(TEXT, **options), limit=len(TEXT)) == TEXT
    assert lz4_decompress(bytes(cramjam.lz4.compress(TEXT)), limit=1 << 20) == TEXT


@pytest.mark.parametrize("data", [b"a", TEXT, NOISE, bytes(1_000_000)], ids=len)
def test_enforces_the_limit(data: bytes) -> None:
    for frame in (lz4_compress(data), lz4.frame.compress(data)):
        with pytest.raises(DecompressionError, match="limit"):
            lz4_decompress(frame, limit=len(data) - 1)


def frame(*blocks: bytes, flags: int = 0x60, sizes: int = 0x40, more: bytes = b"") -> bytes:
    descriptor = bytes((flags, sizes)) + more
    return MAGIC + descriptor + bytes((header_checksum(descriptor),)) + b"".join(blocks)


END = bytes(4)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "begin with a frame"),
        (b"\x05\x22\x4d\x18\x60\x40\x82", "begin with a frame"),
        (MAGIC + b"\x60\x40\x83" + END, "wrong checksum"),
        (frame(flags=0xA0), "header that Kafka"),
        (frame(flags=0x62), "header that Kafka"),
        (frame(flags=0x61, more=bytes(4)), "header that Kafka"),
        (frame(sizes=0xC0), "header that Kafka"),
        (frame(END, sizes=0x30), "size class 3"),
        (frame(), "truncated"),
        (frame(struct.pack("<I", 4), b"\x30abc"), "truncated"),
        (frame(struct.pack("<I", 9), b"\x30abc", END), "truncated"),
        (frame(END, flags=0x64), "truncated"),
        (frame(struct.pack("<I", 65537), bytes(65537), END), "claims 65537 bytes"),
        (frame(struct.pack("<I", 4), b"\xf0abc", END), "damaged"),
        (frame(*[struct.pack("<I", 1 << 31 | 1) + b"x"] * 2000, END), r"more than 1336 blocks in \d+ bytes"),
        (frame(END, flags=0x68, more=struct.pack("<Q", 1 << 60)), "claims to hold"),
        (frame(struct.pack("<I", 3), b"\x20ab", END, flags=0x68, more=struct.pack("<Q", 1)), "damaged"),
    ],
)
def test_rejects_invalid_frames(data: bytes, what: str) -> None:
    with pytest.raises(DecompressionError, match=what):
        lz4_decompress(data, limit=1 << 20)
