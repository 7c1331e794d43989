"""Checksums for the comparison of two logs: one for each message, and sums for ranges of offsets. No I/O.

Strategy: a message's number is a 64-bit hash over where it stood, its checksum and its payload, so that neither a
changed payload nor two swapped ones go unseen. A range keeps how many there are, their sum, which no order changes, and
a polynomial in them, which every change of order changes. Equal sums mean equal messages but for a chance of about
2**-64 for each range; the sums do not protect against an attacker who chooses payloads.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, NamedTuple

from consumerd.wire.crc import crc32

_MASK: Final = (1 << 64) - 1
#: Odd, so that the polynomial loses nothing.
_FACTOR: Final = 0x9E3779B97F4A7C15

#: Offset of the outermost message, and index of the leaf in it.
MessagePosition = tuple[int, int]


def message_number(position: MessagePosition, crc: int | None, payload: bytes | None) -> int:
    """The number of a message. `crc` and `payload` are None for a null payload."""
    head = b"%d.%d.%s." % (*position, b"-" if crc is None else b"%d" % crc)
    return int.from_bytes(blake2b(head if payload is None else head + payload, digest_size=8).digest(), "big")


def source_number(position: MessagePosition, payload: bytes | None) -> int:
    """Return the number of a message of the source, whose checksum is computed here."""
    return message_number(position, None if payload is None else crc32(payload), payload)


class RangeSums(NamedTuple):
    """The sums of a range. `in_order` is None where its messages came from several places."""

    count: int  # type: ignore[assignment]  # tuple.count is not used
    total: int
    in_order: int | None


@dataclass(slots=True)
class RunningSums:
    """Sums that are being computed."""

    count: int = 0
    total: int = 0
    in_order: int = 0

    def add(self, number: int) -> None:
        """Add a message."""
        self.count += 1
        self.total = (self.total + number) & _MASK
        self.in_order = (self.in_order * _FACTOR + number) & _MASK

    def result(self, *, ordered: bool = True) -> RangeSums:
        """The sums so far."""
        return RangeSums(self.count, self.total, self.in_order if ordered else None)
