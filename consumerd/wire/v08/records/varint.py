"""Signed varints of record batches: zigzag, so that small negative numbers are short, then seven bits a byte.

Strategy: read one number at a position of `bytes`; the end of the data raises IndexError, which the caller turns into
the result for what it was reading.
"""

from __future__ import annotations

from consumerd.wire.errors import CorruptMessageError

#: Bytes of the longest 32-bit and 64-bit numbers.
INT32_BYTES, INT64_BYTES = 5, 10
_BITS = {INT32_BYTES: 32, INT64_BYTES: 64}


def read_rest(data: bytes, position: int, first: int, longest: int) -> tuple[int, int]:
    """The number, before zigzag, whose first byte `first` stands before `position`, and the position after it.

    Raises CorruptMessageError for more than `longest` bytes or than they may hold, IndexError at the end of the data.
    """
    value = first & 0x7F
    for shift in range(7, 7 * longest, 7):
        byte = data[position]
        position += 1
        if byte < 0x80:
            value |= byte << shift
            if value >> _BITS[longest]:
                break
            return value, position
        value |= (byte & 0x7F) << shift
    raise CorruptMessageError(f"a number of more than {_BITS[longest]} bits")


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """The 32-bit number at `position` and the position after it. Raises CorruptMessageError, IndexError."""
    raw, position = data[position], position + 1
    if raw > 0x7F:
        raw, position = read_rest(data, position, raw, INT32_BYTES)
    return raw >> 1 ^ -(raw & 1), position


def read_varlong(data: bytes, position: int) -> tuple[int, int]:
    """The 64-bit number at `position` and the position after it. Raises CorruptMessageError, IndexError."""
    raw, position = data[position], position + 1
    if raw > 0x7F:
        raw, position = read_rest(data, position, raw, INT64_BYTES)
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
