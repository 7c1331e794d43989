"""Messages and message sets as producers write them (spec 000, Message; spec 003, 5.4; golden notes, 2).

Strategy: pieces in a list, joined once; the native codec writes lists of `bytes` in one call.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from consumerd.base.native import codec as native_codec
from consumerd.wire.compression import Codec, compress
from consumerd.wire.crc import crc32
from consumerd.wire.errors import EncodeError

_HEAD_0 = struct.Struct(">iBI").pack
_HEAD_1 = struct.Struct(">iBBI").pack


def _head(payload: bytes, magic: int, codec: Codec) -> bytes:
    try:
        if magic == 1:
            return _HEAD_1(len(payload) + 6, 1, codec, crc32(payload))
        if magic == 0 and codec is Codec.NONE:
            return _HEAD_0(len(payload) + 5, 0, crc32(payload))
    except struct.error as error:
        raise EncodeError(f"a payload of {len(payload)} bytes is too long for one message") from error
    raise EncodeError(f"magic {magic} has no place for compression codec {codec}; use magic 1")


def encode_message(payload: bytes, *, magic: int = 1, codec: Codec = Codec.NONE) -> bytes:
    """One message, its 4-byte length included.

    With a codec, `payload` is the compressed set and is written as it is; `encode_message_set` compresses. Raises
    EncodeError for an unknown magic, for a codec with magic 0, and for a payload beyond int32.
    """
    return _head(payload, magic, codec) + payload


def encode_message_set(payloads: Iterable[bytes], *, magic: int = 1, codec: Codec = Codec.NONE) -> bytes:
    """One message per payload; with a codec all of them inside one compressed message, which is of magic 1.

    No payloads give no bytes. Raises EncodeError like `encode_message`.
    """
    native = native_codec()
    joined = native.encode_set(payloads) if native is not None and magic == 1 else None
    if joined is None:
        joined = _joined(payloads, magic)
    if codec is Codec.NONE or not joined:
        return joined
    return encode_message(compress(codec, joined), codec=codec)


def _joined(payloads: Iterable[bytes], magic: int) -> bytes:
    """Plain messages."""
    pieces: list[bytes] = []
    add = pieces.append
    if magic == 1:  # what producers write; one call less for each message
        try:
            for payload in payloads:
                add(_HEAD_1(len(payload) + 6, 1, 0, crc32(payload)))
                add(payload)
        except struct.error as error:
            raise EncodeError("a payload is too long for one message") from error
    else:
        for payload in payloads:
            add(_head(payload, magic, Codec.NONE))
            add(payload)
    return b"".join(pieces)
