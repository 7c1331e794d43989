"""JSON as Spark's `from_json` reads it, exactly: its tokens, its texts of values, its nested types.

Strategy: a message becomes a tree of tokens. Python's own reader makes it where the message is strict JSON; a reader of
ours makes it where Spark accepts more (single quotes, `NaN`, `+INF`, anything behind the object's end) or less (depth,
long numbers and names). A scalar field is then the text of its token, which `casts` reads; a nested field is converted
by its type, each leaf from the tokens that Spark takes for it, or refused as a whole.

Where Spark's behaviour is surprising, this follows it. What follows `}` may continue the object that the message is
wrapped in: `{"id":1},"r":{"id":2}` is `id` 2, and behind `}}` anything may stand. A number with a point or an exponent
becomes a double, and its text Java's text of that (`1e3` is `1000.0`, so never an integer). Nested integers up to 255
fit a tinyint, and wrap. Nested integers as timestamps are seconds, and wrap. A lone surrogate becomes `?`. A value that
is refused counts even where a later one has the same name. A text may have control characters where it is read as
nested Base64, and nowhere else. Source: Spark's `JacksonParser`, and Jackson.
"""

from __future__ import annotations

import binascii
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import tzinfo
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

from consumerd.spark.lake import casts

#: Jackson's limits.
MAX_DEPTH: Final = 1000
_MAX_NUMBER: Final = 1000
MAX_NAME: Final = 50_000
#: Python's reader is as strict as Jackson for texts that cannot reach a limit.
_SHORT: Final = 1000


class MalformedJsonError(ValueError):
    """The text is not JSON as Spark reads it."""


class NestedTypeError(ValueError):
    """A nested value does not have its declared type."""


class Real(str):
    """A number with a point or an exponent, or one of NaN, Infinity and -Infinity, as its text."""

    __slots__ = ()


class ControlText(str):
    """A text with control characters, which only `binary` of a nested type accepts. `is_read`: whether that did."""

    is_read = False


class JsonMembers(list[tuple[str, Any]]):
    """The members of an object, in order, repeated names included."""

    __slots__ = ()


#: A token: None, bool, int, Real, str, list of tokens, or JsonMembers.
Token = Any

#: Strict JSON as tokens. Raises ValueError, RecursionError.
read_strict: Final[Callable[[str], Token]] = json.JSONDecoder(
    object_pairs_hook=JsonMembers, parse_float=Real, parse_constant=Real
).decode


def read_records(text: str) -> tuple[list[JsonMembers | None], list[ControlText]]:
    """The objects of a message, and all its texts with control characters. Raises MalformedJsonError.

    The last object counts, unless a former one is refused.
    """
    if len(text) <= _SHORT:
        try:
            return _objects([read_strict(text)]), []
        except (ValueError, RecursionError):
            pass
    reader = _Reader(f'{{"r":{text}}}')
    return _objects(value for name, value in _read(reader) if name == "r"), reader.control_texts


def _objects(values: Iterable[Token]) -> list[JsonMembers | None]:
    found = list(values)
    if not all(value is None or isinstance(value, JsonMembers) for value in found):
        raise MalformedJsonError("not an object")
    return found


# -- the reader


_SPACE = re.compile(r"[ \t\r\n]*")
_ESCAPE: Final = r"\\(?:[\"\\/bfnrt']|u[0-9a-fA-F]{4})"
_QUOTED: Final = {
    quote: re.compile(rf"{quote}([^{quote}\\\x00-\x1f]*(?:{_ESCAPE}[^{quote}\\\x00-\x1f]*)*){quote}")
    for quote in ('"', "'")
}
_CONTROL = re.compile(rf'"([^"\\]*(?:{_ESCAPE}[^"\\]*)*)"')
_ESCAPED = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_SHORT_ESCAPES: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_SURROGATES = re.compile("[\ud800-\udfff]")
_NUMBER = re.compile(r"-?([0-9]+)((?:\.([0-9]+))?(?:[eE]([+-]?[0-9]+))?)")
_WORD = re.compile(r"[+-]?[A-Za-z]+")
_WORDS: Final[Mapping[str, Token]] = {
    "true": True, "false": False, "null": None, "NaN": Real("NaN"), "Infinity": Real("Infinity"),
    "+Infinity": Real("Infinity"), "+INF": Real("Infinity"), "-Infinity": Real("-Infinity"),
    "-INF": Real("-Infinity"),
}  # fmt: skip


