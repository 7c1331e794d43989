from __future__ import annotations

import zlib

import pytest

from consumerd.wire.crc import crc32, crc32c, extend_crc32c


def test_crc32_of_the_check_string() -> None:
    assert crc32(b"123456789") == 0xCBF43926


def test_crc32_of_nothing_is_zero() -> None:
    assert crc32(b"") == 0


def test_crc32_agrees_with_zlib_beyond_every_vector_width() -> None:
    for size in (1, 3, 15, 16, 17, 63, 64, 65, 255, 256, 1000, 70_000):
        data = bytes(i * 7 & 0xFF for i in range(size))
        assert crc32(data) == zlib.crc32(data)


@pytest.mark.parametrize(
    ("data", "crc"),
    # RFC 3720, B.4.
    [
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
    ],
)
def test_crc32c_of_the_examples_in_rfc_3720(data: bytes, crc: int) -> None:
    assert crc32c(data) == crc
    assert extend_crc32c(crc32c(data[:5]), data[5:]) == crc
