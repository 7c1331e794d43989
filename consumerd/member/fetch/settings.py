"""Settings and policies of fetching."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from consumerd.base.settings.processing import (
    MAX_ANSWER_BYTES,
    BadMessagePolicy,
    FetchSection,
    LogChangePolicy,
    OutOfRangePolicy,
)
from consumerd.wire.v07 import DecodeLimits

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """Sizes in bytes, times in seconds. Defaults as in Kafka 0.7.2 where it has the setting (golden notes, 8)."""

    #: Size of a fetch of a busy partition (fetch.size 1048576).
    size: int = FetchSection.size
    #: Size up to which a fetch grows for a message larger than `size`. 0.7.2 has no such limit: it fails.
    max_size: int = FetchSection.max_size
    #: Size per idle partition in the common poll; a larger message is then fetched by itself.
    poll_bytes: int = 64 * KIB
    #: Shortest and longest time between polls of an idle partition (fetcher.backoff.ms 1000); see `v07.pace`.
    poll_backoff_min: float = 0.01
    idle_backoff: float = FetchSection.idle_backoff
    #: Time between attempts after a broken connection or a broker's error: doubles, with jitter.
    retry_backoff_min: float = 0.05
    retry_backoff_max: float = 2.0
    #: Time for which brokers of 0.8 and later delay the response about idle partitions, unless they have `min_bytes`
    #: of new messages of them (fetch.max.wait.ms 500, fetch.min.bytes 1).
    max_wait: float = FetchSection.max_wait
    min_bytes: int = FetchSection.min_bytes
    #: Bytes of one of their responses about many partitions (fetch.max.bytes 52428800).
    max_answer_bytes: int = MAX_ANSWER_BYTES
    #: Whether messages of aborted and open transactions are left out.
    read_committed: bool = False
    oversize: BadMessagePolicy = FetchSection.oversize
    corrupt: BadMessagePolicy = FetchSection.corrupt
    out_of_range: OutOfRangePolicy = FetchSection.out_of_range
    log_changed: LogChangePolicy = FetchSection.log_changed
    #: Limits of decoding: see `wire.v07.DecodeLimits`. They allow each message for which a fetch may grow, also a
    #: compressed one of that size.
    limits: DecodeLimits = field(default_factory=DecodeLimits)

    def __post_init__(self) -> None:
        if not 0 < self.poll_bytes <= self.size <= self.max_size < 2**31:
            raise ValueError("fetch sizes must satisfy 0 < poll_bytes <= size <= max_size < 2 GiB")
        if not 0 < self.poll_backoff_min <= self.idle_backoff:
            raise ValueError("poll back-offs must satisfy 0 < poll_backoff_min <= idle_backoff")
        if not 0 < self.retry_backoff_min <= self.retry_backoff_max:
            raise ValueError("retry back-offs must satisfy 0 < retry_backoff_min <= retry_backoff_max")
        if problem := FetchSection.kinds()["max_wait"].problem("max_wait", self.max_wait):
            raise ValueError(problem)
        if not 0 < self.min_bytes <= min(self.size, self.max_answer_bytes):
            raise ValueError("min_bytes must be at least 1 and at most size, and at most max_answer_bytes")
        most = self.max_size
        wide = replace(
            self.limits,
            max_message_bytes=max(self.limits.max_message_bytes, most),
            max_decompressed_bytes=max(self.limits.max_decompressed_bytes, most),
        )
        object.__setattr__(self, "limits", wide)
