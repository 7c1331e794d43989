"""The options of the data source: text by name -> values, or one sentence that names the option that is wrong.

Strategy: one table says which names there are and how each text is read; what only several options together can tell
(exactly one of these, this one only with that one) is checked afterwards, in one place per rule. Nothing is looked up:
whether a topic or a file exists is found out when a query is planned. Values are frozen and light, as executors get
them, too.
"""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from consumerd.errors import ConfigError
from consumerd.spark.source.columns import Mode
from consumerd.spark.source.offsets import Position, parse_position
from consumerd.storage.archive_names import DEFAULT_LAYOUT, Layout
from consumerd.wire.errors import InvalidTopicError
from consumerd.wire.v07 import DEFAULT_LIMITS, EARLIEST, LATEST, Limits, validate_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

#: Where a split is cut, unless `maxSplitBytes` says otherwise: bytes of the log.
DEFAULT_SPLIT_BYTES: Final = 64 << 20
_INT32: Final = 1 << 31
_INT64: Final = 1 << 63
_UNITS: Final = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


class OptionError(ConfigError):
    """An option of the data source is missing, unknown, or has a value that it cannot have."""


@dataclass(frozen=True, slots=True)
class PathPlace:
    """Segment files. `paths`: folders, files or URLs; `layout` and `broker` as in `consumerd log export`."""

    paths: tuple[str, ...]
    layout: str = DEFAULT_LAYOUT
    broker: int | None = None


@dataclass(frozen=True, slots=True)
class ZooKeeperPlace:
    """Live brokers, found in ZooKeeper."""

    connect: str


@dataclass(frozen=True, slots=True)
class BrokerPlace:
    """Live brokers by id -> (host, port). `partitions`: how many each of them has of a topic, None if not said."""

    brokers: Mapping[int, tuple[str, int]]
    partitions: int | None = None


@dataclass(frozen=True, slots=True)
class FilesPlace:
    """What the daemon's `files` handler wrote."""

    directory: str


