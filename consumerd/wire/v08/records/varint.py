"""Signed varints of record batches: zigzag, so that small negative numbers are short, then seven bits a byte.

Strategy: read one number at a position of `bytes`; the end of the data shows as IndexError, which the caller, who knows
what was being read, turns into a verdict. Written numbers below 8192 come from a table.
"""

from __future__ import annotations

from consumerd.wire.errors import CorruptMessageError

#: Bytes of the longest 32-bit and 64-bit numbers.
INT32_BYTES, INT64_BYTES = 5, 10


def read_raw(data: bytes, position: int, longest: int) -> tuple[int, int]:
    """The number at `position` before zigzag, and the position after it. Raises CorruptMessageError, IndexError."""
    byte = data[position]
    if byte < 0x80:
        return byte, position + 1
    value = byte & 0x7F
    for shift in range(7, 7 * longest, 7):
        position += 1
        byte = data[position]
        if byte < 0x80:
            return value | byte << shift, position + 1
        value |= (byte & 0x7F) << shift
    raise CorruptMessageError(f"a number of more than {longest} bytes")


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """The 32-bit number at `position` and the position after it. Raises CorruptMessageError, IndexError."""
    raw, position = read_raw(data, position, INT32_BYTES)
    raw &= 0xFFFFFFFF
    return raw >> 1 ^ -(raw & 1), position


def read_varlong(data: bytes, position: int) -> tuple[int, int]:
    """The 64-bit number at `position` and the position after it. Raises CorruptMessageError, IndexError."""
    raw, position = read_raw(data, position, INT64_BYTES)
    raw &= 0xFFFFFFFFFFFFFFFF
    return raw >> 1 ^ -(raw & 1), position


def varint(value: int) -> bytes:
    """The bytes of a number of at most 64 bits."""
    raw = value << 1 ^ value >> 63
    if raw < 0x80:
        return bytes((raw,))
    written = bytearray()
    while raw > 0x7F:
        written.append(raw & 0x7F | 0x80)
        raw >>= 7
    written.append(raw)
    return bytes(written)


#: `varint` of the numbers 0 to 8191, those of at most two bytes.
VARINTS = tuple(varint(value) for value in range(8192))
