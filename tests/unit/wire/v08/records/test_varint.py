from __future__ import annotations

import pytest

from consumerd.wire import CorruptMessageError
from consumerd.wire.v08.records.encode import VARINTS
from consumerd.wire.v08.records.varint import read_varint, read_varlong, varint

VECTORS = [
    (0, "00"),
    (-1, "01"),
    (1, "02"),
    (-2, "03"),
    (63, "7e"),
    (-64, "7f"),
    (64, "8001"),
    (-65, "8101"),
    (8191, "fe7f"),
    (8192, "808001"),
    (2**31 - 1, "feffffff0f"),
    (-(2**31), "ffffffff0f"),
    (2**63 - 1, "feffffffffffffffff01"),
    (-(2**63), "ffffffffffffffffff01"),
]


@pytest.mark.parametrize(("value", "written"), VECTORS)
def test_reads_the_numbers_it_wrote(value: int, written: str) -> None:
    data = bytes.fromhex(written)
    assert varint(value) == data
    assert read_varlong(b"?" + data + b"?", 1) == (value, 1 + len(data))
    if len(data) <= 5:
        assert read_varint(data, 0) == (value, len(data))


def test_table_holds_numbers_of_up_to_two_bytes() -> None:
    assert [varint(number) for number in range(8192)] == list(VARINTS)


@pytest.mark.parametrize("written", ["808080808000", "8080808010", "ffffffff1f"])
def test_rejects_more_than_32_bits(written: str) -> None:
    with pytest.raises(CorruptMessageError, match="32 bits"):
        read_varint(bytes.fromhex(written), 0)


@pytest.mark.parametrize("written", ["8080808080808080808000", "80808080808080808002"])
def test_rejects_more_than_64_bits(written: str) -> None:
    with pytest.raises(CorruptMessageError, match="64 bits"):
        read_varlong(bytes.fromhex(written), 0)


@pytest.mark.parametrize("written", ["", "80", "8080"])
def test_raises_index_error_at_the_end(written: str) -> None:
    with pytest.raises(IndexError):
        read_varint(bytes.fromhex(written), 0)
