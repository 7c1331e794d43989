"""A setting: all that is said of it, once, and the tables whose keys settings are.

Strategy: as Kafka's ConfigDef, the declaration of a key has its type with unit and bounds, its default, its meaning,
Kafka's keys for it, the library's keyword, and the way in which a running daemon takes a change over. Everything else
is made of it: the validation of a file (`consumerd.service.config.validation`), the example, the schema, conversions of
property files, the checks of the library's keywords, `--help`, and the numbers in the documents. A table is a class
whose instances have valid values only, and the object that the rooms which use the keys have. `Table.key` is the
default of a key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from datetime import date, time
from enum import Enum
from functools import cache
from inspect import get_annotations
from typing import Annotated, Any, ClassVar, Final, NamedTuple, Self, dataclass_transform, get_args, get_type_hints

from consumerd.base.settings.kind import Finite, Ge, Gt, Le, Lt, Unit, ValueKind, kind_of


class Reload(Enum):
    """The way in which a change of a key takes effect. The value is the wording of the documentation."""

    AT_ONCE = "at once"
    HANDLER = "with a new handler"
    SUBSCRIPTION = "by registering again"
    RESTART = "after a restart"


#: At most thirty years, which timers and requests have.
Seconds = Annotated[float, Unit("seconds"), Finite(), Gt(0), Le(1_000_000_000)]
#: As `Seconds`, or 0.
SecondsOrZero = Annotated[float, Unit("seconds"), Finite(), Ge(0), Le(1_000_000_000)]
Count = Annotated[int, Ge(1)]
Positive = Annotated[float, Finite(), Gt(0), Le(1_000_000_000)]
#: A value sent to brokers as milliseconds of 32 bits.
WireSeconds = Annotated[float, Unit("seconds"), Finite(), Gt(0), Le(2_147_483)]
Bytes = Annotated[int, Unit("bytes"), Gt(0)]
#: A value sent to brokers as a size.
WireBytes = Annotated[int, Unit("bytes"), Gt(0), Lt(1 << 31)]


class SecretStr:
    """A text that is never shown."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def get_secret_value(self) -> str:
        """Return the text."""
        return self._text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SecretStr) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __len__(self) -> int:
        return len(self._text)

    def __repr__(self) -> str:
        return f"SecretStr({str(self)!r})"

    def __str__(self) -> str:
        return "**********" if self._text else ""


_REQUIRED: Final = object()
_OWN: Final = ("names", "reload", "since", "read", "alias")


class Names(NamedTuple):
    """Other names of a key: the keyword of the library's `ConsumerConfig`, and Kafka's keys.

    Those are of 0.7, of old consumers of 0.8 to 1.1, and of later ones.
    """

    keyword: str | None = None
    v07: str | None = None
    v08: str | None = None
    kafka: str | None = None


class Setting(NamedTuple):
    """The declaration of a key."""

    default: Any
    factory: Callable[[], Any] | None = None
    #: Its meaning, in one or more sentences.
    description: str = ""
    names: Names = Names()
    #: None: as the table says; so is the version of consumerd that has it first.
    reload: Reload | None = None
    since: str | None = None
    #: What makes another value of the one that is given; raises ValueError with a sentence. Its name in files, if
    #: that is not a name in Python.
    read: Callable[[Any], Any] | None = None
    alias: str | None = None
    #: Bounds, lengths, examples, and whether it is shown (`repr`).
    more: dict[str, Any] = {}  # noqa: RUF012 - never changed
    #: Its name, and the text of its type.
    name: str = ""
    annotation: str = ""

    @property
    def required(self) -> bool:
        """Whether there is no default."""
        return self.default is _REQUIRED and self.factory is None

    def value(self) -> Any:
        """The default."""
        return self.default if self.factory is None else self.factory()

    @property
    def about(self) -> str:
        """Its meaning, with Kafka's keys."""
        keys = dict.fromkeys(filter(None, self.names[1:]))
        return f"{self.description} Kafka: {', '.join(keys)}." if keys else self.description

    def __get__(self, instance: object, owner: type) -> Any:
        """`Table.key`: the default."""
        if self.required:
            raise AttributeError(f"{owner.__name__}.{self.name} has no default")
        return self.value()


