from __future__ import annotations

import gzip
from collections.abc import Iterable

import pytest

from consumerd.base import native
from consumerd.wire import EncodeError
from consumerd.wire.v07 import Codec, encode_message, encode_message_set
from consumerd.wire.v07 import encode as encode_module

pytestmark = pytest.mark.usefixtures("either_codec")

# Written by hand from spec 003, 5.4: length, magic, [attributes,] CRC of the payload, payload.
HELLO_1 = bytes.fromhex("0000000b 01 00 3610a686") + b"hello"
HELLO_0 = bytes.fromhex("0000000a 00 3610a686") + b"hello"
EMPTY_1 = bytes.fromhex("00000006 01 00 00000000")
EMPTY_0 = bytes.fromhex("00000005 00 00000000")


def test_encodes_magic_1() -> None:
    assert encode_message(b"hello") == HELLO_1
    assert encode_message(b"") == EMPTY_1


def test_magic_0_has_no_attributes() -> None:
    assert encode_message(b"hello", magic=0) == HELLO_0
    assert encode_message(b"", magic=0) == EMPTY_0


@pytest.mark.parametrize(("codec", "attributes"), [(Codec.GZIP, 1), (Codec.SNAPPY, 2)])
def test_writes_the_codec_and_leaves_the_payload_as_it_is(codec: Codec, attributes: int) -> None:
    expected = bytes([0, 0, 0, 11, 1, attributes]) + HELLO_1[6:]
    assert encode_message(b"hello", codec=codec) == expected


def test_set_is_the_concatenation_of_its_messages() -> None:
    assert encode_message_set([b"hello", b""]) == HELLO_1 + EMPTY_1
    assert encode_message_set([b"hello", b""], magic=0) == HELLO_0 + EMPTY_0
    assert encode_message_set(iter([b"hello"])) == HELLO_1


@pytest.mark.parametrize("magic", [0, 1])
def test_codec_wraps_the_whole_set_in_one_message_of_magic_1(magic: int) -> None:
    data = encode_message_set([b"hello", b""], magic=magic, codec=Codec.GZIP)
    assert data[4:6] == b"\x01\x01"
    assert int.from_bytes(data[:4]) == len(data) - 4
    assert gzip.decompress(data[10:]) == encode_message_set([b"hello", b""], magic=magic)


def test_native_codec_writes_lists_of_bytes(native_codec: native.NativeCodec, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one call for all, and leaves other things to the pure one."""
    joined: list[object] = []
    write = encode_module._joined

    def record(payloads: Iterable[bytes], magic: int) -> bytes:
        joined.append(payloads)
        return write(payloads, magic)

    monkeypatch.setattr(encode_module, "_joined", record)
    row = (b"hello", b"")
    with native.using(native_codec):
        assert encode_message_set(list(row)) == HELLO_1 + EMPTY_1
        assert joined == []
        assert encode_message_set(row) == HELLO_1 + EMPTY_1
        assert encode_message_set(list(row), magic=0) == HELLO_0 + EMPTY_0
        assert joined == [row, list(row)]


@pytest.mark.parametrize("magic", [-1, 2])
def test_rejects_a_set_of_an_unknown_magic(magic: int) -> None:
    with pytest.raises(EncodeError, match="use magic 1"):
        encode_message_set([b"x"], magic=magic)


@pytest.mark.parametrize("codec", list(Codec))
def test_writes_no_message_without_payloads(codec: Codec) -> None:
    assert encode_message_set([], codec=codec) == b""


@pytest.mark.parametrize(("magic", "codec"), [(0, Codec.GZIP), (0, Codec.SNAPPY), (2, Codec.NONE), (-1, Codec.NONE)])
def test_rejects_payloads_that_do_not_fit(magic: int, codec: Codec) -> None:
    with pytest.raises(EncodeError, match="use magic 1"):
        encode_message(b"x", magic=magic, codec=codec)


class Long(bytes):
    """Claims to be longer than a length field can say."""

    def __len__(self) -> int:
        return 0x7FFFFFFF


@pytest.mark.parametrize("magic", [0, 1])
def test_rejects_a_payload_beyond_the_length_field(magic: int) -> None:
    with pytest.raises(EncodeError, match="too long for one message"):
        encode_message(Long(), magic=magic)
    with pytest.raises(EncodeError, match="too long for one message"):
        encode_message_set(iter([b"", Long()]), magic=magic)
