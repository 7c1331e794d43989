"""The base of all tables of the configuration: plain values, without what validates them.

Strategy: a daemon needs pydantic, a fifth of its memory, only while it reads its file. So a table is a class of our own
whose fields say what `consumerd.service.config.validation` makes a pydantic model of, and its instances have valid
values only.
"""

from __future__ import annotations

from copy import deepcopy
from inspect import get_annotations
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, NamedTuple, get_args

from consumerd.base.credentials import read_secret, read_secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Self


class Finite(NamedTuple):
    """Neither infinite nor not a number: TOML has both."""


class Gt(NamedTuple):
    """Greater than this."""

    gt: float


class Ge(NamedTuple):
    """Greater than or equal to this."""

    ge: float


class Lt(NamedTuple):
    """Less than this."""

    lt: float


class Le(NamedTuple):
    """Less than or equal to this."""

    le: float


#: At most thirty years, which timers and requests have.
Seconds = Annotated[float, Finite(), Gt(0), Le(1_000_000_000)]
#: A value sent to brokers as milliseconds of 32 bits.
WireSeconds = Annotated[float, Finite(), Gt(0), Le(2_147_483)]
Bytes = Annotated[int, Gt(0)]
#: A value sent to brokers as a size.
WireBytes = Annotated[int, Gt(0), Lt(1 << 31)]


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


def is_secret(annotation: Any) -> bool:
    """Whether values of this type are never shown."""
    return annotation is SecretStr or any(is_secret(part) for part in get_args(annotation))


_REQUIRED: Final = object()


class FieldOf(NamedTuple):
    """A key of a table: its default, or what makes one, and what pydantic's `Field` is given besides."""

    default: Any
    factory: Callable[[], Any] | None
    more: dict[str, Any]
    #: The text of its type.
    annotation: str = ""

    @property
    def required(self) -> bool:
        """Whether there is no default."""
        return self.default is _REQUIRED and self.factory is None

    def value(self) -> Any:
        """The default."""
        return self.default if self.factory is None else self.factory()


def Field(default: Any = _REQUIRED, *, default_factory: Callable[[], Any] | None = None, **more: Any) -> Any:  # noqa: N802
    """A key with its default, description, bounds and examples, as with pydantic's function of this name."""
    return FieldOf(default, default_factory, more)


class Rule(NamedTuple):
    """A broken rule whose place its words do not tell: that of a key in one of several tables of the same name."""

    sentence: str
    place: tuple[str | int, ...]


class BrokenRulesError(ValueError):
    """Rules about several keys that a table breaks: one sentence each, without a full stop."""

    def __init__(self, rules: Iterable[str | Rule]) -> None:
        self.rules = tuple(rules)
        super().__init__("; ".join(rule if isinstance(rule, str) else rule.sentence for rule in self.rules))


class Section:
    """A table of the file. Unknown keys are errors.

    Made of values that are valid by themselves, those of `given` keys; the others have their defaults. Raises
    BrokenRulesError.
    """

    fields: ClassVar[dict[str, FieldOf]] = {}
    #: Whether keys that are not fields are kept as they are.
    extra: ClassVar[bool] = False
    given: frozenset[str]

    def __init_subclass__(cls) -> None:
        own = {name: text for name, text in get_annotations(cls).items() if not text.startswith("ClassVar")}
        for name, text in own.items():
            value = vars(cls).get(name, _REQUIRED)
            field = value if isinstance(value, FieldOf) else FieldOf(value, None, {})
            cls.fields = {**cls.fields, name: field._replace(annotation=text)}

    def __init__(self, **values: Any) -> None:
        unknown = values.keys() - self.fields.keys()
        if unknown and not self.extra:
            raise TypeError(f"{type(self).__name__} has no key {min(unknown)!r}")
        missing = [name for name, field in self.fields.items() if field.required and name not in values]
        if missing:
            raise TypeError(f"{type(self).__name__} requires {missing[0]!r}")
        defaults = {name: field.value() for name, field in self.fields.items() if name not in values}
        self._become(defaults | values, frozenset(values))
        if broken := [*self._ambiguous(), *self.rules()]:
            raise BrokenRulesError(broken)

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
        """The values of all keys, in the order of the fields."""
        return {name: value for name, value in vars(self).items() if name != "given"}

    def plain(self) -> dict[str, Any]:
        """As `values`, a copy, with tables within it as dictionaries, too."""
        return {name: _plain(value) for name, value in self.values().items()}

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and isinstance(other, Section) and other.values() == self.values()

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
    def secret_keys(cls) -> list[str]:
        """The keys of secrets: each has another one beside it, with `_file` at its end (a test checks that)."""
        return [name for name, field in cls.fields.items() if SecretStr.__name__ in field.annotation]

    def secret(self, key: str, table: str) -> str | None:
        """The secret of a key, from the configuration or from its file; `table` names this table in errors.

        Raises ConfigError for a file that cannot be read.
        """
        path = getattr(self, f"{key}_file")
        if path is not None:
            return read_secret(path, f"{table}.{key}_file")
        value: SecretStr | None = getattr(self, key)
        return None if value is None else value.get_secret_value()

    def secrets(self, key: str, table: str) -> list[str]:
        """As `secret`, of a key with several."""
        path = getattr(self, f"{key}_file")
        if path is not None:
            return read_secrets(path, f"{table}.{key}_file")
        return [each.get_secret_value() for each in getattr(self, key)]

    def _ambiguous(self) -> Iterator[str]:
        for key in self.secret_keys():
            if getattr(self, key) and getattr(self, f"{key}_file") is not None:
                yield f"give exactly one of {key} and {key}_file"


def _plain(value: Any) -> Any:
    return value.plain() if isinstance(value, Section) else deepcopy(value)
