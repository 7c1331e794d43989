"""Properties of Kafka 0.7: a key of a table, or a field of a dataclass, says which one fills it, and its type how the
text is read.

Times are seconds here and milliseconds there. What no type can say, such as a list of addresses, has a reader.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, field, fields
from functools import cache
from types import SimpleNamespace
from typing import Annotated, Any, Final, NamedTuple, cast, get_args, get_origin, get_type_hints

from consumerd.base.errors import ConfigError, did_you_mean
from consumerd.base.settings.kind import Ge, Le, Unit, ValueKind, kind_of
from consumerd.base.settings.setting import Section

_INT32: Final = (1 << 31) - 1
#: Numbers as Java has them.
Positive = Annotated[int, Ge(1), Le(_INT32)]
Natural = Annotated[int, Ge(0), Le(_INT32)]
Milliseconds = Annotated[int, Unit("milliseconds"), Ge(1), Le(_INT32)]


class _Property(NamedTuple):
    name: str
    read: Callable[[str, str], Any] | None


def prop(
    name: str, default: Any = MISSING, *, factory: Any = MISSING, read: Callable[[str, str], Any] | None = None
) -> Any:
    """A field that the property `name` fills. `read` gets the name and the text, and raises ConfigError."""
    return field(default=default, default_factory=factory, metadata={"property": _Property(name, read)})


@cache
def properties_of(settings: type) -> dict[str, list[tuple[str, Callable[[str, str], Any]]]]:
    """Each property, and the fields that it fills with their readers."""
    if issubclass(settings, Section):
        keys = {key: each for key, each in settings.fields.items() if each.names.v07 is not None}
        return {
            str(each.names.v07): [(key, each.more.get("text") or _reader_of(settings.hints()[key]))]
            for key, each in keys.items()
        }
    found: dict[str, list[tuple[str, Callable[[str, str], Any]]]] = {}
    for each in fields(cast("Any", settings)):
        said = each.metadata.get("property")
        if said is not None:
            found.setdefault(said.name, []).append((each.name, said.read or _reader(settings, str(each.type))))
    return found


def read_properties(
    properties: Mapping[str, str], parts: Mapping[str, type], without_effect: Iterable[str], noun: str
) -> tuple[dict[str, dict[str, Any]], tuple[str, ...]]:
    """Return the values of the fields of each part, and the names of properties without effect.

    Raises ConfigError for an unknown name, with the nearest one, and for a value that is not allowed.
    """
    known = {
        name: [(part, *filled) for part, settings in parts.items() for filled in properties_of(settings).get(name, ())]
        for settings in parts.values()
        for name in properties_of(settings)
    }
    values: dict[str, dict[str, Any]] = {part: {} for part in parts}
    for name, text in properties.items():
        if name not in known and name not in without_effect:
            raise ConfigError(f"{name} is not a {noun}{did_you_mean(name, [*known, *without_effect], '')}")
        for part, key, read in known.get(name, ()):
            values[part][key] = read(name, text.strip())
    return values, tuple(name for name in properties if name in without_effect)


def _reader(settings: type, annotation: str) -> Callable[[str, str], Any]:
    scope = vars(sys.modules[settings.__module__])
    return _reader_of(
        get_type_hints(SimpleNamespace(__annotations__={"it": annotation}), scope, include_extras=True)["it"]
    )


def _reader_of(hint: Any) -> Callable[[str, str], Any]:
    if get_origin(hint) is Mapping:
        kind = kind_of(get_args(hint)[1])
        return lambda name, text: dict(_by_topic(kind, name, text))
    return lambda name, text: _read(kind_of(hint), name, text)


def _read(kind: ValueKind, name: str, text: str) -> Any:
    try:
        return kind.read(text, milliseconds=kind.unit == "seconds")
    except ValueError as error:
        raise ConfigError(f"{name} must be {error}, not {text!r}") from None


def _by_topic(kind: ValueKind, name: str, text: str) -> Iterator[tuple[str, Any]]:
    for pair in filter(None, (piece.strip() for piece in text.split(","))):
        topic, colon, value = pair.rpartition(":")
        if not colon or not topic:
            raise ConfigError(f"{name} must be topic:number,topic:number, not {text!r}")
        yield topic.strip(), _read(kind, f"{name} of topic {topic.strip()}", value.strip())
