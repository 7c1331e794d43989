"""Settings of the producer for brokers of 0.8 and later."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from consumerd.wire.v08.records import RecordCodec

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True)
class V08ProducerSettings:
    """Times in seconds, sizes in bytes."""

    #: The replicas that must have a batch before it counts as sent: 0 none (its fate is unknown then), 1 the leader,
    #: -1 all replicas in sync.
    acks: Literal[-1, 0, 1] = -1
    codec: RecordCodec = RecordCodec.NONE
    #: A batch of a partition goes out when it has this many bytes ...
    batch_bytes: int = 128 * KIB
    #: ... or when its first message has waited for so long, and nothing is in flight to its broker since the last
    #: answer. While something is, the batch takes more messages anyway.
    linger: float = 0.0
    #: Bytes of messages that may wait or be in flight; a caller that sends more waits.
    buffer_bytes: int = 32 * MIB
    #: For the replicas to take a batch, before the broker answers with an error that is retried.
    request_timeout: float = 30.0
    #: From the first attempt on, after which a batch counts as failed.
    delivery_timeout: float = 120.0
    #: Requests under way at once to one broker; a partition is in one of them at most, which keeps its order.
    in_flight: int = 5
    #: The routing of messages without a key: `sticky` fills one partition's batch before it takes another at random.
    keyless: Literal["sticky", "round_robin"] = "sticky"
    #: Have brokers recognise a batch that is sent again (0.11 and later, acks -1). None: where it is possible.
    idempotent: bool | None = None
    #: Whether topics that do not exist may be created by the brokers, if they are configured so.
    create_topics: bool = True

    def __post_init__(self) -> None:
        if self.acks not in {-1, 0, 1}:
            raise ValueError(f"acks must be -1, 0 or 1, not {self.acks}")
        if self.idempotent and self.acks != -1:
            raise ValueError("an idempotent producer requires acks = -1")
        if self.batch_bytes <= 0 or self.buffer_bytes < self.batch_bytes:
            raise ValueError("batch sizes must satisfy 0 < batch_bytes <= buffer_bytes")
        if self.in_flight < 1:
            raise ValueError("in_flight must be at least 1")
