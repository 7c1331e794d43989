from __future__ import annotations

import gzip
import struct
import tracemalloc
import zlib

import pytest

from consumerd.wire import Codec, DecompressionError, compress, decompress

TEXT = b"".join(b"line %d of a log, GET /index.html 200\n" % i for i in range(3000))
XERIAL = bytes.fromhex("82534e4150505900 00000001 00000001")


def literal(data: bytes) -> bytes:
    """A raw snappy block that holds `data` (up to 60 bytes) as one literal, written by hand."""
    return bytes([len(data), (len(data) - 1) << 2]) + data


def block(raw: bytes) -> bytes:
    return struct.pack(">i", len(raw)) + raw


def member(data: bytes, flags: int = 0, extra: bytes = b"") -> bytes:
    """A gzip member with the given header flags and what they announce."""
    deflater = zlib.compressobj(6, zlib.DEFLATED, -15)
    body = deflater.compress(data) + deflater.flush()
    head = bytes([0x1F, 0x8B, 8, flags, 0, 0, 0, 0, 0, 3])
    return head + extra + body + struct.pack("<II", zlib.crc32(data), len(data))


class TestNone:
    def test_passes_through(self) -> None:
        assert compress(Codec.NONE, TEXT) is TEXT
        assert decompress(Codec.NONE, TEXT, limit=len(TEXT)) is TEXT

    def test_limits_uncompressed_data_too(self) -> None:
        with pytest.raises(DecompressionError, match="limit of 9 bytes"):
            decompress(Codec.NONE, b"0123456789", limit=9)


