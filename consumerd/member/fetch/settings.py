"""The settings of fetching: the keys of the table, and what no file sets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from consumerd.base.settings.processing import MAX_ANSWER_BYTES, FetchSection
from consumerd.base.settings.setting import Tuned
from consumerd.wire.v07 import DEFAULT_LIMITS, DecodeLimits

KIB = 1024
MIB = 1024 * KIB


def _limits(settings: FetchSettings) -> DecodeLimits:
    most = settings.max_size
    return DecodeLimits(
        max_message_bytes=max(DEFAULT_LIMITS.max_message_bytes, most),
        max_decompressed_bytes=max(DEFAULT_LIMITS.max_decompressed_bytes, most),
    )


class FetchSettings(FetchSection):
    """How messages are fetched."""

    #: Size per idle partition in the common poll; a larger message is then fetched by itself.
    poll_bytes: int = Tuned(factory=lambda settings: min(64 * KIB, settings.size))
    #: Shortest time between polls of an idle partition; see `v07.pace`.
    poll_backoff_min: float = Tuned(factory=lambda settings: min(0.01, settings.idle_backoff))
    #: Time between attempts after a broken connection or a broker's error: doubles, with jitter.
    retry_backoff_min: float = Tuned(0.05)
    retry_backoff_max: float = Tuned(2.0)
    #: Bytes of a response of brokers of 0.8 and later about many partitions (fetch.max.bytes 52428800).
    max_answer_bytes: int = Tuned(MAX_ANSWER_BYTES)
    #: Limits of decoding, which allow each message for which a fetch may grow, also a compressed one of that size.
    limits: DecodeLimits = Tuned(factory=_limits)
    #: Whether messages of aborted and open transactions are left out.
    read_committed: bool = Tuned(factory=lambda settings: settings.isolation == "read_committed")

    def _become(self, values: dict[str, Any], given: frozenset[str]) -> None:
        # A fetch may always grow to its first size, and a partition never has more memory than all together.
        most, own = max(values["size"], values["max_size"]), min(values["partition_budget"], values["budget"])
        super()._become(values | {"max_size": most, "partition_budget": own}, given)

    def rules(self) -> Iterator[str]:
        """The rules about several values that are broken."""
        yield from super().rules()
        if not 0 < self.poll_bytes <= self.size:
            yield "poll_bytes must be a positive number up to size"
        if not 0 < self.poll_backoff_min <= self.idle_backoff:
            yield "poll_backoff_min must be a positive number up to idle_backoff"
        if not 0 < self.retry_backoff_min <= self.retry_backoff_max:
            yield "retry_backoff_min must be a positive number up to retry_backoff_max"
        if self.min_bytes > self.max_answer_bytes:
            yield "min_bytes must be at most max_answer_bytes"
