r"""Java property files, read and written as `java.util.Properties` does.

Strategy: bytes are Latin-1, also where an editor wrote UTF-8; `\u00e9` spells everything else. A logical line
continues where an odd number of backslashes ends a natural one. The key ends at the first `=`, `:` or blank that is
not escaped. Of a key that comes twice the last value counts.
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping
from pathlib import Path

from consumerd.base.errors import ConfigError

_BLANKS = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_KEY = re.compile(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*(?:[=:][ \t\f]*)?(.*)", re.DOTALL)
_ESCAPED = re.compile(r"\\(u([0-9a-fA-F]{4})|u|(.))", re.DOTALL)


def read_properties(path: Path) -> dict[str, str]:
    """The keys and values of a file, in its order. Raises ConfigError."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    return parse_properties(data, str(path))


def parse_properties(data: bytes, source: str) -> dict[str, str]:
    r"""Keys and values. `source` names the text in errors. Raises ConfigError for a `\u` without four hex digits."""
    properties: dict[str, str] = {}
    for number, line in _logical_lines(data.removeprefix(BOM_UTF8).decode("latin-1")):
        match = _KEY.fullmatch(line)
        assert match is not None  # every text matches
        try:
            key, value = map(_unescape, match.groups())
        except ValueError:
            raise ConfigError(rf"{source}, line {number}: \u needs four hexadecimal digits") from None
        properties.pop(key, None)
        properties[key] = value
    return properties


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines without comments, blank lines and continuations, with the numbers of their first natural lines."""
    whole: list[str] = []
    first = 0
    for number, natural in enumerate(re.split(r"\r\n|\r|\n", text), 1):
        line = natural.lstrip(_BLANKS)
        if not whole and (not line or line[0] in "#!"):
            continue
        first = first or number
        backslashes = len(line) - len(line.rstrip("\\"))
        whole.append(line[:-1] if backslashes % 2 else line)
        if not backslashes % 2:
            yield first, "".join(whole)
            whole, first = [], 0
    if whole:
        yield first, "".join(whole)


def _unescape(text: str) -> str:
    """Raises ValueError for a broken escape. Surrogate pairs become the character they stand for."""

    def one(match: re.Match[str]) -> str:
        if match[2] is not None:
            return chr(int(match[2], 16))
        if match[3] is None:
            raise ValueError
        return _ESCAPES.get(match[3], match[3])

    plain = _ESCAPED.sub(one, text)
    return plain.encode("utf-16-be", "surrogatepass").decode("utf-16-be", "replace")


def _escape(text: str, *, key: bool) -> str:
    escaped = []
    for index, char in enumerate(text):
        if char in "\\#!" or (char in " =:" and key) or (char == " " and index == 0):
            escaped.append("\\" + char)
        elif " " <= char <= "~":
            escaped.append(char)
        else:  # Java reads the file as Latin-1; \u counts UTF-16 code units
            units = char.encode("utf-16-be", "surrogatepass")
            escaped += [f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2)]
    return "".join(escaped)


def format_properties(values: Mapping[str, str | int]) -> str:
    """`key=value` lines in ASCII that `java.util.Properties.load` reads back as `values`."""
    return "".join(f"{_escape(key, key=True)}={_escape(str(value), key=False)}\n" for key, value in values.items())