class TunedValue(NamedTuple):
    """A value of a table that no file sets: programs give it to the constructor, or it is its default."""

    default: Any
    made: Callable[[Any], Any] | None
    name: str = ""

    def __get__(self, instance: Any, owner: type) -> Any:
        """`Table.name`: the default; of a table: the value made from its keys, once."""
        if instance is None or self.made is None:
            return self.default
        return instance.__dict__.setdefault(self.name, self.made(instance))


def Tuned(default: Any = None, *, factory: Callable[[Any], Any] | None = None) -> Any:  # noqa: N802
    """A value that is not a key: `default`, or what `factory` makes from the keys of the table."""
    return TunedValue(default, factory)


def Field(  # noqa: N802
    default: Any = _REQUIRED, description: str = "", *, default_factory: Callable[[], Any] | None = None, **said: Any
) -> Any:
    """A key of a table. `said` are fields of `Setting`, or its `more`."""
    own = {name: said.pop(name) for name in _OWN if name in said}
    return Setting(default, default_factory, description, more=said, **own)


class Rule(NamedTuple):
    """A broken rule whose place its words do not tell: that of a key in one of several tables of the same name."""

    sentence: str
    place: tuple[str | int, ...]


class BrokenRulesError(ValueError):
    """Rules about several keys that a table breaks: one sentence each, without a full stop."""

    def __init__(self, rules: Iterable[str | Rule]) -> None:
        self.rules = tuple(rules)
        super().__init__("; ".join(rule if isinstance(rule, str) else rule.sentence for rule in self.rules))


