"""The values that a setting may have: the check of one, the words for all of them, and how their text is read.

One sentence tells of a bad value, wherever it was given: `fetch_size must be a positive whole number of bytes, not -1`.
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from functools import cache, wraps
from inspect import signature
from math import isnan
from operator import ge, gt, le, lt
from typing import Any, Final, Literal, NamedTuple, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from consumerd.base.settings.moments import STARTS, is_start

_P = ParamSpec("_P")
_T = TypeVar("_T")

_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,19}")
#: From here on, an upper bound is one of the machine and not worth a word.
_HUGE: Final = 1_000_000_000


class Finite(NamedTuple):
    """Neither infinite nor not a number: TOML has both."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A limit of a number. Two of different classes are never equal, as tuples would be: `typing` looks by equality."""

    limit: float


class Gt(Bound):
    """Greater than this."""


class Ge(Bound):
    """Greater than or equal to this."""


class Lt(Bound):
    """Less than this."""


class Le(Bound):
    """Less than or equal to this."""


class StartText(NamedTuple):
    """Where to begin to read a log: one of its ends, a time or a duration (`consumerd.base.settings.moments`)."""


class Unit(NamedTuple):
    """What is counted: seconds or bytes."""

    name: str


class ValueKind(NamedTuple):
    """The type of a setting; its choices, or the unit and the bounds of a number."""

    type: Any
    choices: tuple[Any, ...] = ()
    optional: bool = False
    unit: str = ""
    bounds: tuple[Bound, ...] = ()
    #: Whether it says where to begin to read a log.
    start: bool = False

    def problem(self, name: str, value: Any) -> str | None:
        """Return the sentence about a value that is not allowed, without a full stop."""
        return None if self.allows(value) else f"{name} must be {self.words(value)}, not {value!r}"

    def allows(self, value: Any) -> bool:
        """Whether a setting may have this value. Only numbers, truth values, choices and starts are judged."""
        if value is None:
            return self.optional
        if self.choices:
            return value in self.choices
        if self.start:
            return isinstance(value, str) and is_start(value)
        if self.type is bool:
            return isinstance(value, bool)
        if self.type not in (int, float):
            return True
        if isinstance(value, bool) or not isinstance(value, int | float if self.type is float else int):
            return False
        return not isnan(value) and all(_keeps(value, bound) for bound in self.bounds)

    def read(self, text: str, *, milliseconds: bool = False) -> Any:
        """Return the value that a property file means. Raises ValueError with the words for what is allowed."""
        kind = self
        if milliseconds:
            kind = ValueKind(
                int, unit="milliseconds", bounds=tuple(type(each)(each.limit * 1000) for each in self.bounds)
            )
        value: Any = text
        if kind.type is bool:
            value = {"true": True, "false": False}.get(text)
        elif kind.type in (int, float) and not kind.choices:
            value = int(text) if _WHOLE.fullmatch(text) else None
        elif hasattr(kind.type, "__fspath__") or (issubclass(kind.type, Enum) and text in kind.choices):
            value = kind.type(text)
        if not text or value is None or not kind.allows(value):
            raise ValueError(kind.words(value) if text else f"{kind.words(value)} that is not empty")
        return value if not milliseconds else value // 1000 if value % 1000 == 0 else value / 1000

    def words(self, value: Any = None) -> str:
        """What is allowed, as in `must be ...`; `value` is one that is not."""
        if self.choices:
            words = [str(each) for each in self.choices]
            return " or ".join(words) if len(words) == 2 else f"one of {', '.join(words)}"
        if self.start:
            return STARTS
        if self.type in (int, float):
            return self._number(value if isinstance(value, int | float) else 0)
        return _NAMES.get(self.type, f"a {getattr(self.type, '__name__', 'value').lower()}")

    def _number(self, value: float) -> str:
        noun = f"{'whole number' if self.type is int else 'number'}{' of ' * bool(self.unit)}{self.unit}"
        low = next((each for each in self.bounds if isinstance(each, Gt | Ge)), None)
        high = next((each for each in self.bounds if isinstance(each, Lt | Le)), None)
        if high is not None and high.limit > _HUGE - 1 and not value >= high.limit:
            high = None
        most = "" if high is None else f" {'below' if isinstance(high, Lt) else 'up to'} {high.limit:.16g}"
        if low is None:
            return f"a {noun}{most}"
        if (isinstance(low, Gt) and low.limit == 0) or (low.limit == 1 and self.type is int):
            return f"a positive {noun}{most}"
        if high is None and low.limit == 0:
            return f"0 or a positive {noun}"
        return f"a {noun} from {low.limit:.16g}{most.replace('up to', 'to')}"


def _keeps(value: float, bound: Bound) -> bool:
    return _KEEPS[type(bound)](value, bound.limit)


def checked(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Let a function's types judge its arguments: it raises ValueError, with the sentence of all settings."""
    bind = signature(function).bind

    @wraps(function)
    def call(*args: _P.args, **keywords: _P.kwargs) -> _T:
        _check(function, bind(*args, **keywords).arguments)
        return function(*args, **keywords)

    return call


def check_fields(settings: Any) -> None:
    """Let the types of a dataclass judge its fields: raise ValueError, with the sentence of all settings."""
    _check(type(settings), {each.name: getattr(settings, each.name) for each in fields(settings)})


def require(kind: ValueKind, name: str, value: Any) -> None:
    """Raise ValueError, with the sentence of all settings, for a value that is not allowed."""
    if problem := kind.problem(name, value):
        raise ValueError(problem)


def _check(declared: Any, values: Mapping[str, Any]) -> None:
    for name, kind in _kinds(declared).items():
        if name in values:
            require(kind, name, values[name])


@cache
def _kinds(declared: Any) -> dict[str, ValueKind]:
    return {name: kind_of(hint) for name, hint in get_type_hints(declared, include_extras=True).items()}


def kind_of(hint: Any, **bounds: Any) -> ValueKind:
    """The kind of a type, with `Annotated` as in the tables; `bounds` are those of `Field`, as `ge=1`."""
    marks: list[Any] = [cls(bounds[name]) for name, cls in _BOUNDS.items() if name in bounds]
    optional = False
    choices: tuple[Any, ...] = ()
    while not isinstance(hint, type) or get_args(hint):
        origin, arguments = get_origin(hint), get_args(hint)
        if hasattr(hint, "__metadata__"):
            marks += hint.__metadata__
            hint = arguments[0]
        elif origin is Literal:
            choices = tuple(each for each in arguments if each is not None)
            hint = type(choices[0])
        elif origin in (Union, types.UnionType):
            optional = type(None) in arguments
            others = [each for each in arguments if each is not type(None)]
            hint = others[0] if len(others) == 1 else object
        else:
            hint = origin or object
    if issubclass(hint, Enum):
        choices = tuple(hint)
    unit = next((each.name for each in marks if isinstance(each, Unit)), "")
    bounding = tuple(each for each in marks if isinstance(each, Bound))
    return ValueKind(hint, choices, optional, unit, bounding, start=any(isinstance(each, StartText) for each in marks))


_NAMES: Final[dict[Any, str]] = {
    bool: "true or false", str: "a text", dict: "a table", Mapping: "a table", list: "a list", tuple: "a list",
    Sequence: "a list",
}  # fmt: skip
_KEEPS: Final[dict[type[Bound], Callable[[float, float], bool]]] = {Gt: gt, Ge: ge, Lt: lt, Le: le}
_BOUNDS: Final = {"gt": Gt, "ge": Ge, "lt": Lt, "le": Le}
