from __future__ import annotations

import zlib

from consumerd.wire import crc32


def test_the_check_value_of_the_polynomial() -> None:
    assert crc32(b"123456789") == 0xCBF43926


def test_nothing_has_crc_zero() -> None:
    assert crc32(b"") == 0


def test_agrees_with_zlib_beyond_every_vector_width() -> None:
    for size in (1, 3, 15, 16, 17, 63, 64, 65, 255, 256, 1000, 70_000):
        data = bytes(i * 7 & 0xFF for i in range(size))
        assert crc32(data) == zlib.crc32(data)
