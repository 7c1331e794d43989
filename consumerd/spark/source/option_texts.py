"""Readers of one option's text each: `(name, text) -> value`, or an OptionError whose sentence names the option."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from consumerd.base.address import parse_address
from consumerd.base.errors import ConfigError
from consumerd.base.settings.kind import ValueKind
from consumerd.spark.source.offsets import Offsets, Position, parse_position
from consumerd.spark.source.option_values import Assign, Subscribe, SubscribePattern
from consumerd.storage.log.archive_names import ArchiveLayout
from consumerd.wire.errors import InvalidTopicError
from consumerd.wire.v07 import validate_topic

_INT32: Final = 1 << 31
_INT64: Final = 1 << 63
_UNITS: Final = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


class OptionError(ConfigError):
    """An option of the data source is missing, unknown, or has a value that it cannot have."""


def read_text(name: str, value: str) -> str:
    """Any text but blanks."""
    if not value.strip():
        raise OptionError(f"option {name} is empty; set it or remove it")
    return value.strip()


def reads(kind: ValueKind) -> Callable[[str, str], Any]:
    """Reads what a type allows, as settings do; a word may be in upper or lower case, and bytes may have a unit."""
    if kind.unit == "bytes":
        return _byte_count(int(kind.bounds[-1].limit))
    if kind.type is str and not kind.choices:
        return read_text
    words = {str(each).lower(): str(each) for each in kind.choices or (("true", "false") if kind.type is bool else ())}

    def read(name: str, value: str) -> Any:
        try:
            return kind.read(words.get(value.strip().lower(), value.strip()), milliseconds=kind.unit == "seconds")
        except ValueError as error:
            raise OptionError(f"option {name} must be {error}, not {value!r}") from None

    return read


def _byte_count(low: int) -> Callable[[str, str], int]:
    """Reads a number of bytes of at least `low`, perhaps with a unit."""

    def read(name: str, value: str) -> int:
        text = value.strip().lower().removesuffix("b")
        factor = _UNITS.get(text[-1:], 1)
        digits = text[:-1] if text[-1:] in _UNITS else text
        if not (digits.isascii() and digits.isdigit() and len(digits) < 20 and low <= int(digits) * factor < _INT64):
            raise OptionError(
                f"option {name} must be a number of bytes such as 67108864, 512k, 64m or 1g"
                f"{f' and at least {low}' if low else ''}, not {value!r}"
            )
        return int(digits) * factor

    return read


def read_paths(name: str, value: str) -> tuple[str, ...]:
    """Paths and URLs, separated by commas."""
    paths = tuple(dict.fromkeys(piece.strip() for piece in value.split(",") if piece.strip()))
    if not paths:
        raise OptionError(f"option {name} is empty; name directories or URLs, separated by commas")
    return tuple(map(plain_path, paths))


def read_path_list(name: str, value: str) -> tuple[str, ...]:
    """The JSON list that Spark makes of `load([...])`."""
    form = 'a JSON list of directories such as ["/a", "/b"]'
    found = _json(name, value, form)
    if not (isinstance(found, list) and found and all(isinstance(path, str) and path for path in found)):
        raise OptionError(f"option {name} must be {form}, not {value!r}")
    return tuple(map(plain_path, dict.fromkeys(found)))


def plain_path(path: str) -> str:
    """Return a path without the scheme that Spark puts before local paths."""
    if path.startswith("file:"):
        return "/" + path.removeprefix("file:").lstrip("/")
    return path


def read_layout(name: str, value: str) -> str:
    """A layout of folders."""
    try:
        ArchiveLayout(value)
    except ConfigError as error:
        raise OptionError(f"invalid option {name}: {error}") from None
    return value


def read_zookeeper(name: str, value: str) -> str:
    """A connect string."""
    from consumerd.net.zk.connect_string import parse_connect_string  # noqa: PLC0415 - executors have no need of it

    try:
        parse_connect_string(read_text(name, value))
    except ConfigError as error:
        raise OptionError(f"invalid option {name}: {error}") from None
    return value.strip()


def read_address(name: str, value: str) -> tuple[str, int]:
    """The address of one broker."""
    try:
        return parse_address(value)
    except ConfigError as error:
        raise OptionError(f"invalid option {name}: {error}".removesuffix(".")) from None


def read_servers(name: str, value: str) -> tuple[tuple[str, int], ...]:
    """Addresses, separated by commas."""
    return tuple(dict.fromkeys(read_address(name, piece) for piece in value.split(",")))


def read_pairs(name: str, value: str) -> tuple[tuple[str, str], ...]:
    """Names and values, as `name=value,name=value`."""
    pairs = [piece.partition("=") for piece in value.split(",")]
    if not all(key.strip() and text.strip() for key, _, text in pairs):
        raise OptionError(f"option {name} must be name=value,name=value, not {value!r}")
    return tuple((key.strip(), text.strip()) for key, _, text in pairs)


def read_brokers(name: str, value: str) -> Mapping[int, tuple[str, int]]:
    """Brokers by id."""
    brokers: dict[int, tuple[str, int]] = {}
    for piece in value.split(","):
        number, equals, address = piece.strip().partition("=")
        good = number.isascii() and number.isdigit() and len(number) <= 10 and int(number) < _INT32
        if not (good and equals):
            raise OptionError(
                f"invalid broker {piece.strip()!r} in option {name}: must have an id, as in 0=kafka0:9092,1=kafka1:9092"
            )
        if int(number) in brokers:
            raise OptionError(f"option {name} names the broker {number} twice; remove one of them")
        brokers[int(number)] = read_address(name, address)
    return brokers


def read_topics(name: str, value: str) -> Subscribe:
    """Topics, separated by commas."""
    topics = tuple(dict.fromkeys(piece.strip() for piece in value.split(",") if piece.strip()))
    if not topics:
        raise OptionError(f"option {name} is empty; name topics, separated by commas")
    for topic in topics:
        _check_topic(name, topic)
    return Subscribe(topics)


def read_pattern(name: str, value: str) -> SubscribePattern:
    """A topic filter."""
    from consumerd.wire.registry.errors import RegistryError  # noqa: PLC0415 - executors have no need of it
    from consumerd.wire.registry.topic_filter import Whitelist  # noqa: PLC0415 - executors have no need of it

    try:
        return SubscribePattern(Whitelist(read_text(name, value)).text)
    except RegistryError as error:
        raise OptionError(f"invalid option {name}: {error}") from None


def read_assign(name: str, value: str) -> Assign:
    """Partitions by topic, in JSON."""
    form = 'JSON such as {"topic": ["0-0", "0-1"]}, or [0, 1] where a broker is named once or none is known'
    found = _json(name, value, form)
    if not (isinstance(found, dict) and found):
        raise OptionError(f"option {name} must be {form}, not {value!r}")
    partitions: dict[str, tuple[str, ...]] = {}
    for topic, names in found.items():
        _check_topic(name, topic)
        if not (isinstance(names, list) and names and all(map(_is_partition, names))):
            raise OptionError(f"option {name} says {json.dumps(names)} for {topic}; must be {form}")
        partitions[topic] = tuple(dict.fromkeys(map(str, names)))
    return Assign(partitions)


def _is_partition(each: Any) -> bool:
    if isinstance(each, int) and not isinstance(each, bool):
        return 0 <= each < _INT32
    return isinstance(each, str) and bool(each)


def read_times(name: str, value: str) -> Offsets:
    """Milliseconds since 1970 by topic and partition, in JSON."""
    form = 'JSON such as {"topic": {"0-0": 1321000000000}}, in milliseconds since 1970'
    found = _json(name, value, form)
    good = isinstance(found, dict) and found and all(isinstance(times, dict) for times in found.values())
    if not (good and all(_is_time(time) for times in found.values() for time in times.values())):
        raise OptionError(f"option {name} must be {form}, not {value[:200]!r}")
    return {str(topic): {str(each): int(time) for each, time in times.items()} for topic, times in found.items()}


def _is_time(time: Any) -> bool:
    return isinstance(time, int) and not isinstance(time, bool) and 0 <= time < _INT64


def with_broker(broker: int | None, assign: Assign) -> Assign:
    """The partitions with the broker's id, if it is the same for all: `1` is `0-1` of the broker 0."""
    if broker is None:
        return assign
    return Assign(
        {
            topic: tuple(dict.fromkeys(named(broker, name) for name in names))
            for topic, names in assign.partitions.items()
        }
    )


