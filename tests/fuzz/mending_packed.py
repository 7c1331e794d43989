"""Changes of compressed data and of archives that keep what surrounds the changed part right: sizes, CRCs, trailers.

Strategy: as in `mending`. `change` works on what comes out of the compression, which is then compressed again by any
of the encoders that there are, or on the compressed data between a header and a trailer that are then written to fit.
What cannot be opened is changed as it stands, as is one input of four.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import cramjam
import xxhash
import zstandard

from consumerd.wire import WireError
from consumerd.wire.compression import Codec, compress, decompress
from consumerd.wire.lz4 import MAGIC as LZ4_MAGIC
from consumerd.wire.lz4 import header_checksum, lz4_compress
from consumerd.wire.lz4 import lz4_decompress as unpack_lz4

if TYPE_CHECKING:
    import random

    from tests.fuzz.targets.target import Mutate

_MOST: Final = 1 << 16
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_BLOCK: Final = 512
#: Name, size, time, type, name of a link, version, prefix.
_TAR_FIELDS: Final = ((0, 100), (124, 136), (136, 148), (156, 157), (157, 257), (262, 265), (345, 500))


def behind(count: int, mutate: Mutate) -> Mutate:
    """`mutate` for what is behind the first `count` bytes, which choose how a target reads the rest."""

    def changed(data: bytes, change: Callable[[bytes], bytes], rng: random.Random) -> bytes:
        if len(data) <= count or rng.random() < 0.1:
            return change(data)
        head = data[:count]
        if rng.random() < 0.2:
            head = rng.randbytes(count)
        return head + mutate(data[count:], change, rng)

    return changed


def changed_gzip(data: bytes, change: Callable[[bytes], bytes], rng: random.Random) -> bytes:
    """A gzip member with other content, or another deflate stream, with the trailer that belongs to it."""
    kind = rng.random()
    if kind < 0.25 or len(data) < 18:
        return change(data)
    if kind < 0.6:
        with suppress(zlib.error):
            inside = zlib.decompressobj(31).decompress(data, _MOST)
            level = rng.randrange(10)
            packer = zlib.compressobj(level, zlib.DEFLATED, 31, 8, rng.choice((zlib.Z_DEFAULT_STRATEGY, zlib.Z_FIXED)))
            return packer.compress(change(inside)) + packer.flush()
        return change(data)
    stream = change(data[10:-8])
    inflater = zlib.decompressobj(-15)
    out = b""
    with suppress(zlib.error):
        out = inflater.decompress(stream, _MOST)
    used = len(stream) - len(inflater.unused_data) if inflater.eof else len(stream)
    member = data[:10] + stream[:used] + struct.pack("<II", zlib.crc32(out), len(out))
    return member + (data if kind > 0.95 else b"")


def changed_snappy(data: bytes, change: Callable[[bytes], bytes], rng: random.Random) -> bytes:
    """Other content, raw or in the blocks of Java's stream, or other elements with the length that they make."""
    kind = rng.random()
    if kind < 0.25:
        return change(data)
    if kind < 0.6:
        with suppress(WireError):
            inside = change(decompress(Codec.SNAPPY, data, limit=_MOST))
            return compress(Codec.SNAPPY, inside) if rng.random() < 0.5 else bytes(cramjam.snappy.compress_raw(inside))
        return change(data)
    framed = data[:1] == b"\x82" and len(data) > 20
    block = data[20:] if framed else data
    start = next((number + 1 for number, byte in enumerate(block[:5]) if byte < 0x80), 0)
    elements = change(block[start:])
    block = _varint(_snappy_length(elements)) + elements
    return data[:16] + struct.pack(">i", len(block)) + block if framed else block


