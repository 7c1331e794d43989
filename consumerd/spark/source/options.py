"""The options of the data source: text by name -> values, or one sentence that names the invalid option.

Strategy: one table lists the names and how each text is read; rules that concern several options (exactly one of these,
this one only with that one) are checked afterwards, in one place per rule. Nothing is looked up: whether a topic or a
file exists is found out when a query is planned. Values are frozen and light, as executors get them too.

Settings of Kafka's own clients have their names after `kafka.`, as in Spark's connector; those for files and logins
have librdkafka's names, since Python cannot read Java key stores. Unsupported settings are refused by name, not
ignored.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from consumerd.base.errors import did_you_mean
from consumerd.base.settings.kind import Ge, Le, Lt
from consumerd.base.settings.processing import FetchSection
from consumerd.base.settings.properties import Natural, prop, properties_of
from consumerd.base.settings.setting import WireSeconds
from consumerd.spark.source.columns import ParseMode
from consumerd.spark.source.offsets import Offsets, Position
from consumerd.spark.source.option_texts import (
    OptionError,
    byte_count,
    offsets_with_broker,
    plain_path,
    read_address,
    read_assign,
    read_brokers,
    read_layout,
    read_path_list,
    read_paths,
    read_pattern,
    read_position,
    read_text,
    read_times,
    read_topics,
    read_zookeeper,
    reads,
    with_broker,
)
from consumerd.spark.source.option_values import (
    DEFAULT_SPLIT_BYTES,
    Assign,
    BootstrapLocation,
    BrokersLocation,
    FilesLocation,
    Location,
    Login,
    PathLocation,
    Subscribe,
    SubscribePattern,
    Tls,
    TokenSource,
    ZooKeeperLocation,
)
from consumerd.storage.log.archive_names import DEFAULT_LAYOUT
from consumerd.wire.v07 import DEFAULT_LIMITS, EARLIEST, LATEST, DecodeLimits

log = logging.getLogger(__name__)

__all__ = [
    "BATCH_ONLY",
    "CHOICES",
    "DEFAULT_SPLIT_BYTES",
    "LOCATIONS",
    "OPTIONS",
    "STREAM_ONLY",
    "Assign",
    "BootstrapLocation",
    "BrokersLocation",
    "FilesLocation",
    "OptionError",
    "PathLocation",
    "SourceOptions",
    "Subscribe",
    "SubscribePattern",
    "ZooKeeperLocation",
    "read_options",
    "refuse_options",
]


def read_servers(name: str, value: str) -> tuple[tuple[str, int], ...]:
    """Addresses, separated by commas."""
    servers: dict[tuple[str, int], None] = {}
    for piece in value.split(","):
        servers[read_address(name, piece)] = None
    return tuple(servers)


def read_pairs(name: str, value: str) -> tuple[tuple[str, str], ...]:
    """Names and values, as `name=value,name=value`."""
    pairs = [piece.partition("=") for piece in value.split(",")]
    if not all(key.strip() and text.strip() for key, _, text in pairs):
        raise OptionError(f"option {name} must be name=value,name=value, not {value!r}")
    return tuple((key.strip(), text.strip()) for key, _, text in pairs)


#: Name -> how its text is read.
KAFKA_READERS: Final[Mapping[str, Callable[[str, str], Any]]] = {
    "kafka.isolation.level": reads(Literal["read_uncommitted", "read_committed"]),
    "kafka.security.protocol": reads(Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]),
    "kafka.ssl.ca.location": read_text,
    "kafka.ssl.certificate.location": read_text,
    "kafka.ssl.key.location": read_text,
    "kafka.ssl.endpoint.identification.algorithm": reads(Literal["https", "none"]),
    "kafka.sasl.mechanism": reads(Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]),
    "kafka.sasl.username": read_text,
    "kafka.sasl.password": read_text,
    "kafka.sasl.password.file": read_text,
    "kafka.sasl.oauthbearer.token.endpoint.url": read_text,
    "kafka.sasl.oauthbearer.scope": read_text,
    "kafka.sasl.oauthbearer.ca.location": read_text,
    "kafka.sasl.oauthbearer.token.file": read_text,
    "kafka.sasl.oauthbearer.extensions": read_pairs,
}
_OAUTH: Final = "kafka.sasl.oauthbearer."
#: Other spellings of options.
ALIASES: Final[Mapping[str, str]] = {"kafka.bootstrap.servers": "bootstrap"}
#: Prefixes of settings of a JVM client that define the connection, the data that are read and their form: one of these
#: that is not supported is refused, since the read would differ without it.
DECIDING: Final = (
    "kafka.ssl.", "kafka.sasl.", "kafka.security.", "kafka.isolation.", "kafka.bootstrap.", "kafka.key.deserializer",
    "kafka.value.deserializer", "kafka.auto.offset.", "kafka.interceptor.",
)  # fmt: skip
#: Options of the same use where offsets count bytes, and where they count messages.
BY_UNIT: Final[Mapping[str, str]] = {
    "maxSplitBytes": "maxRecordsPerPartition",
    "maxBytesPerTrigger": "maxOffsetsPerTrigger",
}


_Int64 = Annotated[int, Ge(1), Lt(1 << 63)]


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """All options, read and checked. Sizes are bytes, times seconds unless named otherwise."""

    location: Location
    topics: Assign | Subscribe | SubscribePattern
    starting: Position | None = None
    ending: Position = LATEST
    #: Milliseconds since 1970.
    starting_timestamp: int | None = prop("startingTimestamp", None, read=reads(Annotated[int, Ge(0), Lt(1 << 63)]))
    #: The same by partition.
    starting_times: Offsets | None = None
    fail_on_data_loss: bool = prop("failOnDataLoss", True, read=reads(bool))
    mode: ParseMode = prop("mode", ParseMode.PERMISSIVE, read=reads(ParseMode))
    include_headers: bool = prop("includeHeaders", False, read=reads(bool))
    min_partitions: int = prop("minPartitions", 1, read=reads(Annotated[int, Ge(1), Le(1_000_000)]))
    #: In what offsets count, bytes or messages, as the next one; 0: nothing is cut that need not be.
    max_split: int = DEFAULT_SPLIT_BYTES
    max_per_trigger: int | None = None
    #: In messages, where offsets count bytes; about so many.
    max_messages: int | None = None
    group_id: str | None = prop("groupId", None, read=read_text)
    commit_offsets: bool = prop("commitOffsets", False, read=reads(bool))
    fetch_size: int = prop("fetchSize", FetchSection.size, read=byte_count(1))
    timeout: float = prop("timeoutMs", FetchSection.socket_timeout, read=reads(WireSeconds))
    max_message_bytes: int | None = prop("maxMessageBytes", None, read=byte_count(1))
    max_decompressed_bytes: int | None = prop("maxDecompressedBytes", None, read=byte_count(1))

    @property
    def counts_messages(self) -> bool:
        """Whether offsets count messages, not bytes."""
        return isinstance(self.location, BootstrapLocation)

    @property
    def limits(self) -> DecodeLimits:
        """The limits of decoders."""
        return DecodeLimits(
            max_message_bytes=self.max_message_bytes or DEFAULT_LIMITS.max_message_bytes,
            max_decompressed_bytes=self.max_decompressed_bytes or DEFAULT_LIMITS.max_decompressed_bytes,
        )

    def start_of_batch(self) -> Position:
        """Return the position at which a batch starts; `starting_timestamp` comes before it."""
        return EARLIEST if self.starting is None else self.starting

    def start_of_stream(self) -> Position:
        """Return the position at which a stream without a checkpoint starts; `starting_timestamp` comes before it."""
        return LATEST if self.starting is None else self.starting


#: Name -> how its text is read.
_READERS: Final[Mapping[str, Callable[[str, str], Any]]] = {
    "path": read_paths,
    "paths": read_path_list,
    "zookeeper": read_zookeeper,
    "brokers": read_brokers,
    "bootstrap": read_servers,
    "files": lambda name, value: plain_path(read_text(name, value)),
    "layout": read_layout,
    "broker": reads(Natural),
    "partitions": reads(Annotated[int, Ge(1), Le(100_000)]),
    "assign": read_assign,
    "subscribe": read_topics,
    "subscribePattern": read_pattern,
    "startingOffsets": read_position,
    "endingOffsets": read_position,
    "startingOffsetsByTimestamp": read_times,
    "maxSplitBytes": byte_count(0),
    "maxRecordsPerPartition": reads(_Int64),
    "maxBytesPerTrigger": byte_count(1),
    "maxOffsetsPerTrigger": reads(_Int64),
    **{name: read for name, ((_, read),) in properties_of(SourceOptions).items()},
    **KAFKA_READERS,
}
#: All names, in the order of the documentation.
OPTIONS: Final = tuple(_READERS)
LOCATIONS: Final = ("path", "zookeeper", "brokers", "bootstrap", "files")
CHOICES: Final = ("assign", "subscribe", "subscribePattern")
#: Options that are never shown, in lower case.
SECRET: Final = frozenset({"kafka.sasl.password"})
#: The options that only a stream takes, and those that only a batch takes.
STREAM_ONLY: Final = ("maxBytesPerTrigger", "maxOffsetsPerTrigger", "groupId", "commitOffsets")
BATCH_ONLY: Final = ("endingOffsets",)
_ONLY_WITH: Final = {
    "layout": "path",
    "broker": "path",
    "partitions": "brokers",
    "commitOffsets": "groupId",
    **dict.fromkeys(("maxRecordsPerPartition", *KAFKA_READERS), "bootstrap"),
}
_STARTS: Final = ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
#: Ignored settings that were logged already, in lower case.
_passed_over: set[str] = set()
_OWN: Final = tuple(name for name in OPTIONS if name not in KAFKA_READERS)
_LOWERED: Final = {name.lower(): name for name in OPTIONS} | dict(ALIASES)


def read_options(options: Mapping[str, str]) -> SourceOptions:
    """The options of `spark.read.format("consumerd")`; upper and lower case are the same. Raises OptionError."""
    given: dict[str, Any] = {}
    for key, value in options.items():
        name = _LOWERED.get(key.lower())
        if name is None and key.lower().startswith("kafka.") and not key.lower().startswith(DECIDING):
            _pass_over(key)
            continue
        if name is None:
            raise OptionError(_unknown(key))
        if name in given:
            raise OptionError(f"option {name} is given twice, once as {key}; remove one of them")
        given[name] = _READERS[name](name, value)
    if "paths" in given:
        given["path"] = (*given.get("path", ()), *given.pop("paths"))
    location = _exactly_one(given, LOCATIONS, "where the messages are")
    choice = _exactly_one(given, CHOICES, "which topics to read")
    for name, other in _ONLY_WITH.items():
        if name in given and other not in given:
            raise OptionError(f"option {name} requires option {other}; add that or remove it")
    _check_together(given)
    split, trigger = BY_UNIT.values() if location == "bootstrap" else BY_UNIT
    broker = _only_broker(given)
    return SourceOptions(
        location=_location(location, given),
        topics=with_broker(broker, given[choice]) if choice == "assign" else given[choice],
        starting=offsets_with_broker(broker, given.get("startingOffsets")),
        ending=offsets_with_broker(broker, given.get("endingOffsets", LATEST)),
        starting_times=offsets_with_broker(broker, given.get("startingOffsetsByTimestamp")),
        max_split=given.get(split, 0 if location == "bootstrap" else DEFAULT_SPLIT_BYTES),
        max_per_trigger=given.get(trigger),
        max_messages=None if location == "bootstrap" else given.get("maxOffsetsPerTrigger"),
        **{key: given[name] for name, ((key, _),) in properties_of(SourceOptions).items() if name in given},
    )


def _only_broker(given: Mapping[str, Any]) -> int | None:
    """The id of the only broker, if the options name exactly one."""
    if "brokers" in given and len(given["brokers"]) == 1:
        return int(next(iter(given["brokers"])))
    return given.get("broker") if "path" in given else None


def _pass_over(key: str) -> None:
    """Log once that a setting of Kafka's clients is ignored."""
    if key.lower() not in _passed_over:
        _passed_over.add(key.lower())
        log.warning("option %s is not used by the data source consumerd and is ignored", key[:80])