def offsets_with_broker(broker: int | None, offsets: Position | None) -> Any:
    """As `with_broker`, of positions or times. Raises OptionError for a partition that is named twice."""
    if broker is None or offsets is None or isinstance(offsets, int):
        return offsets
    found: dict[str, dict[str, Any]] = {}
    for topic, by_name in offsets.items():
        for name, offset in by_name.items():
            if named(broker, name) in found.setdefault(topic, {}):
                raise OptionError(f"{topic}/{named(broker, name)} is named twice in an option, once as {name}")
            found[topic][named(broker, name)] = offset
    return found


def named(broker: int, name: str) -> str:
    """The full name of a partition that may be written as a number."""
    return f"{broker}-{int(name)}" if name.isascii() and name.isdigit() and len(name) <= 10 else name


def read_position(name: str, value: str) -> Position:
    """Return the position at which to start or end."""
    try:
        return parse_position(value)
    except ValueError as error:
        raise OptionError(f"invalid option {name}: {error}") from None


def _json(name: str, value: str, form: str) -> Any:
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        raise OptionError(f"option {name} must be {form}, not {value[:200]!r}") from None


def _check_topic(name: str, topic: str) -> None:
    try:
        validate_topic(topic)
    except InvalidTopicError as error:
        raise OptionError(f"option {name} names {topic[:80]!r}, which is not a valid topic name: {error}") from None
