"""Settings of forwarding, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from consumerd.base.settings.kind import check_fields, kind_of, require
from consumerd.base.settings.setting import Bytes, Count, Seconds
from consumerd.handlers.forward.keys import KeyExtractor
from consumerd.wire.v08.records import RecordCodec

KIB = 1024


class ForwardPlacing(StrEnum):
    """The choice of the partition of the target for a message."""

    #: That of its source partition: order is kept.
    KEEP = "keep"
    #: That of its key, as the JVM's producers choose it: order is kept for each key. Without a key as KEEP.
    KEY = "key"
    #: That of its key, else any, the same for a whole chunk: large batches, no order.
    ANY = "any"
    #: That of its key, else one after the other: spreads best, in smaller batches, no order.
    ROUND_ROBIN = "round_robin"


class ForwardResume(StrEnum):
    """The position at which a partition is resumed."""

    #: The group's committed offset: messages after it are forwarded again.
    COMMITTED = "committed"
    #: The last message of the partition that the target has.
    TARGET = "target"


@dataclass(frozen=True, slots=True)
class ForwardSettings:
    """Sizes in bytes, times in seconds. Raises ValueError for what does not go together."""

    placing: ForwardPlacing = ForwardPlacing.KEEP
    #: Takes keys out of the payloads of messages that have none.
    key: KeyExtractor | None = None
    #: Whether a message without a key stops the daemon, rather than going without one.
    key_required: bool = False
    #: Write the old identity into headers.
    headers: bool = True
    #: Without `headers`, send those that messages have nevertheless (targets of 0.11 and later).
    keep_headers: bool = False
    #: A name of the source for the headers.
    cluster: str | None = None
    codec: RecordCodec = RecordCodec.NONE
    #: Keep the timestamps that messages have, rather than giving them the present one.
    keep_timestamps: bool = True
    #: The largest message, its key, headers and a few bytes more included: the target's message.max.bytes.
    max_message_bytes: Bytes = 1_000_000
    #: Bytes that are sent at once, for one source partition.
    chunk_bytes: Bytes = 512 * KIB
    #: Have the brokers recognise a chunk that is sent again. None: where they can.
    idempotent: bool | None = None
    resume: ForwardResume = ForwardResume.COMMITTED
    #: Send each batch in a transaction that has the position of its partition, too (targets of 2.5 and later).
    exactly_once: bool = False
    #: Partitions of topics that are created, one number for all, or by the target's names: others are not made then.
    #: None: none is.
    partitions: Count | Mapping[str, Count] | None = None
    #: Their replicas. None: the brokers' default counts, where they have one (2.4 and later).
    replication_factor: Count | None = None
    #: Seconds for the target to take a chunk before forwarding it counts as failed.
    delivery_timeout: Seconds = 120.0

    def __post_init__(self) -> None:
        check_fields(self)
        partitions = self.partitions if isinstance(self.partitions, Mapping) else {"": self.partitions}
        for topic, number in partitions.items():
            require(kind_of(Count | None), f"partitions.{topic}".rstrip("."), number)
        if self.exactly_once and self.resume is ForwardResume.TARGET:
            raise ValueError('exactly_once has positions of its own: remove resume = "target"')
        if self.exactly_once and self.idempotent is False:
            raise ValueError("exactly_once needs an idempotent producer: remove idempotent = false")
        if self.resume is ForwardResume.TARGET and not self.headers:
            raise ValueError('resume = "target" needs headers = true: they say what the target has')
        if self.resume is ForwardResume.TARGET and self.placing is not ForwardPlacing.KEEP:
            raise ValueError(
                'resume = "target" requires placing = "keep": with other placings the last message of a source '
                "partition "
                "does not prove that earlier ones arrived"
            )