def refuse_options(options: Iterable[str], names: Iterable[str], where: str) -> None:
    """Raise OptionError where one of `names` is given for a read that is `where` ("a batch", "a stream")."""
    given = {name.lower() for name in options}
    for name in names:
        if name.lower() in given:
            raise OptionError(f"option {name} is not supported in {where}; remove it")


def _location(name: str, given: Mapping[str, Any]) -> Location:
    if name == "path":
        paths = tuple(path if "://" in path or "::" in path else str(Path(path).absolute()) for path in given[name])
        return PathLocation(paths, given.get("layout", DEFAULT_LAYOUT), given.get("broker"))
    if name == "zookeeper":
        return ZooKeeperLocation(given[name])
    if name == "brokers":
        return BrokersLocation(given[name], given.get("partitions"))
    if name == "bootstrap":
        return bootstrap_location(given)
    return FilesLocation(given[name])


def _exactly_one(given: Mapping[str, Any], names: tuple[str, ...], what: str) -> str:
    found = [name for name in names if name in given]
    every = f"{', '.join(names[:-1])} or {names[-1]}"
    if not found:
        raise OptionError(f"no option says {what}; set exactly one of {every}")
    if len(found) > 1:
        raise OptionError(f"the options {' and '.join(found)} both say {what}; set exactly one of {every}")
    return found[0]


