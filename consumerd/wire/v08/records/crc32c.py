"""The checksum of record batches: CRC-32C (Castagnoli), in C with the processor's instruction for it."""

from google_crc32c import extend as extend_crc32c
from google_crc32c import value as crc32c

__all__ = ["crc32c", "extend_crc32c"]
