"""What `consumerd produce` was told, as the senders for either kind of cluster take it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from consumerd.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

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


def parse_brokers(texts: Sequence[str], option: str = "--broker") -> list[tuple[str, int]]:
    """The addresses that `option` was given. Raises ConfigError."""
    from consumerd.producer.config import parse_address  # noqa: PLC0415

    try:
        return [parse_address(text) for text in texts]
    except ConfigError as error:
        raise ConfigError(f"{option} {error}") from None
