"""Types of declared fields, checked without a JVM.

Strategy: a small grammar over Spark's own names, so that what is accepted here is what Spark's parser accepts; two
types of ours besides for numbers that mean a time. `bigint not null` declares a field that has to be there.
"""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

_NUMBERS: Final = ("tinyint", "smallint", "int", "bigint", "float", "double")
_SCALARS: Final = (*_NUMBERS, "boolean", "string", "binary", "date", "timestamp")
#: Other spellings, also Spark's.
_ALIASES: Final[Mapping[str, str]] = {
    "byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint", "real": "float", "bool": "boolean",
}  # fmt: skip
#: Numbers since 1970-01-01T00:00:00Z, by how many of them make a second.
EPOCHS: Final[Mapping[str, int]] = {"timestamp_s": 1, "timestamp_ms": 1000, "timestamp_us": 1_000_000}
_TOKEN = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*|[0-9]+|[<>(),:])")
#: Deeper nesting than this is an attack on the reader of the file, or a mistake.
_MAX_DEPTH: Final = 32


class FieldType(NamedTuple):
    """A declared type. `ddl`: the column's type in Spark; `epoch`: ticks per second, where the input is a number."""

    ddl: str
    required: bool = False
    epoch: int | None = None

    @property
    def name(self) -> str:
        """As it is declared, without `not null`."""
        return self.ddl if self.epoch is None else next(name for name, ticks in EPOCHS.items() if ticks == self.epoch)

    @property
    def is_nested(self) -> bool:
        """Whether it is an array, a map or a struct."""
        return "<" in self.ddl

    @property
    def is_number(self) -> bool:
        """Whether values can be summed."""
        return self.ddl in _NUMBERS or self.ddl.startswith("decimal(")

    @property
    def is_time(self) -> bool:
        """Whether values can be the time of an event."""
        return self.ddl == "timestamp"


def parse_type(text: str) -> FieldType:
    """Read `bigint`, `decimal(10,2) not null`, `array<struct<a:int,b:string>>`, `timestamp_ms` and the like.

    Raises ValueError with a sentence that names what is wrong.
    """
    words = text.strip().lower()
    required = words.endswith(" not null")
    words = words.removesuffix(" not null").strip()
    if words in EPOCHS:
        return FieldType("timestamp", required, EPOCHS[words])
    reader = _Reader(text.strip()[: len(words)])
    ddl = reader.type(0)
    reader.end()
    return FieldType(ddl, required)


class _Reader:
    """Recursive descent over the tokens of one type."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def _peek(self) -> str:
        match = _TOKEN.match(self._text, self._at)
        return match[1] if match else ""

    def _next(self) -> str:
        match = _TOKEN.match(self._text, self._at)
        if match is None:
            rest = self._text[self._at :].strip()
            raise ValueError(
                f"{self._text!r} is not a type: " + (f"{rest[:20]!r} is unexpected" if rest else "it ends too early")
            )
        self._at = match.end()
        return match[1]

    def _expect(self, token: str) -> None:
        found = self._next()
        if found != token:
            raise ValueError(f"{self._text!r} is not a type: {token!r} is missing before {found!r}")

    def end(self) -> None:
        """Raise ValueError if anything is left."""
        rest = self._text[self._at :].strip()
        if rest:
            raise ValueError(f"{self._text!r} is not a type: {rest[:20]!r} is unexpected")

    def type(self, depth: int) -> str:
        """The next type, in its canonical spelling."""
        if depth > _MAX_DEPTH:
            raise ValueError(f"a type is nested more than {_MAX_DEPTH} deep")
        name = self._next().lower()
        name = _ALIASES.get(name, name)
        if name in _SCALARS:
            return name
        if name == "decimal":
            return self._decimal()
        if name == "array":
            self._expect("<")
            element = self.type(depth + 1)
            self._expect(">")
            return f"array<{element}>"
        if name == "map":
            self._expect("<")
            key = self.type(depth + 1)
            self._expect(",")
            value = self.type(depth + 1)
            self._expect(">")
            return f"map<{key},{value}>"
        if name == "struct":
            return self._struct(depth)
        known = (*_SCALARS, *_ALIASES, *EPOCHS, "decimal", "array", "map", "struct")
        nearest = difflib.get_close_matches(name, known, n=1)
        hint = f", did you mean {nearest[0]!r}?" if nearest else f"; known are {', '.join(_SCALARS)}, decimal(p,s)"
        raise ValueError(f"{name!r} is not a type{hint}")

    def _decimal(self) -> str:
        if self._peek() != "(":
            return "decimal(10,0)"
        self._expect("(")
        precision = self._number()
        scale = 0
        if self._peek() == ",":
            self._expect(",")
            scale = self._number()
        self._expect(")")
        if not (1 <= precision <= 38 and scale <= precision):
            raise ValueError(f"decimal({precision},{scale}) is not a type: precision is 1 to 38, scale at most that")
        return f"decimal({precision},{scale})"

    def _number(self) -> int:
        token = self._next()
        if not token.isdigit() or len(token) > 3:
            raise ValueError(f"{self._text!r} is not a type: {token!r} is not a small number")
        return int(token)

    def _struct(self, depth: int) -> str:
        self._expect("<")
        fields = []
        while True:
            name = self._next()
            if not name.isidentifier():
                raise ValueError(f"{self._text!r} is not a type: {name!r} is not a valid field name")
            self._expect(":")
            fields.append(f"{name}:{self.type(depth + 1)}")
            if self._peek() != ",":
                break
            self._expect(",")
        self._expect(">")
        return f"struct<{','.join(fields)}>"