def _read(reader: _Reader) -> JsonMembers:
    """The object that the text begins with; what follows it is not read. Raises MalformedJsonError."""
    root = reader.open()
    assert isinstance(root, JsonMembers)
    stack: list[Any] = [root]
    names: list[str] = [""]
    first = True
    while stack:
        into = stack[-1]
        closing = "}" if isinstance(into, JsonMembers) else "]"
        char = reader.peek()
        if char == closing:
            reader.at += 1
            stack.pop()
            names.pop()
            first = False
            continue
        if not first:
            reader.expect(",")
            char = reader.peek()
        if isinstance(into, JsonMembers):
            names[-1] = reader.name()
            reader.expect(":")
            char = reader.peek()
        opened = char in ("{", "[")
        value = reader.open() if opened else reader.scalar()
        if isinstance(into, JsonMembers):
            into.append((names[-1], value))
        else:
            into.append(value)
        first = opened
        if opened:
            stack.append(value)
            names.append("")
            if len(stack) > MAX_DEPTH:
                raise MalformedJsonError("nested too deep")
    return root


class _Reader:
    """Tokens of a text, from `at`."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.at = 0
        self.control_texts: list[ControlText] = []

    def peek(self) -> str:
        """The next character that is not a space; an empty text at the end."""
        match = _SPACE.match(self._text, self.at)
        assert match is not None
        self.at = match.end()
        return self._text[self.at : self.at + 1]

    def expect(self, char: str) -> None:
        """Skip this character."""
        if self.peek() != char:
            raise MalformedJsonError(f"{char} is missing")
        self.at += 1

    def open(self) -> JsonMembers | list[Token]:
        """Skip the start of an object or array."""
        self.at += 1
        return JsonMembers() if self._text[self.at - 1] == "{" else []

    def name(self) -> str:
        """The name of a member."""
        name = self._quoted(self.peek())
        if name is None:
            raise MalformedJsonError("a name of a member is missing")
        if len(name) > MAX_NAME // 2 and len(name.encode("utf-16-le", "surrogatepass")) > 2 * MAX_NAME:
            raise MalformedJsonError("a name is too long")
        return name

    def scalar(self) -> Token:
        """A text, a number or a word."""
        char = self._text[self.at : self.at + 1]
        if char in ('"', "'"):
            found = self._quoted(char)
            return self._control_text() if found is None else found
        if match := _NUMBER.match(self._text, self.at):
            self.at = match.end()
            if match[1][0] == "0" and len(match[1]) > 1:
                raise MalformedJsonError("a number begins with 0")
            if sum(len(each or "") for each in match.group(1, 3, 4)) > _MAX_NUMBER:
                raise MalformedJsonError("a number is too long")
            return Real(match[0]) if match[2] else int(match[0])
        word = _WORD.match(self._text, self.at)
        if word is None or word[0] not in _WORDS:
            raise MalformedJsonError("not a value")
        self.at = word.end()
        return _WORDS[word[0]]

    def _quoted(self, quote: str) -> str | None:
        match = _QUOTED[quote].match(self._text, self.at) if quote in _QUOTED else None
        return None if match is None else self._inner(match)

    def _control_text(self) -> ControlText:
        match = _CONTROL.match(self._text, self.at)
        if match is None:
            raise MalformedJsonError("not a text")
        found = ControlText(self._inner(match))
        self.control_texts.append(found)
        return found

    def _inner(self, match: re.Match[str]) -> str:
        self.at = match.end()
        return _unescaped(match[1]) if "\\" in match[1] else match[1]


def _unescaped(text: str) -> str:
    def one(match: re.Match[str]) -> str:
        return chr(int(match[1], 16)) if match[1] else _SHORT_ESCAPES.get(match[2], match[2])

    text = _ESCAPED.sub(one, text)
    if not _SURROGATES.search(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")  # pairs become characters


# -- values as texts


def clean(text: str) -> str:
    """The text as UTF-8 can hold it: Java writes `?` for a lone surrogate."""
    return _SURROGATES.sub("?", text) if not text.isascii() else text


def text_of(token: Token) -> str | None:
    """A value as the text that Spark makes of it; None for null."""
    if token is None:
        return None
    if type(token) is str:
        return clean(token)
    written: list[str] = []
    todo: list[Any] = [token]
    while todo:
        each = todo.pop()
        if isinstance(each, _Written):
            written.append(each)
        elif isinstance(each, JsonMembers):
            pieces: list[Any] = [_Written("{")]
            for name, value in each:
                pieces += [_Written(f"{'' if len(pieces) == 1 else ','}{_escaped(name)}:"), value]
            todo += reversed([*pieces, _Written("}")])
        elif isinstance(each, list):
            pieces = [_Written("[")]
            for value in each:
                pieces += [value] if len(pieces) == 1 else [_Written(","), value]
            todo += reversed([*pieces, _Written("]")])
        else:
            written.append(_scalar_text(each))
    return "".join(written)


class _Written(str):
    """Text that is copied as it is."""

    __slots__ = ()


def _scalar_text(token: Token) -> str:
    if isinstance(token, Real):
        return float_text(float(token))
    if isinstance(token, str):
        return _escaped(token)
    if token is None:
        return "null"
    return ("true" if token else "false") if isinstance(token, bool) else str(token)


def float_text(value: float) -> str:
    """A double in JSON as Jackson writes it."""
    shown = casts.double_text(value)
    return shown if math.isfinite(value) else f'"{shown}"'


_TO_ESCAPE = re.compile('[\x00-\x1f"\\\\\ud800-\udfff\U00010000-\U0010ffff]')
_ESCAPES: Final = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}


def _escaped(text: str) -> str:
    def one(match: re.Match[str]) -> str:
        units = match[0].encode("utf-16-be", "surrogatepass")
        pairs = (units[at : at + 2].hex().upper() for at in range(0, len(units), 2))
        return _ESCAPES.get(match[0]) or "".join(f"\\u{pair}" for pair in pairs)

    return f'"{_TO_ESCAPE.sub(one, text)}"'


# -- nested types

#: A token to what Arrow stores, None for null. Raises NestedTypeError.
Convert = Callable[[Token], Any]


def nested(ddl: str, zone: tzinfo) -> Convert:
    """The conversion to a type, with the rules that hold within arrays, maps and structs."""
    made = _nested(ddl, zone)
    return lambda token: None if token is None else made(token)


def _nested(ddl: str, zone: tzinfo) -> Convert:
    if ddl in casts.BITS:
        return _integer(ddl)
    name, _, inner = ddl[:-1].replace("(", "<", 1).partition("<")
    if name == "decimal":
        return _decimal(*map(int, inner.split(",")))
    if name == "array":
        return _array(nested(inner, zone))
    if name == "map":
        _, value = casts.split_type(inner)
        return _map(nested(value, zone))
    if name == "struct":
        parts = [part.partition(":") for part in casts.split_type(inner)]
        return _struct({field: nested(kind, zone) for field, _, kind in parts})
    conversions: Mapping[str, Convert] = {
        "float": _float, "double": _double, "boolean": _boolean, "string": text_of, "binary": _binary, "date": _date,
        "timestamp": _timestamp(zone),
    }  # fmt: skip
    return conversions[ddl]


def _integer(ddl: str) -> Convert:
    limit = 1 << (casts.BITS[ddl] - 1)
    end = 256 if ddl == "tinyint" else limit

    def convert(token: Token) -> int:
        if type(token) is not int or not -limit <= token < end:
            raise NestedTypeError
        return token if token < limit else token - 256

    return convert


_SPECIAL: Final[Mapping[str, float]] = {
    "NaN": math.nan, "+INF": math.inf, "+Infinity": math.inf, "Infinity": math.inf, "-INF": -math.inf,
    "-Infinity": -math.inf,
}  # fmt: skip


def _double(token: Token) -> float:
    if isinstance(token, Real):
        return float(token)
    if type(token) is int:
        return _nearest(token)
    if isinstance(token, str) and token in _SPECIAL:
        return _SPECIAL[token]
    raise NestedTypeError


def _nearest(number: int) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def _float(token: Token) -> float:
    value = _double(token)
    return casts.single_of(value, lambda: Fraction(str(token)))


def _boolean(token: Token) -> bool:
    if not isinstance(token, bool):
        raise NestedTypeError
    return token


def _decimal(precision: int, scale: int) -> Convert:
    def convert(token: Token) -> Decimal:
        if isinstance(token, bool) or not isinstance(token, (int, str)):
            raise NestedTypeError
        text = str(token) if isinstance(token, (int, Real)) else token.replace(",", "")
        value = casts.java_decimal(text)
        shown = None if value is None else casts.rounded(value, precision, scale)
        if shown is None:
            raise NestedTypeError
        return shown

    return convert


def _binary(token: Token) -> bytes:
    """Jackson's Base64: padding is required, and white space or control characters may stand between groups of four."""
    if type(token) is ControlText:
        token.is_read = True
    elif type(token) is not str:
        raise NestedTypeError
    data = bytearray()
    at = 0
    while True:
        while at < len(token) and token[at] <= " ":
            at += 1
        if at == len(token):
            return bytes(data)
        group = token[at : at + 4]
        if not _GROUP.fullmatch(group):
            raise NestedTypeError
        data += binascii.a2b_base64(group)
        at += 4


