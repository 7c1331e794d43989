"""Settings of the producer for brokers of 0.8 and later."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from consumerd.base.settings.kind import Gt, Unit, check_fields
from consumerd.base.settings.setting import Bytes, Count, Seconds, SecondsOrZero
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
    batch_bytes: Bytes = 128 * KIB
    #: ... or when its first message has waited for so long, and nothing is in flight to its broker since the last
    #: answer. While something is, the batch takes more messages anyway.
    linger: SecondsOrZero = 0.0
    #: Bytes of messages that may wait or be in flight; a caller that sends more waits.
    buffer_bytes: Bytes = 32 * MIB
    #: For the replicas to take a batch, before the broker answers with an error that is retried.
    request_timeout: Seconds = 30.0
    #: From the first attempt on, after which a batch counts as failed.
    delivery_timeout: Annotated[float, Unit("seconds"), Gt(0)] = 120.0
    #: Requests under way at once to one broker; a partition is in one of them at most, which keeps its order.
    in_flight: Count = 5
    #: The routing of messages without a key: `sticky` fills one partition's batch before it takes another at random.
    keyless: Literal["sticky", "round_robin"] = "sticky"
    #: Have brokers recognise a batch that is sent again (0.11 and later, acks -1). None: where it is possible.
    idempotent: bool | None = None
    #: Whether topics that do not exist may be created by the brokers, if they are configured so.
    create_topics: bool = True
    #: A name that no other producer has at the same time, under which brokers know this one over restarts: messages are
    #: sent in transactions then (0.11 and later). None: without.
    transactional_id: str | None = None
    #: After which the brokers abort a transaction that was not ended; transaction.max.timeout.ms limits it.
    transaction_timeout: Seconds = 60.0

    def __post_init__(self) -> None:
        check_fields(self)
        if self.idempotent and self.acks != -1:
            raise ValueError("an idempotent producer requires acks = -1")
        if self.transactional_id is not None and (self.acks != -1 or self.idempotent is False):
            raise ValueError("a transactional_id requires acks = -1 and an idempotent producer")
        if self.transactional_id == "":
            raise ValueError("transactional_id must not be empty")
        if self.buffer_bytes < self.batch_bytes:
            raise ValueError("batch sizes must satisfy batch_bytes <= buffer_bytes")
