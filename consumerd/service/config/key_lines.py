"""Line numbers of the keys of a TOML document, which `tomllib` does not give, for errors that name file and line.

Strategy: `tomllib` has accepted the text, so this scanner need not validate: it skips strings, comments and scalars
as a whole, and follows headers, dotted keys, inline tables and arrays to know the path of each key.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import Final

#: The path of a value: the names of tables and keys, and the indices of arrays.
KeyPath = tuple[str | int, ...]

_BLANK: Final = re.compile(r"[ \t]*")
_BLANK_LINES: Final = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_STRING: Final = re.compile(
    r'"""(?:\\.|[^\\])*?"{3,5}' r"|'''.*?'{3,5}" r'|"(?:\\.|[^"\\])*"' r"|'[^']*'",
    re.DOTALL,
)
_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")
_SCALAR: Final = re.compile(r"[^,\]}#\r\n]+")


class _Scanner:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._counted = 0  # up to where the lines are counted
        self._line = 1
        self._sizes: dict[KeyPath, int] = {}  # of the arrays of tables
        self.lines: dict[KeyPath, int] = {}

    def document(self) -> None:
        table: KeyPath = ()
        while self._skip(_BLANK_LINES):
            if self._text[self._at] == "[":
                table = self._header()
            else:
                self._pair(table)

    def _header(self) -> KeyPath:
        of_array = self._text.startswith("[[", self._at)
        self._at += 1 + of_array
        *above, last = self._key()
        self._skip(_BLANK)
        self._at += 1 + of_array
        path: KeyPath = ()
        for part in above:
            path = self._entered((*path, part))
        path = (*path, last)
        self._seen(path)
        if of_array:
            self._sizes[path] = self._sizes.get(path, 0) + 1
            path = self._entered(path)
        return path

    def _entered(self, path: KeyPath) -> KeyPath:
        """The table that a header means by `path`: of an array of tables the last one."""
        self._seen(path)
        if path in self._sizes:
            path = (*path, self._sizes[path] - 1)
            self._seen(path)
        return path

    def _pair(self, table: KeyPath) -> None:
        for part in self._key():
            table = (*table, part)
            self._seen(table)
        self._skip(_BLANK)
        self._at += 1  # the equals sign
        self._value(table)

    def _key(self) -> list[str]:
        """The parts of a key, dotted or not."""
        parts = []
        while True:
            self._skip(_BLANK)
            if quoted := _STRING.match(self._text, self._at):
                parts.append(str(tomllib.loads(f"key = {quoted[0]}")["key"]))
                self._at = quoted.end()
            else:
                bare = _BARE_KEY.match(self._text, self._at)
                assert bare is not None  # tomllib has accepted it
                parts.append(bare[0])
                self._at = bare.end()
            self._skip(_BLANK)
            if self._text[self._at] != ".":
                return parts
            self._at += 1

    def _value(self, path: KeyPath) -> None:
        self._skip(_BLANK)
        opening = self._text[self._at]
        if opening not in "[{":
            end = _STRING.match(self._text, self._at) or _SCALAR.match(self._text, self._at)
            assert end is not None
            self._at = end.end()
            return
        self._at += 1
        index = 0
        while self._skip(_BLANK_LINES) and self._text[self._at] not in "]}":
            if opening == "{":
                self._pair(path)
            else:
                self._seen((*path, index))
                self._value((*path, index))
                index += 1
            self._skip(_BLANK_LINES)
            if self._text[self._at] == ",":
                self._at += 1
        self._at += 1

    def _skip(self, pattern: re.Pattern[str]) -> bool:
        """Whether anything follows what `pattern` skips."""
        found = pattern.match(self._text, self._at)
        assert found is not None  # it may be empty
        self._at = found.end()
        return self._at < len(self._text)

    def _seen(self, path: KeyPath) -> None:
        self._line += self._text.count("\n", self._counted, self._at)
        self._counted = self._at
        self.lines.setdefault(path, self._line)


def key_lines(text: str) -> Mapping[KeyPath, int]:
    """The line, counted from 1, where each table, key and array element of `text` first appears.

    `text` must be a document that `tomllib.loads` accepts.
    """
    scanner = _Scanner(text.replace("\r\n", "\n"))
    scanner.document()
    return scanner.lines