_GROUP = re.compile(r"[A-Za-z0-9+/]{2}(?:[A-Za-z0-9+/]{2}|[A-Za-z0-9+/]=|==)")


def _legacy(text: str) -> str:
    """The text without `GMT`, as Spark reads what it could not read otherwise."""
    return text.replace("GMT", "")


_DAYS = re.compile(r"[+-]?\d+")


def _date(token: Token) -> int:
    if type(token) is not str or not token:
        raise NestedTypeError
    found = casts.date_days(token)
    if found is None:
        found = casts.date_days(_legacy(token))
    if found is None and _DAYS.fullmatch(token) and len(token.lstrip("+-0")) <= 10:
        found = int(token)
        if not -(1 << 31) <= found < 1 << 31:
            raise NestedTypeError
        return casts.gregorian_days(found)
    if found is None:
        raise NestedTypeError
    return found


def _timestamp(zone: tzinfo) -> Convert:
    cast = casts.timestamp(zone)

    def convert(token: Token) -> int:
        if type(token) is int and -(1 << 63) <= token < 1 << 63:
            wrapped: int = (token * 1_000_000 + (1 << 63)) % (1 << 64) - (1 << 63)
            return wrapped
        if type(token) is not str or not token:
            raise NestedTypeError
        found: int | None = cast(token)
        if found is None:
            found = cast(_legacy(token))
        if found is None:
            raise NestedTypeError
        return found

    return convert


def _array(element: Convert) -> Convert:
    def convert(token: Token) -> list[Any]:
        if type(token) is not list:
            raise NestedTypeError
        return [element(each) for each in token]

    return convert


def _map(value: Convert) -> Convert:
    def convert(token: Token) -> list[tuple[str, Any]]:
        if not isinstance(token, JsonMembers):
            raise NestedTypeError
        return [(clean(name), value(each)) for name, each in token]

    return convert


def _struct(fields: Mapping[str, Convert]) -> Convert:
    empty = dict.fromkeys(fields)

    def convert(token: Token) -> dict[str, Any]:
        if not isinstance(token, JsonMembers):
            raise NestedTypeError
        found = dict(empty)
        for name, each in token:
            if name in fields:
                found[name] = fields[name](each)
        return found

    return convert
