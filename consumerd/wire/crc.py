"""The checksum of messages: CRC-32 (spec 000, Message). It is zlib's polynomial, computed by ISA-L twice as fast."""

from isal.isal_zlib import crc32

__all__ = ["crc32"]
