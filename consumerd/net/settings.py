"""Settings of a broker connection."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """Times in seconds, sizes in bytes. Defaults as in Kafka 0.7.2 where it has the setting (golden notes, 8)."""

    #: To look the host up and connect (0.7.2's producer: connect.timeout.ms 5000).
    connect_timeout: float = 5.0
    #: For the oldest request to be answered completely (socket.timeout.ms 30000).
    request_timeout: float = 30.0
    #: For the peer to take what was written when we close.
    close_timeout: float = 1.0
    #: No answer may be larger, whatever its request says (0.7.2's broker accepts requests up to 100 MiB).
    max_frame_bytes: int = 128 * 1024 * 1024
    #: Written bytes that may wait in user space before writers wait (send: buffer.size 102400).
    write_buffer: int = 256 * 1024
    #: SO_RCVBUF; None leaves it to the kernel, whose automatic sizing beats 0.7.2's fixed 64 KiB on fast lines.
    receive_buffer: int | None = None
