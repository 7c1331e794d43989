"""What is handed to a producer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

NOT_A_LIST = "payloads is a list of messages: put a single one into brackets"


@dataclass(frozen=True, slots=True)
class ProducerData:
    """Messages that go to one partition of a topic: the one given, or the key's, or one at random.

    `payloads` are what the producer's `Encoder` takes; by default bytes and text.
    """

    topic: str
    payloads: Sequence[Any]
    key: Hashable = None
    partition: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.payloads, (str, bytes, bytearray, memoryview)):
            raise TypeError(NOT_A_LIST)
