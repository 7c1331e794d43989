"""Settings of a producer."""

from __future__ import annotations

from dataclasses import dataclass

from consumerd.wire.compression import Codec


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """Sizes in bytes, times in seconds. Defaults as in Kafka 0.7.2 where it has the setting (golden notes, 8)."""

    #: Compress each batch into one message (compression.codec).
    codec: Codec = Codec.NONE
    #: Message format: 0 is that of Kafka 0.6, 1 that of 0.7.
    magic: int = 1
    #: Largest payload of a message (max.message.size; it must not be above the brokers').
    max_message_bytes: int = 1_000_000
    #: Largest request (the brokers' max.socket.request.bytes).
    max_request_bytes: int = 100 * 1024 * 1024
    #: Wait until the broker has taken each batch (see `Producer`). 0.7.2 never does.
    confirm: bool = True
    #: How often a broker that cannot be reached, or is not known yet, is tried again for one batch.
    retries: int = 5
    #: How often a batch whose fate is unknown is sent again. 0: raise UncertainError at once, nothing is sent twice.
    resends: int = 2
    #: The first pause before another try is drawn from 0 to this; the bound doubles each time.
    initial_backoff: float = 0.1
    max_backoff: float = 2.0
