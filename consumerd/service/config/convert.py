"""Conversion of property files of Kafka 0.7, and of members of 0.8 to 1.1 (the old consumer), to the configuration.

Strategy: a setting is declared with the keys that it has in members of 0.7.2 (golden notes, 8) and in the old consumer
(Kafka's documentation, "Old Consumer Configs"); two tables say of their other keys why they have no counterpart. A key
that is in none is reported as unknown. The keys of a file decide which of the two tables it is read by. Only a member's
file becomes TOML (`convert_toml`): brokers and producers here take the very properties of 0.7, so theirs are read as
they would read them, one by one, and what they refuse or ignore is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from consumerd.base.errors import ConfigError, did_you_mean
from consumerd.base.settings.group import RebalanceSection
from consumerd.base.settings.properties import properties_of
from consumerd.net.zk.connect_string import parse_connect_string
from consumerd.producer import config as producer
from consumerd.service.config.model import Config
from consumerd.storage.broker import config as broker


class Becomes(NamedTuple):
    """A key with a counterpart: `[table] key`, and the reader of its text (raises ValueError with the valid form)."""

    table: str
    key: str
    read: Callable[[str], Any]


class Gone(NamedTuple):
    """A key without one, and why."""

    why: str
    #: The value whose effect is that of consumerd anyway.
    same: str | None = None


class Remark(NamedTuple):
    """A key without a counterpart, and the reason."""

    key: str
    value: str
    says: str


@dataclass(slots=True)
class Conversion:
    """The result of a file. `values` are by table and key, each with the property that it comes from."""

    values: dict[tuple[str, str], tuple[Any, str]] = field(default_factory=dict)
    #: Lines for readers of the result: how a producer or broker is configured.
    lines: list[str] = field(default_factory=list)
    remarks: list[Remark] = field(default_factory=list)


def _declared(generation: str) -> dict[str, Becomes | Gone]:
    """The keys of this generation that settings are declared to have."""
    return {
        name: Becomes(table, key, partial(section.kinds()[key].read, milliseconds=name.endswith(".ms")))
        for table, section in Config.tables().items()
        for key, setting in section.fields.items()
        if (name := getattr(setting.names, generation)) is not None
    }


_CONSUMER: dict[str, Becomes | Gone] = {
    **_declared("v07"),
    "zk.synctime.ms": Gone("0.7 waits so long between tries of a rebalance; see rebalance.retry_interval"),
    "socket.buffersize": Gone("the operating system sizes socket buffers by itself"),
    "autocommit.enable": Gone(
        "what a handler has finished is always committed; a handler with `position` decides where to go on", "true"
    ),
    "queuedchunks.max": Gone("what waits in memory is bounded in bytes: fetch.budget and fetch.partition_budget"),
    "rebalance.retries.max": Gone("a claim is tried again for as long as the session lives"),
    "rebalance.backoff.ms": Gone(
        f"a blocked claim is tried again every rebalance.retry_interval, {RebalanceSection.retry_interval:g} s"
    ),
    "consumer.timeout.ms": Gone(
        "the daemon waits for messages without end; `consumerd consume --exit-at-end` stops", "-1"
    ),
    "shallowiterator.enable": Gone("compressed messages are always opened before a handler sees them", "false"),
    "mirror.topics.whitelist": Gone("0.7.2 does not read it any more; see group.whitelist"),
    "mirror.topics.blacklist": Gone("0.7.2 does not read it any more; see group.blacklist"),
    "mirror.consumer.numthreads": Gone("0.7.2 does not read it any more; see group.streams"),
}
_AUTOOFFSET = "autooffset.reset"


_CHANNEL = (
    "requests to the coordinator of the group have the back-off of all requests, and are tried until they succeed"
)
_CONSUMER_V08: dict[str, Becomes | Gone] = {
    **_declared("v08"),
    "zookeeper.sync.time.ms": Gone("nothing waits for ZooKeeper's followers here; see rebalance.retry_interval"),
    "socket.receive.buffer.bytes": _CONSUMER["socket.buffersize"],
    "num.consumer.fetchers": Gone("all partitions of a broker are fetched over one connection", "1"),
    "queued.max.message.chunks": _CONSUMER["queuedchunks.max"],
    "refresh.leader.backoff.ms": Gone("the leader of a partition is looked for again with a back-off of its own"),
    "auto.commit.enable": _CONSUMER["autocommit.enable"],
    "offsets.channel.backoff.ms": Gone(_CHANNEL),
    "offsets.channel.socket.timeout.ms": Gone(f"{_CHANNEL}; see fetch.socket_timeout"),
    "offsets.commit.max.retries": Gone(_CHANNEL),
    "rebalance.max.retries": _CONSUMER["rebalance.retries.max"],
    "rebalance.backoff.ms": _CONSUMER["rebalance.backoff.ms"],
    "consumer.timeout.ms": _CONSUMER["consumer.timeout.ms"],
    "exclude.internal.topics": Gone("filters never match internal topics: name one in group.topics", "true"),
}
_AUTOOFFSET_V08, _STORAGE, _DUAL = "auto.offset.reset", "offsets.storage", "dual.commit.enabled"
#: Read together with others, or by rules of their own.
_OTHERS_V08 = (_AUTOOFFSET_V08, _STORAGE, _DUAL)

#: The keys of each kind of file.
_KEYS = {
    "consumer": {*_CONSUMER, _AUTOOFFSET, *_CONSUMER_V08, *_OTHERS_V08},
    "producer": {*producer.WITHOUT_EFFECT, *(key for part in producer.PARTS.values() for key in properties_of(part))},
    "server": {*broker.WITHOUT_EFFECT, *properties_of(broker.BrokerConfig)},
}
#: Keys that only one kind of file has; other files of today's clients have an id, too.
_MARKS = {
    kind: keys.difference({"client.id"}, *(others for each, others in _KEYS.items() if each != kind))
    for kind, keys in _KEYS.items()
}


def kind_of(properties: Mapping[str, str], source: str) -> str:
    """`consumer`, `producer` or `server`. Raises ConfigError if the keys do not tell and the file's name neither."""
    counts = {kind: len(marks & properties.keys()) for kind, marks in _MARKS.items()}
    best = max(counts, key=lambda kind: counts[kind])
    if counts[best]:
        return best
    named = next((kind for kind in _MARKS if kind in source.lower()), None)
    if named is None:
        raise ConfigError(
            f"cannot tell by the keys of {source} if it is of a consumer, producer or server: give --kind"
        )
    return named