def _check_together(given: Mapping[str, Any]) -> None:
    """The rules that concern more than one option."""
    starts = [name for name in _STARTS if name in given]
    if len(starts) > 1:
        raise OptionError(f"the options {starts[0]} and {starts[1]} both say where to start; set only one of them")
    if "maxOffsetsPerTrigger" in given and "maxBytesPerTrigger" in given:
        raise OptionError(
            "the options maxBytesPerTrigger and maxOffsetsPerTrigger both limit a micro-batch; set only one of them"
        )
    if "maxOffsetsPerTrigger" in given and "files" in given:
        raise OptionError(
            "option maxOffsetsPerTrigger is not supported with files, whose offsets count bytes; use maxBytesPerTrigger"
        )
    if "broker" in given and "{broker}" in given.get("layout", ""):
        raise OptionError("option broker conflicts with {broker} in option layout; remove one of them")
    for counted, instead in BY_UNIT.items():
        if "bootstrap" in given and counted in given:
            raise OptionError(
                f"option {counted} counts bytes, and offsets of brokers of 0.8 and later count messages; use {instead}"
            )
    if "brokers" in given:
        if "subscribePattern" in given:
            raise OptionError(
                "option subscribePattern requires option zookeeper or path: brokers alone do not list their topics"
            )
        if "subscribe" in given and "partitions" not in given:
            raise OptionError(
                "option subscribe requires option partitions with brokers, which do not say how many there are; "
                "set it, or name the partitions with assign"
            )
    if given.get("commitOffsets") and not given.keys() & {"zookeeper", "bootstrap"}:
        raise OptionError(
            "option commitOffsets writes to ZooKeeper or brokers; it requires option zookeeper or bootstrap"
        )
    if "groupId" in given and not given.get("commitOffsets"):
        raise OptionError(
            "option groupId requires commitOffsets=true, as offsets are never read from a group; set that or remove it"
        )