class TestGzip:
    def test_writes_the_header_of_the_jvm(self) -> None:
        assert compress(Codec.GZIP, b"x")[:10] == bytes.fromhex("1f8b08 00 00000000 00 ff")

    def test_standard_library_reads_its_output(self) -> None:
        for data in (b"", b"x", TEXT):
            assert gzip.decompress(compress(Codec.GZIP, data)) == data

    def test_reads_output_of_the_standard_library(self) -> None:
        for level in (0, 1, 6, 9):
            assert decompress(Codec.GZIP, gzip.compress(TEXT, level), limit=len(TEXT)) == TEXT

    def test_empty_payload_is_an_empty_set(self) -> None:
        assert decompress(Codec.GZIP, gzip.compress(b""), limit=0) == b""

    def test_applies_one_limit_to_all_members(self) -> None:
        data = gzip.compress(b"12345") * 3
        assert decompress(Codec.GZIP, data, limit=15) == b"12345" * 3
        with pytest.raises(DecompressionError, match="limit of 14 bytes"):
            decompress(Codec.GZIP, data, limit=14)

    def test_rejects_endless_members(self) -> None:
        with pytest.raises(DecompressionError, match="more than 1024 members"):
            decompress(Codec.GZIP, gzip.compress(b"") * 2000, limit=10)

    def test_reads_a_late_member_larger_than_the_input_window(self) -> None:
        noise = bytes((i * i * 31 + i // 7) & 0xFF for i in range(50_000))
        data = gzip.compress(b"a") + gzip.compress(noise) + gzip.compress(b"z")
        assert decompress(Codec.GZIP, data, limit=60_000) == b"a" + noise + b"z"

    @pytest.mark.parametrize("rest", [b"\0" * 7, b"junk", b"\x1f", b"\x1f\x8b"])
    def test_ignores_other_bytes_after_a_member(self, rest: bytes) -> None:
        assert decompress(Codec.GZIP, gzip.compress(b"set") + rest, limit=99) == b"set"
        assert decompress(Codec.GZIP, gzip.compress(b"set") * 2 + rest, limit=99) == b"setset"

    def test_reads_headers_with_optional_fields(self) -> None:
        name = b"file.txt\0"
        assert decompress(Codec.GZIP, member(b"set", 8, name), limit=99) == b"set"
        assert decompress(Codec.GZIP, member(b"set", 16, b"comment\0"), limit=99) == b"set"
        assert decompress(Codec.GZIP, member(b"set", 4, b"\x03\x00abc"), limit=99) == b"set"

    @pytest.mark.parametrize("at", [-1, -5, -8])
    def test_detects_a_wrong_checksum_or_size(self, at: int) -> None:
        data = bytearray(gzip.compress(TEXT))
        data[at] ^= 0x40
        with pytest.raises(DecompressionError, match="damaged"):
            decompress(Codec.GZIP, bytes(data), limit=len(TEXT))

    def test_rejects_data_that_is_not_gzip(self) -> None:
        for data in (b"", b"this is not gzip", b"\x1f\x8b"):
            with pytest.raises(DecompressionError):
                decompress(Codec.GZIP, data, limit=1000)

    def test_allows_exactly_the_limit_and_rejects_one_byte_more(self) -> None:
        data = gzip.compress(TEXT)
        assert decompress(Codec.GZIP, data, limit=len(TEXT)) == TEXT
        with pytest.raises(DecompressionError, match=r"raise fetch\.max_size"):
            decompress(Codec.GZIP, data, limit=len(TEXT) - 1)

    def test_decompression_bomb_costs_no_more_than_the_limit(self) -> None:
        bomb = gzip.compress(bytes(64 << 20))
        tracemalloc.start()
        try:
            with pytest.raises(DecompressionError):
                decompress(Codec.GZIP, bomb, limit=1 << 20)
            assert tracemalloc.get_traced_memory()[1] < 8 << 20
        finally:
            tracemalloc.stop()


class TestSnappy:
    def test_reads_handwritten_xerial_framing(self) -> None:
        data = XERIAL + block(literal(b"hello ")) + block(literal(b"world"))
        assert decompress(Codec.SNAPPY, data, limit=11) == b"hello world"

    def test_reads_a_handwritten_bare_block(self) -> None:
        assert decompress(Codec.SNAPPY, literal(b"hello"), limit=5) == b"hello"

    def test_reads_a_handwritten_copy_element(self) -> None:
        # literal "ab", then a copy of 6 bytes from 2 back (type 1: length 4..11, 11 bits of offset)
        raw = bytes([8, 1 << 2]) + b"ab" + bytes([(6 - 4) << 2 | 1, 2])
        assert decompress(Codec.SNAPPY, raw, limit=8) == b"abababab"

    def test_header_without_blocks_is_an_empty_set(self) -> None:
        assert decompress(Codec.SNAPPY, XERIAL, limit=0) == b""

    @pytest.mark.parametrize("stray", [b"\0", b"\0\0", b"\0\0\0"])
    def test_ignores_less_than_a_length_at_the_end(self, stray: bytes) -> None:
        assert decompress(Codec.SNAPPY, XERIAL + block(literal(b"one")) + stray, limit=3) == b"one"

    @pytest.mark.parametrize(
        "tail",
        [
            b"\0\0\0\x05\x03\x08on",  # cut off
            b"\xff\xff\xff\xff",  # negative
            b"\x7f\xff\xff\xff" + b"x" * 20,  # beyond the end
            b"\0\0\0\0",  # a block of no bytes has no length in front
            b"\0\0\0\x05\x80\x80\x80\x80\x80",  # a length that does not end
            b"\0\0\0\x05\xff\xff\xff\xff\x7f",  # a length of more than 32 bits
            b"\0\0\0\x03\x05\x08on",  # claims 5, holds less
            b"\0\0\0\x04\x02\x01\x05\x00",  # a copy from before the beginning
        ],
    )
    def test_rejects_damaged_data(self, tail: bytes) -> None:
        with pytest.raises(DecompressionError):
            decompress(Codec.SNAPPY, XERIAL + block(literal(b"one")) + tail, limit=1000)

    def test_truncated_header_is_not_framing(self) -> None:
        for end in range(1, len(XERIAL)):
            with pytest.raises(DecompressionError):
                decompress(Codec.SNAPPY, XERIAL[:end], limit=1000)

    def test_rejects_empty_data(self) -> None:
        with pytest.raises(DecompressionError):
            decompress(Codec.SNAPPY, b"", limit=1000)

    def test_applies_one_limit_to_all_blocks(self) -> None:
        data = XERIAL + block(literal(b"12345")) * 3
        assert decompress(Codec.SNAPPY, data, limit=15) == b"12345" * 3
        with pytest.raises(DecompressionError, match="limit of 14 bytes"):
            decompress(Codec.SNAPPY, data, limit=14)

    def test_rejects_endless_empty_blocks(self) -> None:
        with pytest.raises(DecompressionError, match=r"more than 1649 blocks in \d+ bytes"):
            decompress(Codec.SNAPPY, XERIAL + block(b"\0") * 4000, limit=1000)

    def test_allocates_nothing_for_a_size_beyond_the_limit(self) -> None:
        four_gigabytes = b"\xff\xff\xff\xff\x0f"
        tracemalloc.start()
        try:
            with pytest.raises(DecompressionError, match="limit"):
                decompress(Codec.SNAPPY, four_gigabytes + b"\0" * 100, limit=1 << 30)
            with pytest.raises(DecompressionError, match="claims to hold"):
                decompress(Codec.SNAPPY, four_gigabytes + b"\0" * 100, limit=1 << 33)
            assert tracemalloc.get_traced_memory()[1] < 1 << 20
        finally:
            tracemalloc.stop()

    def test_accepts_the_best_ratio_of_the_format(self) -> None:
        zeros = bytes(1 << 20)
        assert decompress(Codec.SNAPPY, compress(Codec.SNAPPY, zeros), limit=len(zeros)) == zeros

    def test_writes_the_framing_in_blocks_of_32_kib(self) -> None:
        data = compress(Codec.SNAPPY, TEXT)
        assert data.startswith(XERIAL)
        position, sizes = len(XERIAL), []
        while position < len(data):
            (size,) = struct.unpack_from(">i", data, position)
            raw = data[position + 4 : position + 4 + size]
            sizes.append(len(decompress(Codec.SNAPPY, raw, limit=1 << 16)))
            position += 4 + size
        assert sizes == [32768] * (len(TEXT) // 32768) + [len(TEXT) % 32768]
