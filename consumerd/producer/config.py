"""A producer's whole configuration in one value, and a producer made from it; also by the property names of 0.7.

Strategy: as for the broker, one table says for every producer property of 0.7.2 (golden notes, 8) which setting it
fills and how its text is read, or that it has no meaning here. An unknown name is refused with the nearest one; a known
one without effect is reported by `ignored`. Properties that a file leaves out have *our* defaults, which are the safer
ones where they differ (docs/producer.md has the table).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from consumerd.base.address import parse_address, parse_addresses
from consumerd.base.errors import ConfigError, did_you_mean
from consumerd.base.settings.servers import KafkaSection, ZooKeeperSection
from consumerd.net import ConnectionSettings
from consumerd.producer.v07.settings import ProducerSettings, QueueSettings, WhenFull
from consumerd.producer.v08.settings import V08ProducerSettings
from consumerd.wire.compression import Codec
from consumerd.wire.v08.records import RecordCodec

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping, Sequence

    from consumerd.base.ports import SaslMechanism
    from consumerd.producer.encoders import Encoder
    from consumerd.producer.partitioners import Partitioner
    from consumerd.producer.v07.events import CallbackHandler, EventHandler


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig:
    """The configuration of a producer. Exactly one of `brokers` (0.7), `zookeeper` and `bootstrap` (0.8+) is given.

    The parts that can be replaced are objects, or names: module:attribute, and for a partitioner an entry point of the
    group `consumerd.partitioners` too. Times are in seconds.
    """

    #: (host, port) of each.
    brokers: tuple[tuple[str, int], ...] = ()
    #: `host:port[,host:port...][/chroot]`
    zookeeper: str | None = None
    #: Send in the background (producer.type=async).
    background: bool = False
    settings: ProducerSettings = field(default_factory=ProducerSettings)
    #: Of a producer in the background.
    queue: QueueSettings = field(default_factory=QueueSettings)
    connection: ConnectionSettings = field(default_factory=ConnectionSettings)
    partitioner: Partitioner | Callable[[Any, int], int] | str | None = None
    encoder: Encoder | str | None = None
    callbacks: CallbackHandler | str | None = None
    event_handler: EventHandler | str | None = None
    session_timeout: float = ZooKeeperSection.session_timeout
    #: To wait for ZooKeeper at the start.
    session_wait: float = 10.0
    #: Brokers of 0.8 and later to begin with, ("host:port", ...).
    bootstrap: Sequence[str] = ()
    #: Of the brokers in `zookeeper`; auto: as those that are registered speak, 0.7 where none is.
    dialect: Literal["auto", "0.7", "0.8"] = "auto"
    #: Of a producer for brokers of 0.8 and later. None: what `settings` says of codec and confirmation, else defaults.
    v08: V08ProducerSettings | None = None
    #: The client's identity at these: a name for their logs and quotas, TLS, and what begins to prove it, such as
    #: `lambda: consumerd.Scram("SCRAM-SHA-512", user, password)`.
    client_id: str = KafkaSection.client_id
    broker_tls: ssl.SSLContext | None = None
    sasl: Callable[[], SaslMechanism] | None = field(default=None, repr=False)
    #: Properties that were given, are known in 0.7.2 and have no effect here.
    ignored: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if [bool(self.brokers), bool(self.zookeeper), bool(self.bootstrap)].count(True) != 1:
            raise ConfigError(
                "a producer needs exactly one of brokers (broker.list), zookeeper (zk.connect) and bootstrap "
                "(brokers of Kafka 0.8 or later)."
            )
        if self.dialect not in ("auto", "0.7", "0.8"):
            raise ConfigError(f"dialect must be one of auto, 0.7, 0.8, not {self.dialect!r}.")
        if self.bootstrap:
            parse_addresses(self.bootstrap, "bootstrap")
            self.require_v08()
        if self.brokers and self.partitioner is not None:
            raise ConfigError("a partitioner requires zookeeper: with a list of brokers the partitions are not known.")
        if not self.background and (self.callbacks is not None or self.event_handler is not None):
            raise ConfigError(
                "callbacks and event handlers require an asynchronous producer (background, producer.type=async)."
            )

    def require_v08(self) -> None:
        """Raise ConfigError for settings that a producer for Kafka 0.8 and later does not have."""
        given = {
            "callbacks": self.callbacks is not None,
            "event_handler": self.event_handler is not None,
            "settings.verify": self.settings.verify,
            "settings.compressed_topics": bool(self.settings.compressed_topics),
        }
        for name, said in given.items():
            if said:
                raise ConfigError(
                    f"{name} is supported by brokers of Kafka 0.7 only, and these run 0.8 or later: remove it."
                )

    def v08_settings(self) -> V08ProducerSettings:
        """Return the settings of a producer for brokers of 0.8 and later, with the default resolved."""
        if self.v08 is not None:
            return self.v08
        codec = RecordCodec[self.settings.codec.name]
        return V08ProducerSettings(codec=codec, acks=-1 if self.settings.confirm else 0)

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> ProducerConfig:
        """Read `key=value` texts by their 0.7 names. Raises ConfigError for unknown names and unfit values."""
        values: dict[str, dict[str, Any]] = {"": {}, "settings": {}, "queue": {}, "connection": {}}
        ignored = []
        for name, text in properties.items():
            if name in _WITHOUT_EFFECT:
                ignored.append(name)
            elif name in _PROPERTIES:
                read, *targets = _PROPERTIES[name]
                value = read(name, text.strip())
                for target in targets:
                    part, _, setting = target.rpartition(".")
                    values[part][setting] = value
            else:
                hint = did_you_mean(name, [*_PROPERTIES, *_WITHOUT_EFFECT], "")
                raise ConfigError(f"{name} is not a producer property of Kafka 0.7{hint}")
        queue = values["queue"]
        if (wait := queue.get("enqueue_timeout")) is not None:
            queue["when_full"] = WhenFull.BLOCK if wait < 0 else WhenFull.TIMEOUT
            queue["enqueue_timeout"] = max(0.0, wait)
        return cls(
            settings=ProducerSettings(**values["settings"]),
            queue=QueueSettings(**queue),
            connection=ConnectionSettings(**values["connection"]),
            ignored=tuple(ignored),
            **values[""],
        )


def _brokers(name: str, text: str) -> tuple[tuple[str, int], ...]:
    """0.7's form is id:host:port,id:host:port; it uses the id in its logs only."""
    found = []
    for item in filter(None, (piece.strip() for piece in text.split(","))):
        first, colon, rest = item.partition(":")
        found.append(parse_address(rest if colon and first.isdigit() and ":" in rest else item, name))
    if not found:
        raise ConfigError(f"{name} is empty: give brokers as 0:host:port,1:host:port.")
    return tuple(found)