def _unknown(key: str) -> str:
    if key.lower().startswith("kafka."):
        known = ", ".join((*ALIASES, *KAFKA_READERS))
        return f"option {key[:80]} is not supported in Spark; supported Kafka options: {known}"
    known = f"; known options: {', '.join(_OWN)} and some of Kafka's"
    return f"unknown option {key[:80]}{did_you_mean(key, (*OPTIONS, *ALIASES), known)}"


def bootstrap_location(given: Mapping[str, Any]) -> BootstrapLocation:
    """The cluster that these options describe. Raises OptionError where they contradict each other."""
    protocol = given.get("kafka.security.protocol", "PLAINTEXT")
    for word, names in (("SSL", "kafka.ssl."), ("SASL", "kafka.sasl.")):
        named = [name for name in given if name.startswith(names)]
        if named and word not in protocol:
            raise OptionError(
                f"option {named[0]} has no effect with kafka.security.protocol={protocol}; use one with {word}"
            )
    tls = login = None
    if "SSL" in protocol:
        certificate, key = given.get("kafka.ssl.certificate.location"), given.get("kafka.ssl.key.location")
        if key is not None and certificate is None:
            raise OptionError("option kafka.ssl.key.location requires option kafka.ssl.certificate.location; set both")
        named = given.get("kafka.ssl.endpoint.identification.algorithm", "https") == "https"
        tls = Tls(given.get("kafka.ssl.ca.location"), certificate, key, check_hostname=named)
    if protocol.startswith("SASL"):
        login = _login(given, protocol)
    return BootstrapLocation(
        given["bootstrap"], given.get("kafka.isolation.level") == "read_committed", tls, login
    )  # fmt: skip