# Type checkers know the constructors' keywords by it; every field counts as one that may be left out.
@dataclass_transform(kw_only_default=True, frozen_default=True)
class Section:
    """A table of the file. Unknown keys are errors.

    An heir of other tables has their keys after its own. Made of the values of `given` keys; the others have their
    defaults. Raises BrokenRulesError.
    """

    fields: ClassVar[dict[str, Setting]] = {}
    tuned: ClassVar[frozenset[str]] = frozenset()
    #: Whether keys that are not fields are kept as they are.
    extra: ClassVar[bool] = False
    #: The key whose value alone may stand for the table.
    short: ClassVar[str | None] = None
    given: frozenset[str]

    def __init_subclass__(cls, *, reload: Reload = Reload.RESTART, since: str = "0.1.0") -> None:
        own = {name: text for name, text in get_annotations(cls).items() if not text.startswith("ClassVar")}
        tables = [base for base in cls.__bases__ if issubclass(base, Section)]
        cls.fields = {}
        cls.tuned = frozenset().union(*(table.tuned for table in tables))
        for name, text in own.items():
            if hasattr(Section, name):
                raise TypeError(f"{cls.__name__}.{name} is the name of an attribute of all tables: give it an alias")
            said = vars(cls).get(name, _REQUIRED)
            if isinstance(said, TunedValue):
                cls.tuned |= {name}
                setattr(cls, name, said._replace(name=name))
                continue
            setting = said if isinstance(said, Setting) else Setting(said)
            setting = setting._replace(
                name=name, annotation=text, reload=setting.reload or reload, since=setting.since or since
            )
            cls.fields[name] = setting
            setattr(cls, name, setting)
        cls.fields |= {name: field for table in tables for name, field in table.fields.items() if name not in own}

    def __init__(self, **values: Any) -> None:
        unknown = values.keys() - self.fields.keys() - self.tuned
        if unknown and not self.extra:
            raise TypeError(f"{type(self).__name__} has no key {min(unknown)!r}")
        missing = [name for name, field in self.fields.items() if field.required and name not in values]
        if missing:
            raise TypeError(f"{type(self).__name__} requires {missing[0]!r}")
        if wrong := [*self._wrong(values)]:
            raise BrokenRulesError(wrong)
        defaults = {name: field.value() for name, field in self.fields.items() if name not in values}
        self._become(defaults | values, frozenset(values))
        if broken := [*self._ambiguous(), *self.rules()]:
            raise BrokenRulesError(broken)

    @classmethod
    def of(cls, *tables: Section, **values: Any) -> Self:
        """Make a table with the keys that it shares with other `tables`, and other `values`."""
        shared = {name: getattr(table, name) for table in tables for name in table.given if name in cls.fields}
        return cls(**shared | values)

    def _become(self, values: dict[str, Any], given: frozenset[str]) -> None:
        self.__dict__.update({name: values[name] for name in self.fields} | values, given=given)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen: use `replace` for another {name}")

    def replace(self, **values: Any) -> Self:
        """Return a copy with other `values`, whose rules are not checked."""
        copy = object.__new__(type(self))
        copy._become(self.values() | values, self.given | values.keys())
        return copy

    def values(self) -> dict[str, Any]:
        """The values of all keys, in the order of the fields, and of tuned values that were given."""
        names = dict.fromkeys([*self.fields, *sorted(self.given)])
        return {name: getattr(self, name) for name in names}

    def plain(self) -> dict[str, Any]:
        """As `values`, a copy, with tables within it as dictionaries, too."""
        return {name: _plain(value) for name, value in self.values().items()}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Section) or type(other) is not type(self):
            return False
        names = (*self.fields, *self.tuned, *((self.given | other.given) if self.extra else ()))
        return all(getattr(self, name, None) == getattr(other, name, None) for name in names)

    def __hash__(self) -> int:
        return hash(type(self))

    def __repr__(self) -> str:
        shown = {name for name, field in self.fields.items() if field.more.get("repr", True)}
        keys = ", ".join(f"{name}={value!r}" for name, value in self.values().items() if name in shown)
        return f"{type(self).__name__}({keys})"

    def rules(self) -> Iterator[str | Rule]:
        """The rules about several keys that are broken, each a sentence that names its keys, without a full stop."""
        return iter(())

    @classmethod
    @cache
    def hints(cls) -> dict[str, Any]:
        """The types of the keys, with what is annotated."""
        hints = get_type_hints(cls, include_extras=True)
        return {name: hints[name] for name in cls.fields}

    @classmethod
    @cache
    def kinds(cls) -> dict[str, ValueKind]:
        """The values that each key may have."""
        hints = cls.hints()
        return {name: kind_of(hints[name], **setting.more) for name, setting in cls.fields.items()}

    @classmethod
    def inner(cls, key: str) -> type[Section] | None:
        """The table that a key holds, also where it may be left out or is one of several."""
        hint = cls.hints().get(key)
        parts = (hint, *get_args(hint))
        return next((part for part in parts if isinstance(part, type) and issubclass(part, Section)), None)

    @classmethod
    def secret_keys(cls) -> list[str]:
        """The keys of secrets: each has another one beside it, with `_file` at its end (a test checks that)."""
        return [name for name, field in cls.fields.items() if SecretStr.__name__ in field.annotation]

    def _wrong(self, values: dict[str, Any]) -> Iterator[str]:
        kinds = self.kinds()
        return (said for name in values if name in kinds and (said := kinds[name].problem(name, values[name])))

    def _ambiguous(self) -> Iterator[str]:
        for key in self.secret_keys():
            if getattr(self, key) and getattr(self, f"{key}_file") is not None:
                yield f"give exactly one of {key} and {key}_file"


def as_json(value: Any) -> Any:
    """A value, or a table, as JSON would have it. A secret is not shown."""
    if isinstance(value, Section):
        value = value.values()
    if isinstance(value, Mapping):
        return {str(key): as_json(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(each) for each in value]
    if isinstance(value, date | time):
        return value.isoformat()
    return value if value is None or isinstance(value, str | int | float) else str(value)


def _plain(value: Any) -> Any:
    return value.plain() if isinstance(value, Section) else deepcopy(value)
