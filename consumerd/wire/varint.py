"""Unsigned varints: lengths, counts and tags of flexible versions.

Strategy: seven bits a byte, the lowest first, the top bit set on every byte but the last. Values are of 32 bits, so a
sixth byte, or a fifth one beyond four bits, is invalid. Nearly all are below 128 and take the first branch.
"""

from __future__ import annotations

from consumerd.wire.errors import EncodeError, FrameError

_LAST_SHIFT = 28


def read_uvarint(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """The number at `position` and the position after it. Raises FrameError beyond 32 bits, IndexError at the end."""
    byte = data[position]
    if byte < 0x80:
        return byte, position + 1
    value = byte & 0x7F
    for shift in range(7, _LAST_SHIFT + 1, 7):
        position += 1
        byte = data[position]
        if byte < 0x80:
            if shift == _LAST_SHIFT and byte > 0x0F:
                break
            return value | byte << shift, position + 1
        value |= (byte & 0x7F) << shift
    raise FrameError("a varint has more than 32 bits")


def uvarint(value: int) -> bytes:
    """The bytes of `value`. Raises EncodeError for what 32 bits cannot hold."""
    if 0 <= value < 0x80:
        return bytes((value,))
    if not 0 <= value < 1 << 32:
        raise EncodeError(f"{value} does not fit into an unsigned varint of 32 bits")
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
