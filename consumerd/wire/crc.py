"""The checksums: CRC-32 of messages (spec 000, Message) and CRC-32C of record batches.

CRC-32 is zlib's polynomial, computed by ISA-L about twice as fast; CRC-32C (Castagnoli) is computed in C with the
processor's instruction for it.
"""

from google_crc32c import extend as extend_crc32c
from google_crc32c import value as crc32c
from isal.isal_zlib import crc32

__all__ = ["crc32", "crc32c", "extend_crc32c"]
