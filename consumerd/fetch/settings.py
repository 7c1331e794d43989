"""Settings and policies of fetching."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum

from consumerd.wire.v07 import DecodeLimits

KIB = 1024
MIB = 1024 * KIB


#: Seconds a broker may be asked to hold an answer back. Shorter waits are a loop of requests; in longer ones partitions
#: that have just become idle wait for the answer about others.
SHORTEST_WAIT = 0.01
LONGEST_WAIT = 60.0


class BadMessagePolicy(StrEnum):
    """What to do about an unreadable message: larger than `max_fetch_bytes`, or corrupt."""

    #: Report the partition as failed; the listener decides, usually by stopping the daemon.
    FAIL = "fail"
    #: Go on behind the message where its end is known, and report it; park where it is not.
    SKIP = "skip"
    #: Stop fetching this partition, report it, keep owning it: everything else goes on.
    PARK = "park"


class ResetPolicy(StrEnum):
    """Where to go on when the broker has no such offset any more (0.7.2: autooffset.reset smallest, largest)."""

    EARLIEST = "earliest"
    LATEST = "latest"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """Sizes in bytes, times in seconds. Defaults as in Kafka 0.7.2 where it has the setting (golden notes, 8)."""

    #: Asked for per fetch of a busy partition (fetch.size 1048576).
    fetch_bytes: int = MIB
    #: A fetch grows up to this for a message that is larger than `fetch_bytes`. 0.7.2 has no such thing: it dies.
    max_fetch_bytes: int = 64 * MIB
    #: Asked for per idle partition in the common poll; a larger message is then fetched by itself.
    poll_bytes: int = 64 * KIB
    #: Between polls of an idle partition: doubles from the first to the second (fetcher.backoff.ms 1000).
    poll_backoff_min: float = 0.01
    poll_backoff_max: float = 1.0
    #: Between attempts after a broken connection or a broker's error: doubles, with jitter.
    retry_backoff_min: float = 0.05
    retry_backoff_max: float = 2.0
    #: Brokers of 0.8 and later hold the answer about idle partitions back for so long, or until they have `min_bytes`
    #: of new messages of them (fetch.max.wait.ms 500, fetch.min.bytes 1).
    max_wait: float = 0.5
    min_bytes: int = 1
    #: Bytes of one answer of theirs to many partitions (fetch.max.bytes 52428800).
    max_answer_bytes: int = 50 * MIB
    #: Leave out what transactions wrote that were aborted or are still open.
    read_committed: bool = False
    on_oversize: BadMessagePolicy = BadMessagePolicy.FAIL
    on_corrupt: BadMessagePolicy = BadMessagePolicy.FAIL
    on_out_of_range: ResetPolicy = ResetPolicy.EARLIEST
    #: What decoding may cost: see `wire.v07.DecodeLimits`. No message that a fetch may grow for is too large, nor
    #: is a compressed one that grows as far.
    limits: DecodeLimits = field(default_factory=DecodeLimits)

    def __post_init__(self) -> None:
        if not 0 < self.poll_bytes <= self.fetch_bytes <= self.max_fetch_bytes < 2**31:
            raise ValueError("fetch sizes must satisfy 0 < poll_bytes <= fetch_bytes <= max_fetch_bytes < 2 GiB")
        if not 0 < self.poll_backoff_min <= self.poll_backoff_max:
            raise ValueError("poll back-offs must satisfy 0 < poll_backoff_min <= poll_backoff_max")
        if not 0 < self.retry_backoff_min <= self.retry_backoff_max:
            raise ValueError("retry back-offs must satisfy 0 < retry_backoff_min <= retry_backoff_max")
        if not SHORTEST_WAIT <= self.max_wait <= LONGEST_WAIT:
            raise ValueError(f"max_wait must be from {SHORTEST_WAIT:g} to {LONGEST_WAIT:g} s")
        if not 0 < self.min_bytes <= min(self.fetch_bytes, self.max_answer_bytes):
            raise ValueError("min_bytes must be at least 1 and at most fetch_bytes, and at most max_answer_bytes")
        most = self.max_fetch_bytes
        wide = replace(
            self.limits,
            max_message_bytes=max(self.limits.max_message_bytes, most),
            max_decompressed_bytes=max(self.limits.max_decompressed_bytes, most),
        )
        object.__setattr__(self, "limits", wide)