def _integer(low: int, scale: float | None = None) -> Callable[[str, str], float]:
    def read(name: str, text: str) -> float:
        try:
            value = int(text)
        except ValueError:
            raise ConfigError(f"{name} must be a whole number, not {text!r}") from None
        if value < low:
            raise ConfigError(f"{name} must be at least {low}, not {value}")
        return value if scale is None else value * scale

    return read


def _type(name: str, text: str) -> bool:
    if text not in ("sync", "async"):
        raise ConfigError(f"{name} must be sync or async, not {text!r}")
    return text == "async"


def _codec(name: str, text: str) -> Codec:
    try:
        return Codec(int(text))
    except ValueError:
        raise ConfigError(f"{name} must be 0 (none), 1 (gzip) or 2 (snappy), not {text!r}") from None


def _topics(_: str, text: str) -> frozenset[str]:
    return frozenset(filter(None, (piece.strip() for piece in text.split(","))))


def _text(name: str, text: str) -> str:
    if not text:
        raise ConfigError(f"{name} is empty")
    return text


#: Classes of 0.7.2 whose work is the default here.
_DEFAULTS = {
    "kafka.producer.DefaultPartitioner",
    "kafka.serializer.DefaultEncoder",
    "kafka.serializer.StringEncoder",
    "kafka.producer.async.DefaultEventHandler",
}


def _part(name: str, text: str) -> str | None:
    if text in _DEFAULTS or not text:
        return None
    if text.count(".") and ":" not in text:
        raise ConfigError(f"{name} = {text} looks like a Java class: name a Python one as module:attribute.")
    return text


_MS = 0.001

#: property of 0.7.2 -> (reader of its text, the settings that it fills)
_PROPERTIES: dict[str, tuple[Any, ...]] = {
    "broker.list": (_brokers, "brokers"),
    "zk.connect": (_text, "zookeeper"),
    "producer.type": (_type, "background"),
    "partitioner.class": (_part, "partitioner"),
    "serializer.class": (_part, "encoder"),
    "compression.codec": (_codec, "settings.codec"),
    "compressed.topics": (_topics, "settings.compressed_topics"),
    "max.message.size": (_integer(0), "settings.max_message_bytes"),
    "num.retries": (_integer(0), "settings.retries", "settings.resends"),
    "buffer.size": (_integer(1), "connection.write_buffer"),
    "connect.timeout.ms": (_integer(1, _MS), "connection.connect_timeout"),
    "socket.timeout.ms": (_integer(1, _MS), "connection.request_timeout"),
    "queue.time": (_integer(0, _MS), "queue.queue_time"),
    "queue.size": (_integer(1), "queue.queue_size"),
    "queue.enqueueTimeout.ms": (_integer(-1, _MS), "queue.enqueue_timeout"),
    "batch.size": (_integer(1), "queue.batch_size"),
    "callback.handler": (_part, "callbacks"),
    "event.handler": (_part, "event_handler"),
    "zk.sessiontimeout.ms": (_integer(1, _MS), "session_timeout"),
    "zk.connectiontimeout.ms": (_integer(1, _MS), "session_wait"),
}

#: Properties of 0.7.2 that have no counterpart: connections are kept until they end, routes are watched, and parts
#: take no properties.
_WITHOUT_EFFECT = frozenset(
    {
        "reconnect.interval",
        "reconnect.time.interval.ms",
        "zk.read.num.retries",
        "zk.synctime.ms",
        "callback.handler.props",
        "event.handler.props",
    }
)
