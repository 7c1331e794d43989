"""Settings of producers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from consumerd.base.errors import ConfigError
from consumerd.base.settings.kind import Ge, Le, Unit, check_fields
from consumerd.base.settings.properties import Natural, Positive, prop
from consumerd.base.settings.setting import Bytes, SecondsOrZero
from consumerd.wire.compression import Codec


def _codec(name: str, text: str) -> Codec:
    try:
        return Codec(int(text))
    except ValueError:
        raise ConfigError(f"{name} must be 0 (none), 1 (gzip) or 2 (snappy), not {text!r}") from None


def _topics(_: str, text: str) -> frozenset[str]:
    return frozenset(filter(None, (piece.strip() for piece in text.split(","))))


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """Sizes in bytes, times in seconds. Defaults as in Kafka 0.7.2 where it has the setting (golden notes, 8)."""

    #: Compress each batch into one message.
    codec: Codec = prop("compression.codec", Codec.NONE, read=_codec)
    #: Topics that `codec` is for; empty: all of them.
    compressed_topics: frozenset[str] = prop("compressed.topics", frozenset(), read=_topics)
    #: Message format: 0 is that of Kafka 0.6, 1 that of 0.7.
    magic: Annotated[int, Ge(0), Le(1)] = 1
    #: Largest payload of a message (it must not be above the brokers').
    max_message_bytes: Natural = prop("max.message.size", 1_000_000)
    #: Largest request (the brokers' max.socket.request.bytes).
    max_request_bytes: Bytes = 100 * 1024 * 1024
    #: Wait until the broker has received each batch (see `Producer`). 0.7.2 never does.
    confirm: bool = True
    #: Read sent messages back, and raise NotArrivedError for missing ones (see `consumerd.producer.v07.verify`).
    verify: bool = False
    #: Time to wait for it. Brokers return flushed messages only; they flush every 3 s by default.
    verify_timeout: SecondsOrZero = 15.0
    #: The number of retries for one batch when a broker cannot be reached, or is not known yet.
    retries: Natural = prop("num.retries", 5)
    #: The number of times that a batch whose fate is unknown is sent again. 0: raise UncertainError at once.
    resends: Natural = prop("num.retries", 2)
    #: The first pause before another try is drawn from 0 to this; the bound doubles each time.
    initial_backoff: SecondsOrZero = 0.1
    max_backoff: SecondsOrZero = 2.0

    def __post_init__(self) -> None:
        check_fields(self)

    def codec_for(self, topic: str) -> Codec:
        """Return the codec of messages for `topic`."""
        return self.codec if not self.compressed_topics or topic in self.compressed_topics else Codec.NONE


class WhenFull(Enum):
    """The policy of an asynchronous producer for a message for which its queue has no room."""

    #: Wait for room, as long as it takes (0.7.2: queue.enqueueTimeout.ms = -1).
    BLOCK = "block"
    #: Wait for `enqueue_timeout` seconds, then raise QueueFullError (0.7.2, by default with 0 ms).
    TIMEOUT = "timeout"
    #: Throw the message away and count it.
    DROP = "drop"


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """The queue of an asynchronous producer. Defaults as in 0.7.2, but that a full queue makes the sender wait."""

    #: Messages that make a batch, which then goes out at once.
    batch_size: Positive = prop("batch.size", 200)
    #: Seconds that a message waits for others to make up a batch.
    queue_time: SecondsOrZero = prop("queue.time", 5.0)
    #: Messages that wait at most.
    queue_size: Positive = prop("queue.size", 10_000)
    when_full: WhenFull = WhenFull.BLOCK
    #: Seconds, for WhenFull.TIMEOUT.
    enqueue_timeout: Annotated[float, Unit("seconds"), Ge(-0.001)] = prop("queue.enqueueTimeout.ms", 0.0)

    def __post_init__(self) -> None:
        check_fields(self)
