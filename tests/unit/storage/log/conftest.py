"""Message sets written by hand from the spec, so that the log is tested without the wire room's encoder."""

import struct
import zlib
from collections.abc import Callable

import pytest


def _message(payload: bytes, magic: int = 1) -> bytes:
    head = bytes([magic, 0]) if magic else b"\0"
    body = head + struct.pack(">I", zlib.crc32(payload)) + payload
    return struct.pack(">i", len(body)) + body


@pytest.fixture
def message() -> Callable[..., bytes]:
    """`message(payload, magic=1)`: one log entry, size field included."""
    return _message
