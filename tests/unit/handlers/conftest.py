"""Fixtures of the handlers' tests: batches decoded from real message sets, and a clock that does not wait."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import pytest

from consumerd.base.partition import TopicPartition
from consumerd.handlers import Batch
from consumerd.testing import FakeClock
from consumerd.wire.v07 import Codec, decode_batch, encode_message_set


class MakeBatch(Protocol):
    """Plain payloads, and lists of payloads as compressed messages."""

    def __call__(
        self, *messages: bytes | Sequence[bytes], start: int = 0, topic: str = "t", broker: int = 0, partition: int = 0
    ) -> Batch: ...


@pytest.fixture
def make_batch() -> MakeBatch:
    def make(
        *messages: bytes | Sequence[bytes], start: int = 0, topic: str = "t", broker: int = 0, partition: int = 0
    ) -> Batch:
        data = b"".join(
            encode_message_set([m]) if isinstance(m, bytes) else encode_message_set(m, codec=Codec.GZIP)
            for m in messages
        )
        return Batch(TopicPartition(topic, broker, partition), decode_batch(data, start))

    return make


@pytest.fixture
def clock() -> FakeClock:
    """Sleeps return at once and are written down."""
    return FakeClock(wall=1_700_001_000.0, auto=True)