@dataclass(frozen=True, slots=True)
class Assign:
    """These partitions and no others: topic -> names such as `0-2`."""

    partitions: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Subscribe:
    """All partitions of these topics."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SubscribePattern:
    """All partitions of the topics whose whole name matches, by the rules of topic filters."""

    pattern: str


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """All options, read and checked. Sizes are bytes, times seconds unless named otherwise."""

    place: PathPlace | ZooKeeperPlace | BrokerPlace | FilesPlace
    topics: Assign | Subscribe | SubscribePattern
    starting: Position | None = None
    ending: Position = LATEST
    #: Milliseconds since 1970.
    starting_timestamp: int | None = None
    fail_on_data_loss: bool = True
    mode: Mode = Mode.PERMISSIVE
    include_headers: bool = False
    min_partitions: int = 1
    #: 0: segments are not cut.
    max_split_bytes: int = DEFAULT_SPLIT_BYTES
    max_bytes_per_trigger: int | None = None
    group_id: str | None = None
    commit_offsets: bool = False
    fetch_size: int = 1 << 20
    timeout: float = 30.0
    max_message_bytes: int | None = None
    max_decompressed_bytes: int | None = None

    @property
    def limits(self) -> Limits:
        """The limits of decoders."""
        return Limits(
            max_message_bytes=self.max_message_bytes or DEFAULT_LIMITS.max_message_bytes,
            max_decompressed_bytes=self.max_decompressed_bytes or DEFAULT_LIMITS.max_decompressed_bytes,
        )

    def start_of_batch(self) -> Position:
        """Where a batch starts; `starting_timestamp` comes before it."""
        return EARLIEST if self.starting is None else self.starting

    def start_of_stream(self) -> Position:
        """Where a stream without a checkpoint starts; `starting_timestamp` comes before it."""
        return LATEST if self.starting is None else self.starting


def _text(name: str, value: str) -> str:
    if not value.strip():
        raise OptionError(f"the option {name} is empty; give it a value or leave it out")
    return value.strip()


def _boolean(name: str, value: str) -> bool:
    lowered = value.strip().lower()
    if lowered not in ("true", "false"):
        raise OptionError(f"the option {name} is {value!r}; it is true or false")
    return lowered == "true"


def _whole(low: int, high: int) -> Callable[[str, str], int]:
    def read(name: str, value: str) -> int:
        text = value.strip()
        if not (text.isascii() and text.isdigit() and len(text) < 20 and low <= int(text) < high):
            raise OptionError(f"the option {name} is {value!r}; it is a whole number from {low} to {high - 1}")
        return int(text)

    return read


def _size(low: int) -> Callable[[str, str], int]:
    def read(name: str, value: str) -> int:
        text = value.strip().lower().removesuffix("b")
        factor = _UNITS.get(text[-1:], 1)
        digits = text[:-1] if text[-1:] in _UNITS else text
        if not (digits.isascii() and digits.isdigit() and len(digits) < 20 and low <= int(digits) * factor < _INT64):
            raise OptionError(
                f"the option {name} is {value!r}; it is a number of bytes such as 67108864, 512k, 64m or 1g"
                + (f", at least {low}" if low else "")
            )
        return int(digits) * factor

    return read


def _mode(name: str, value: str) -> Mode:
    try:
        return Mode(value.strip().upper())
    except ValueError:
        raise OptionError(f"the option {name} is {value!r}; it is one of {', '.join(Mode)}") from None


def _paths(name: str, value: str) -> tuple[str, ...]:
    paths = tuple(dict.fromkeys(piece.strip() for piece in value.split(",") if piece.strip()))
    if not paths:
        raise OptionError(f"the option {name} is empty; name directories or URLs, separated by commas")
    return tuple(map(_plain_path, paths))


def _path_list(name: str, value: str) -> tuple[str, ...]:
    """What Spark makes of `load([...])`: a JSON list."""
    found = _json(name, value, 'a JSON list of directories such as ["/a", "/b"]')
    if not (isinstance(found, list) and found and all(isinstance(path, str) and path for path in found)):
        raise OptionError(f'the option {name} is {value!r}; it is a JSON list of directories such as ["/a", "/b"]')
    return tuple(map(_plain_path, dict.fromkeys(found)))


def _plain_path(path: str) -> str:
    """Without the scheme that Spark puts before local paths."""
    if path.startswith("file:"):
        return "/" + path.removeprefix("file:").lstrip("/")
    return path


def _layout(name: str, value: str) -> str:
    try:
        Layout(value)
    except ConfigError as error:
        raise OptionError(f"the option {name} is wrong: {error}") from None
    return value


def _zookeeper(name: str, value: str) -> str:
    from consumerd.zk import parse_connect_string  # noqa: PLC0415 - executors have no need of it

    try:
        parse_connect_string(_text(name, value))
    except ConfigError as error:
        raise OptionError(f"the option {name} is wrong: {error}") from None
    return value.strip()


def _brokers(name: str, value: str) -> Mapping[int, tuple[str, int]]:
    brokers: dict[int, tuple[str, int]] = {}
    for piece in value.split(","):
        number, equals, address = piece.strip().partition("=")
        host, colon, port = address.rpartition(":")
        good = number.isascii() and number.isdigit() and len(number) <= 10 and int(number) < _INT32
        if not (good and equals and colon and host and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
            raise OptionError(
                f"the option {name} has {piece.strip()!r}; name each broker with its id, as in "
                "0=kafka0:9092,1=kafka1:9092"
            )
        if int(number) in brokers:
            raise OptionError(f"the option {name} names the broker {number} twice; leave one of them out")
        brokers[int(number)] = (host.removeprefix("[").removesuffix("]"), int(port))
    return brokers


def _topics(name: str, value: str) -> Subscribe:
    topics = tuple(dict.fromkeys(piece.strip() for piece in value.split(",") if piece.strip()))
    if not topics:
        raise OptionError(f"the option {name} is empty; name topics, separated by commas")
    for topic in topics:
        _check_topic(name, topic)
    return Subscribe(topics)


def _pattern(name: str, value: str) -> SubscribePattern:
    from consumerd.registry import RegistryError, Whitelist  # noqa: PLC0415 - executors have no need of it

    try:
        return SubscribePattern(Whitelist(_text(name, value)).text)
    except RegistryError as error:
        raise OptionError(f"the option {name} is wrong: {error}") from None


def _assign(name: str, value: str) -> Assign:
    form = 'JSON such as {"topic": ["0-0", "0-1"]}, or ["0", "1"] where no broker is known'
    found = _json(name, value, form)
    if not (isinstance(found, dict) and found):
        raise OptionError(f"the option {name} is {value!r}; it is {form}")
    partitions: dict[str, tuple[str, ...]] = {}
    for topic, names in found.items():
        _check_topic(name, topic)
        if not (isinstance(names, list) and names and all(isinstance(each, str) and each for each in names)):
            raise OptionError(f"the option {name} says {json.dumps(names)} for {topic}; it is {form}")
        partitions[topic] = tuple(dict.fromkeys(names))
    return Assign(partitions)


def _position(name: str, value: str) -> Position:
    try:
        return parse_position(value)
    except ValueError as error:
        raise OptionError(f"the option {name} is wrong: {error}") from None


def _json(name: str, value: str, form: str) -> Any:
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        raise OptionError(f"the option {name} is {value[:200]!r}; it is {form}") from None


def _check_topic(name: str, topic: str) -> None:
    try:
        validate_topic(topic)
    except InvalidTopicError as error:
        raise OptionError(f"the option {name} names {topic[:80]!r}, which can be no topic: {error}") from None


#: Name -> how its text is read.
_READERS: Final[Mapping[str, Callable[[str, str], Any]]] = {
    "path": _paths,
    "paths": _path_list,
    "zookeeper": _zookeeper,
    "brokers": _brokers,
    "files": lambda name, value: _plain_path(_text(name, value)),
    "layout": _layout,
    "broker": _whole(0, _INT32),
    "partitions": _whole(1, 100_001),
    "assign": _assign,
    "subscribe": _topics,
    "subscribePattern": _pattern,
    "startingOffsets": _position,
    "endingOffsets": _position,
    "startingTimestamp": _whole(0, _INT64),
    "failOnDataLoss": _boolean,
    "mode": _mode,
    "includeHeaders": _boolean,
    "minPartitions": _whole(1, 1_000_001),
    "maxSplitBytes": _size(0),
    "maxBytesPerTrigger": _size(1),
    "groupId": _text,
    "commitOffsets": _boolean,
    "fetchSize": _size(1),
    "timeoutMs": _whole(1, _INT32),
    "maxMessageBytes": _size(1),
    "maxDecompressedBytes": _size(1),
}
#: All names, in the order of the documentation.
OPTIONS: Final = tuple(_READERS)
PLACES: Final = ("path", "zookeeper", "brokers", "files")
CHOICES: Final = ("assign", "subscribe", "subscribePattern")
#: What only a stream takes, and what only a batch.
STREAM_ONLY: Final = ("maxBytesPerTrigger", "groupId", "commitOffsets")
BATCH_ONLY: Final = ("endingOffsets",)
_ONLY_WITH: Final = {"layout": "path", "broker": "path", "partitions": "brokers", "commitOffsets": "groupId"}
_LOWERED: Final = {name.lower(): name for name in OPTIONS}


def read_options(options: Mapping[str, str]) -> SourceOptions:
    """The options of `spark.read.format("consumerd")`; upper and lower case are the same. Raises OptionError."""
    given: dict[str, Any] = {}
    for key, value in options.items():
        name = _LOWERED.get(key.lower())
        if name is None:
            raise OptionError(_unknown(key))
        given[name] = _READERS[name](name, value)
    if "paths" in given:
        given["path"] = (*given.get("path", ()), *given.pop("paths"))
    place = _exactly_one(given, PLACES, "where the messages are")
    choice = _exactly_one(given, CHOICES, "which topics to read")
    for name, other in _ONLY_WITH.items():
        if name in given and other not in given:
            raise OptionError(f"the option {name} means something together with {other} only; add that or leave it out")
    _check_together(given)
    return SourceOptions(
        place=_place(place, given),
        topics=given[choice],
        starting=given.get("startingOffsets"),
        ending=given.get("endingOffsets", LATEST),
        starting_timestamp=given.get("startingTimestamp"),
        fail_on_data_loss=given.get("failOnDataLoss", True),
        mode=given.get("mode", Mode.PERMISSIVE),
        include_headers=given.get("includeHeaders", False),
        min_partitions=given.get("minPartitions", 1),
        max_split_bytes=given.get("maxSplitBytes", DEFAULT_SPLIT_BYTES),
        max_bytes_per_trigger=given.get("maxBytesPerTrigger"),
        group_id=given.get("groupId"),
        commit_offsets=given.get("commitOffsets", False),
        fetch_size=given.get("fetchSize", 1 << 20),
        timeout=given.get("timeoutMs", 30_000) / 1000,
        max_message_bytes=given.get("maxMessageBytes"),
        max_decompressed_bytes=given.get("maxDecompressedBytes"),
    )


def refuse_options(options: Iterable[str], names: Iterable[str], where: str) -> None:
    """Raise OptionError where one of `names` is given for a read that is `where` ("a batch", "a stream")."""
    given = {name.lower() for name in options}
    for name in names:
        if name.lower() in given:
            raise OptionError(f"the option {name} means nothing in {where}; leave it out")


def _place(name: str, given: Mapping[str, Any]) -> PathPlace | ZooKeeperPlace | BrokerPlace | FilesPlace:
    if name == "path":
        paths = tuple(path if "://" in path or "::" in path else str(Path(path).absolute()) for path in given[name])
        return PathPlace(paths, given.get("layout", DEFAULT_LAYOUT), given.get("broker"))
    if name == "zookeeper":
        return ZooKeeperPlace(given[name])
    if name == "brokers":
        return BrokerPlace(given[name], given.get("partitions"))
    return FilesPlace(given[name])


def _exactly_one(given: Mapping[str, Any], names: tuple[str, ...], what: str) -> str:
    found = [name for name in names if name in given]
    every = f"{', '.join(names[:-1])} or {names[-1]}"
    if not found:
        raise OptionError(f"no option says {what}; give exactly one of {every}")
    if len(found) > 1:
        raise OptionError(f"the options {' and '.join(found)} both say {what}; give exactly one of {every}")
    return found[0]


def _check_together(given: Mapping[str, Any]) -> None:
    """The rules that concern more than one option."""
    if "startingTimestamp" in given and "startingOffsets" in given:
        raise OptionError("the options startingOffsets and startingTimestamp both say where to start; give one of them")
    if "broker" in given and "{broker}" in given.get("layout", ""):
        raise OptionError("the option broker says what {broker} in the option layout says already; leave out either")
    if "brokers" in given:
        if "subscribePattern" in given:
            raise OptionError(
                "the option subscribePattern needs zookeeper or path: brokers alone do not tell which topics they have"
            )
        if "subscribe" in given and "partitions" not in given:
            raise OptionError(
                "the option subscribe needs the option partitions with brokers, which do not tell how many there are; "
                "give that number, or name the partitions with assign"
            )
    if given.get("commitOffsets") and "zookeeper" not in given:
        raise OptionError("the option commitOffsets writes to ZooKeeper; say where the messages are with zookeeper")
    if "groupId" in given and not given.get("commitOffsets"):
        raise OptionError(
            "the option groupId is for commitOffsets=true only, as offsets are never read from a group; leave it out"
        )


def _unknown(key: str) -> str:
    near = difflib.get_close_matches(key.lower(), _LOWERED, n=1)
    hint = f"did you mean {_LOWERED[near[0]]}?" if near else f"there are {', '.join(OPTIONS)}"
    return f"there is no option {key[:80]}; {hint}"