def convert(properties: Mapping[str, str], kind: str, source: str) -> Conversion:
    """Convert a file of this kind. Raises ConfigError for an invalid value."""
    if kind == "consumer":
        return _consumer(properties, source)
    return _producer(properties) if kind == "producer" else _server(properties)


def _consumer(properties: Mapping[str, str], source: str) -> Conversion:
    old, new = {*_CONSUMER, _AUTOOFFSET}, {*_CONSUMER_V08, *_OTHERS_V08}
    is_v08 = len((new - old) & properties.keys()) > len((old - new) & properties.keys())
    table, others = (_CONSUMER_V08, _OTHERS_V08) if is_v08 else (_CONSUMER, (_AUTOOFFSET,))
    who = "old consumers of 0.8 to 1.1 do" if is_v08 else "0.7.2 does"
    result = Conversion()
    for key, text in properties.items():
        text = text.strip()
        rule = table.get(key)
        if key in others:
            if key == _AUTOOFFSET:
                _autooffset(result, text)
        elif rule is None:
            result.remarks.append(_unknown(key, text, [*table, *others], who))
        elif isinstance(rule, Gone):
            result.remarks.append(_gone(key, text, rule))
        else:
            try:
                value = rule.read(text)
                if rule.key == "connect":
                    parse_connect_string(text)
            except ValueError as error:
                raise ConfigError(f"{source}: {key} must be {error}, not {text!r}") from None
            except ConfigError as error:
                raise ConfigError(f"{source}: {key}: {error}") from None
            result.values[rule.table, rule.key] = value, f"{key}={text}"
    if is_v08:
        _autooffset_v08(result, properties.get(_AUTOOFFSET_V08), source)
        _storage(result, properties, source)
    return result


