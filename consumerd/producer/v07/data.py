"""Messages as they are given to a producer."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from consumerd.producer.errors import EncodingError
from consumerd.wire.v08.records import Headers

NOT_A_LIST = "payloads is a list of messages: put a single one into brackets"


@dataclass(frozen=True, slots=True)
class ProducerData:
    """Messages that go to one partition of a topic: the one given, or the key's, or one at random.

    `payloads` have the type that the producer's `Encoder` takes; by default bytes and text.
    """

    topic: str
    payloads: Sequence[Any]
    key: Hashable = None
    partition: int | None = None
    #: Since 0.11, and 0.10; brokers of 0.7 have no place for them. The timestamp is in milliseconds.
    headers: Headers = ()
    timestamp: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.payloads, (str, bytes, bytearray, memoryview)):
            raise TypeError(NOT_A_LIST)


def require_plain(data: ProducerData) -> None:
    """Raise EncodingError for headers and timestamps, which brokers of 0.7 cannot store."""
    if data.headers or data.timestamp is not None:
        raise EncodingError("brokers of Kafka 0.7 do not support headers or timestamps: remove them.")