def _login(given: Mapping[str, Any], protocol: str) -> Login:
    mechanism = given.get("kafka.sasl.mechanism", "PLAIN")
    user = given.get("kafka.sasl.username")
    password, file = given.get("kafka.sasl.password"), given.get("kafka.sasl.password.file")
    tokens = None
    if mechanism == "OAUTHBEARER":
        tokens = _token_source(given)
        if tokens.file is not None:
            if not (user is password is file is None):
                raise OptionError(f"option {_OAUTH}token.file excludes kafka.sasl.username and passwords: remove them")
            return Login("", mechanism=mechanism, tokens=tokens)
    elif named := [name for name in given if name.startswith(_OAUTH)]:
        raise OptionError(f"option {named[0]} has no effect with kafka.sasl.mechanism={mechanism}; use OAUTHBEARER")
    if user is None or (password is None) == (file is None):
        raise OptionError(
            f"kafka.security.protocol={protocol} needs kafka.sasl.username, and exactly one of "
            "kafka.sasl.password and kafka.sasl.password.file"
        )
    return Login(user, password, file, mechanism, tokens)


def _token_source(given: Mapping[str, Any]) -> TokenSource:
    from consumerd.net.client.sasl_oauth import check_endpoint, check_extensions  # noqa: PLC0415 - for few reads

    names = ("token.endpoint.url", "scope", "ca.location", "token.file", "extensions")
    endpoint, scope, ca, file, extensions = (given.get(f"{_OAUTH}{name}") for name in names)
    if (endpoint is None) == (file is None):
        raise OptionError(f"OAUTHBEARER needs exactly one of {_OAUTH}token.endpoint.url and {_OAUTH}token.file")
    if endpoint is not None and (rule := check_endpoint(endpoint)):
        raise OptionError(f"option {_OAUTH}token.endpoint.url {rule}")
    if endpoint is None and not (scope is ca is None):
        raise OptionError(f"options {_OAUTH}scope and {_OAUTH}ca.location require {_OAUTH}token.endpoint.url")
    if rule := check_extensions(dict(extensions or ())):
        raise OptionError(f"option {_OAUTH}extensions: {rule}")
    return TokenSource(endpoint, scope, ca, file, extensions or ())