def _autooffset_v08(result: Conversion, text: str | None, source: str) -> None:
    """As `_autooffset`; without the key an old consumer starts at the end, and ours would start at the beginning."""
    value = "largest" if text is None else text.strip()
    place = {"smallest": "earliest", "largest": "latest"}.get(value)
    if place is None:
        raise ConfigError(f"{source}: {_AUTOOFFSET_V08} must be smallest or largest, not {value!r}")
    origin = f"{_AUTOOFFSET_V08}={value}{', the default since 0.8' if text is None else ''}"
    result.values["fetch", "initial"] = place, origin
    result.values["fetch", "out_of_range"] = place, origin


def _storage(result: Conversion, properties: Mapping[str, str], source: str) -> None:
    """Two keys for one setting: with offsets in Kafka, `dual.commit.enabled` stores them in ZooKeeper, too."""
    storage = properties.get(_STORAGE, "zookeeper").strip()
    dual = properties.get(_DUAL, "true").strip()
    for key, text, allowed in ((_STORAGE, storage, ("zookeeper", "kafka")), (_DUAL, dual, ("true", "false"))):
        if text not in allowed:
            raise ConfigError(f"{source}: {key} must be {' or '.join(allowed)}, not {text!r}")
    if storage == "kafka":
        origin = f"{_STORAGE}={storage}, {_DUAL}={dual}"
        result.values["group", "offsets"] = "both" if dual == "true" else "kafka", origin
    elif _STORAGE in properties:
        result.values["group", "offsets"] = storage, f"{_STORAGE}={storage}"
    if _DUAL in properties and storage != "kafka":
        result.remarks.append(Remark(_DUAL, dual, f"it has no effect without {_STORAGE}=kafka"))


def _autooffset(result: Conversion, text: str) -> None:
    """One key of 0.7 for two settings: where to start, and where to continue when the offset no longer exists."""
    origin = f"{_AUTOOFFSET}={text}"
    place = {"smallest": "earliest", "largest": "latest"}.get(text)
    if place is None:
        says = "0.7 fails without an offset; fetch.initial has no such value, a new partition starts earliest"
        result.remarks.append(Remark(_AUTOOFFSET, text, says))
        result.values["fetch", "out_of_range"] = "fail", origin
    else:
        result.values["fetch", "initial"] = place, origin
        result.values["fetch", "out_of_range"] = place, origin


def _producer(properties: Mapping[str, str]) -> Conversion:
    def read(key: str, text: str) -> tuple[str, ...]:
        # The other keys that must be set for a single key to be read.
        needed = {"zk.connect": "localhost", "producer.type": "async"} if key != "broker.list" else {}
        return producer.ProducerConfig.from_properties({**needed, key: text}).ignored

    return _as_they_are(properties, read, producer.WITHOUT_EFFECT)


def _server(properties: Mapping[str, str]) -> Conversion:
    def read(key: str, text: str) -> tuple[str, ...]:
        needed = {"log.dir": "logs", "zk.connect": "localhost"}
        return broker.BrokerConfig.from_properties({**needed, key: text}).ignored

    return _as_they_are(properties, read, broker.WITHOUT_EFFECT)


def _as_they_are(
    properties: Mapping[str, str], read: Callable[[str, str], tuple[str, ...]], gone: Mapping[str, str]
) -> Conversion:
    """Properties that a broker or producer reads itself: `read` returns those without effect, or raises ConfigError."""
    result = Conversion()
    for key, text in properties.items():
        try:
            ignored = read(key, text)
        except ConfigError as error:
            result.remarks.append(Remark(key, text, str(error).rstrip(".")))
        else:
            if ignored:
                result.remarks.append(Remark(key, text, gone.get(key, "it has no effect here")))
            else:
                result.lines.append(f"{key}={text}")
    return result


def _gone(key: str, text: str, rule: Gone) -> Remark:
    return Remark(key, text, "the same here, without a key" if text == rule.same else rule.why)


def _unknown(key: str, text: str, known: Sequence[str], who: str) -> Remark:
    return Remark(key, text, f"{who} not have this key{did_you_mean(key, known, '')}")
