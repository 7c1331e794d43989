"""Segments of brokers since 0.8, as the tests write them."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from consumerd.wire.v08.records import encode_record_batch
from consumerd.wire.v08.records.crc32c import crc32c

#: The position of the attributes in a batch, and the bit of control batches.
_ATTRIBUTES, _CONTROL = 21, 0x20


def batch(offset: int, *values: bytes | None, producer: int | None = None, **more: Any) -> bytes:
    """A batch of `values` from `offset` on; in a transaction of `producer`, if one is given."""
    if producer is not None:
        more |= {"producer_id": producer, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
    return encode_record_batch(values, base_offset=offset, leader_epoch=more.pop("leader_epoch", 0), **more)


def marker(offset: int, producer: int, *, commit: bool) -> bytes:
    """The control batch that ends a transaction."""
    key = struct.pack(">hh", 0, int(commit))
    data = bytearray(batch(offset, b"\0" * 6, producer=producer, keys=[key]))
    data[_ATTRIBUTES + 1] |= _CONTROL
    data[17:21] = struct.pack(">I", crc32c(bytes(data[_ATTRIBUTES:])))
    return bytes(data)


def write_segment(directory: Path, folder: str, start: int, *batches: bytes) -> Path:
    """A segment file of the partition `folder` (`topic-0`)."""
    path = directory / folder / f"{start:020}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(batches))
    return path
