"""A producer's whole configuration in one value, and a producer made from it; also by the property names of 0.7.

Strategy: as for the broker, each field says which producer property of 0.7.2 (golden notes, 8) fills it. An unknown
name is refused with the nearest one; a known one without effect is reported by `ignored`. Properties that a file leaves
out have *our* defaults, which are the safer ones where they differ (docs/producer.md has the table).
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from consumerd.base.address import parse_address, parse_addresses
from consumerd.base.errors import ConfigError
from consumerd.base.ports import SaslMechanism
from consumerd.base.settings.kind import check_fields
from consumerd.base.settings.properties import prop, read_properties
from consumerd.base.settings.servers import KafkaSection, ZooKeeperSection
from consumerd.base.settings.setting import Seconds
from consumerd.net.connection import ConnectionSettings
from consumerd.producer.encoders import Encoder
from consumerd.producer.partitioners import Partitioner
from consumerd.producer.v07.events import CallbackHandler, EventHandler
from consumerd.producer.v07.settings import ProducerSettings, QueueSettings, WhenFull
from consumerd.producer.v08.settings import V08ProducerSettings
from consumerd.wire.v08.records import RecordCodec


def _brokers(name: str, text: str) -> tuple[tuple[str, int], ...]:
    """0.7's form is id:host:port,id:host:port; it uses the id in its logs only."""
    found = []
    for item in filter(None, (piece.strip() for piece in text.split(","))):
        first, colon, rest = item.partition(":")
        found.append(parse_address(rest if colon and first.isdigit() and ":" in rest else item, name))
    if not found:
        raise ConfigError(f"{name} is empty: give brokers as 0:host:port,1:host:port.")
    return tuple(found)


def _type(name: str, text: str) -> bool:
    if text not in ("sync", "async"):
        raise ConfigError(f"{name} must be sync or async, not {text!r}")
    return text == "async"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig:
    """The configuration of a producer. Exactly one of `brokers` (0.7), `zookeeper` and `bootstrap` (0.8+) is given.

    The parts that can be replaced are objects, or names: module:attribute, and for a partitioner an entry point of the
    group `consumerd.partitioners` too. Times are in seconds.
    """

    #: (host, port) of each.
    brokers: tuple[tuple[str, int], ...] = prop("broker.list", (), read=_brokers)
    #: `host:port[,host:port...][/chroot]`
    zookeeper: str | None = prop("zk.connect", None)
    #: Send in the background (producer.type=async).
    background: bool = prop("producer.type", False, read=_type)
    settings: ProducerSettings = field(default_factory=ProducerSettings)
    #: Of a producer in the background.
    queue: QueueSettings = field(default_factory=QueueSettings)
    connection: ConnectionSettings = field(default_factory=ConnectionSettings)
    partitioner: Partitioner | Callable[[Any, int], int] | str | None = prop("partitioner.class", None, read=_part)
    encoder: Encoder | str | None = prop("serializer.class", None, read=_part)
    callbacks: CallbackHandler | str | None = prop("callback.handler", None, read=_part)
    event_handler: EventHandler | str | None = prop("event.handler", None, read=_part)
    session_timeout: Seconds = prop("zk.sessiontimeout.ms", ZooKeeperSection.session_timeout)
    #: To wait for ZooKeeper at the start.
    session_wait: Seconds = prop("zk.connectiontimeout.ms", 10.0)
    #: Brokers of 0.8 and later to begin with, ("host:port", ...).
    bootstrap: Sequence[str] = ()
    #: Of the brokers in `zookeeper`; auto: that of the registered brokers, 0.7 where none is.
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
        try:
            check_fields(self)
        except ValueError as error:
            raise ConfigError(f"{error}.") from None
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
        values, ignored = read_properties(properties, PARTS, WITHOUT_EFFECT, "producer property of Kafka 0.7")
        queue = values["queue"]
        if (wait := queue.get("enqueue_timeout")) is not None:
            queue["when_full"] = WhenFull.BLOCK if wait < 0 else WhenFull.TIMEOUT
            queue["enqueue_timeout"] = max(0.0, wait)
        return cls(
            settings=ProducerSettings(**values["settings"]),
            queue=QueueSettings(**queue),
            connection=ConnectionSettings(**values["connection"]),
            ignored=ignored,
            **values[""],
        )


#: Properties of 0.7.2 that have no counterpart, and why.
WITHOUT_EFFECT: Final = {
    "reconnect.interval": "connections stay until one side ends them",
    "reconnect.time.interval.ms": "connections stay until one side ends them",
    "zk.read.num.retries": "the view of the brokers is kept fresh by watches",
    "zk.synctime.ms": "nothing waits for ZooKeeper's followers here",
    "callback.handler.props": "a callback is a Python object, which is made with its arguments",
    "event.handler.props": "an event handler is a Python object, which is made with its arguments",
}
#: The settings that properties fill, by the field that has them.
PARTS: Final = {
    "": ProducerConfig,
    "settings": ProducerSettings,
    "queue": QueueSettings,
    "connection": ConnectionSettings,
}
