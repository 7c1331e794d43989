"""Detection of a TLS alert in response to a client without TLS."""

from __future__ import annotations

from typing import Final

_ALERT: Final = 0x15
_MAJOR_VERSION: Final = 3


def is_tls_alert(size: int) -> bool:
    """Whether the four bytes of a frame's length are the beginning of an alert of TLS (RFC 8446, 5.1).

    A frame of such a length has 336 MiB: ask only where it is more than can be.
    """
    return size >> 24 == _ALERT and size >> 16 & 0xFF == _MAJOR_VERSION
