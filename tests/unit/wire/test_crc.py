from __future__ import annotations

import zlib

from consumerd.wire.crc import crc32


def test_crc32_of_the_check_string() -> None:
    assert crc32(b"123456789") == 0xCBF43926


def test_crc32_of_nothing_is_zero() -> None:
    assert crc32(b"") == 0


def test_crc32_agrees_with_zlib_beyond_every_vector_width() -> None:
    for size in (1, 3, 15, 16, 17, 63, 64, 65, 255, 256, 1000, 70_000):
        data = bytes(i * 7 & 0xFF for i in range(size))
        assert crc32(data) == zlib.crc32(data)
