"""What `consumerd produce` was told, as the senders for either kind of cluster take it."""

from __future__ import annotations

from dataclasses import dataclass

STDIN = 0
#: No line can be longer than the largest request a broker takes by default.
MAX_LINE_BYTES = 100 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says; None where it says nothing."""

    brokers: tuple[str, ...]
    topic: str
    partition: int | None
    codec: str
    key_separator: str | None
    max_message_bytes: int | None
    magic: int | None
    batch_size: int | None
    queued: bool
    queue_time: float | None
    queue_size: int | None
    verify: bool
    verify_timeout: float | None
    acks: str | None
    batch_bytes: int | None
    linger: float | None
    delivery_timeout: float | None
    round_robin: bool
    headers: tuple[tuple[str, bytes], ...]

    @property
    def separator(self) -> bytes | None:
        """The key's separator as it stands in lines."""
        return None if self.key_separator is None else self.key_separator.replace("\\t", "\t").encode()
