from __future__ import annotations

import pytest

from consumerd.wire.v08.records.crc32c import crc32c, extend_crc32c


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