def _snappy_length(elements: bytes) -> int:
    """The bytes that the elements of a raw block make."""
    at = made = 0
    while at < len(elements):
        tag, size = elements[at], (elements[at] >> 2) + 1
        if tag & 3 == 0:
            extra = max(0, size - 60)
            if extra:
                size = int.from_bytes(elements[at + 1 : at + 1 + extra], "little") + 1
            at += 1 + extra + size
        elif tag & 3 == 1:
            size = (tag >> 2 & 7) + 4
            at += 2
        else:
            at += 3 if tag & 3 == 2 else 5
        made += size
    return made & 0xFFFFFFFF


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def changed_lz4(data: bytes, change: Callable[[bytes], bytes], rng: random.Random) -> bytes:
    """A frame with other content, or with another first block, under any flags, with their checksums."""
    kind = rng.random()
    if kind < 0.25 or len(data) < 15 or not data.startswith(LZ4_MAGIC):
        return change(data)
    inside = b""
    with suppress(WireError):
        inside = unpack_lz4(data, limit=_MOST)
    if kind < 0.5:
        inside = change(inside)
        return bytes(cramjam.lz4.compress(inside)) if rng.random() < 0.5 else lz4_compress(inside)
    flags = data[4] if rng.random() < 0.5 else 0x40 | rng.getrandbits(6) & 0x3C
    start = 7 + (8 if data[4] & 0x08 else 0)
    size = int.from_bytes(data[start : start + 4], "little")
    block = data[start + 4 : start + 4 + (size & 0x7FFFFFFF)]
    raw = bool(size >> 31)
    if kind < 0.85:
        block = change(block)
    elif raw or not block:
        block, raw = bytes(cramjam.lz4.compress_block(inside or b"x", store_size=False)), False
    with suppress(cramjam.DecompressionError):
        inside = block if raw else bytes(cramjam.lz4.decompress_block(block, output_len=_MOST))
    head = bytes((flags, data[5])) + (len(inside).to_bytes(8, "little") if flags & 0x08 else b"")
    checked = LZ4_MAGIC + head if rng.random() < 0.2 else head  # as clients of 0.8 and 0.9 do
    found = LZ4_MAGIC + head + bytes([header_checksum(checked)])
    found += (len(block) | raw << 31).to_bytes(4, "little") + block
    if flags & 0x10:
        found += xxhash.xxh32(block).intdigest().to_bytes(4, "little")
    return found + bytes(4) + (xxhash.xxh32(inside).intdigest().to_bytes(4, "little") if flags & 0x04 else b"")


def changed_zstd(data: bytes, change: Callable[[bytes], bytes], rng: random.Random) -> bytes:
    """A frame with other content, of any level and with any of the optional fields; or other bytes after its magic."""
    kind = rng.random()
    if kind < 0.25 or not data.startswith(_ZSTD_MAGIC):
        return change(data)
    if kind < 0.6:
        with suppress(zstandard.ZstdError):
            inside = zstandard.ZstdDecompressor().decompressobj().decompress(data)[:_MOST]
            options: dict[str, Any] = {name: rng.random() < 0.5 for name in ("write_checksum", "write_content_size")}
            return zstandard.ZstdCompressor(rng.choice((1, 3, 19, -5)), **options).compress(change(inside))
    if kind < 0.9:
        changed = _ZSTD_MAGIC + change(data[4:])
        return changed[:4] + bytes([changed[4] & ~4]) + changed[5:] if len(changed) > 4 else changed
    return data + changed_zstd(data, change, rng)


def changed_packed(data: bytes, change: Callable[[bytes], bytes], rng: random.Random) -> bytes:
    """A gzip member or a zstd frame, by the bytes that it begins with."""
    return (changed_zstd if data.startswith(_ZSTD_MAGIC) else changed_gzip)(data, change, rng)


def changed_tar(data: bytes, change: Callable[[bytes], bytes], rng: random.Random) -> bytes:
    """A field of a header or one block after `change`, or all bytes; then each header gets its checksum."""
    blocks = [data[at : at + _BLOCK] for at in range(0, len(data), _BLOCK)]
    if not blocks or rng.random() < 0.25:
        return change(data)
    number = rng.randrange(len(blocks))
    if rng.random() < 0.2:
        blocks.insert(number, rng.choice(blocks))
    elif _is_header(blocks[number]):
        start, stop = rng.choice(_TAR_FIELDS)
        field = change(blocks[number][start:stop].rstrip(b"\0"))[: stop - start].ljust(stop - start, b"\0")
        blocks[number] = blocks[number][:start] + field + blocks[number][stop:]
    else:
        blocks[number] = change(blocks[number].rstrip(b"\0"))[:_BLOCK].ljust(_BLOCK, b"\0")
    return b"".join(_summed(block) for block in blocks)


def _is_header(block: bytes) -> bool:
    return block[257:262] == b"ustar" and len(block) == _BLOCK


def _summed(block: bytes) -> bytes:
    if not _is_header(block):
        return block
    return block[:148] + b"%06o\0 " % (sum(block[:148]) + 8 * 32 + sum(block[156:])) + block[156:]


#: By name of the codec.
CHANGED: Final[dict[str, Mutate]] = {
    "gzip": changed_gzip,
    "snappy": changed_snappy,
    "lz4": changed_lz4,
    "zstd": changed_zstd,
}
