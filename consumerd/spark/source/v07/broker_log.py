"""A stretch of a live broker's log as a place that splits are read from.

Strategy: offsets of 0.7 are byte positions and a broker serves bytes from any of them (golden notes, 1), so a fetch is
a read at a position, and how the fetches cut messages makes no difference. Offsets that retention took away look like
an end; where the log goes on is asked for when it matters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Self

from consumerd.spark.source.errors import OffsetGoneError
from consumerd.spark.source.v07.client import BrokerClient
from consumerd.wire.v07 import EARLIEST

if TYPE_CHECKING:
    from types import TracebackType

    from consumerd.spark.source.v07.split import BrokerRange


#: Bytes asked of a broker at once: what Kafka 0.7's own consumers ask for (golden notes, 6).
DEFAULT_FETCH_SIZE: Final = 1 << 20
#: Fetches are never larger, whatever is asked for: what one of them brings is in memory several times.
_LARGEST_FETCH: Final = 8 << 20


class BrokerLog:
    """One partition's log, over one connection, which is made at once. Raises BrokerReadError."""

    def __init__(self, place: BrokerRange, topic: str, partition: int, *, fetch_size: int, timeout: float) -> None:
        self._client = BrokerClient(place.host, place.port, timeout)
        self._topic = topic
        self._partition = partition
        self.window = min(fetch_size, _LARGEST_FETCH)

    def fetch(self, offset: int, size: int) -> bytes:
        try:
            return self._client.fetch(self._topic, self._partition, offset, min(size, self.window))
        except OffsetGoneError:
            return b""

    def goes_on_at(self, offset: int) -> int | None:
        found = self._client.offsets(self._topic, self._partition, EARLIEST, 1)
        return found[0] if found and found[0] > offset else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()
