r"""Reads a pattern character by character, and what a backslash makes of the characters after it.

Ring 0. `\Q...\E` is resolved first, as Java does; a character quoted so has lost its meaning, and `peek` and `take`,
which look for meaning, do not see it.
"""

from __future__ import annotations

import string
from typing import NamedTuple

from consumerd.registry.errors import RegistryError, shown
from consumerd.registry.regex.charset import DIGIT, POSIX, SPACE, WORD, CharSet

_CONTROL = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "a": "\a", "e": "\x1b"}
_CLASSES = {
    "d": DIGIT,
    "D": DIGIT.complement(),
    "s": SPACE,
    "S": SPACE.complement(),
    "w": WORD,
    "W": WORD.complement(),
}
_OCTAL = frozenset(string.octdigits)


class Flags(NamedTuple):
    """What `(?i)` and `(?s)` switch."""

    ignore_case: bool = False
    dot_all: bool = False


class Char(NamedTuple):
    """A character of the pattern; `quoted` takes away its meaning."""

    text: str
    quoted: bool


def _resolve_quotes(pattern: str) -> list[Char]:
    chars: list[Char] = []
    at = 0
    while at < len(pattern):
        pair = pattern[at : at + 2]
        if pair == "\\Q":
            end = pattern.find("\\E", at + 2)
            quoted = pattern[at + 2 : end if end >= 0 else len(pattern)]
            chars.extend(Char(char, True) for char in quoted)
            at = end + 2 if end >= 0 else len(pattern)
        else:
            step = len(pair) if pair[0] == "\\" else 1
            chars.extend(Char(char, False) for char in pattern[at : at + step])
            at += step
    return chars


class Reader:
    """A place in a pattern. Whatever is wrong or unknown from here on is a RegistryError."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.chars = _resolve_quotes(pattern)
        self.at = 0

    def refuse(self, what: str) -> RegistryError:
        return RegistryError(f"the topic filter {shown(self.pattern)} cannot be used: {what}")

    def peek(self, ahead: int = 0) -> str:
        """The next character if it has its special meaning, else ""."""
        at = self.at + ahead
        return self.chars[at].text if at < len(self.chars) and not self.chars[at].quoted else ""

    def take(self, expected: str) -> bool:
        """Skip `expected` if it comes next."""
        if all(self.peek(ahead) == char for ahead, char in enumerate(expected)):
            self.at += len(expected)
            return True
        return False

    def next(self) -> Char:
        if self.at >= len(self.chars):
            raise self.refuse("it ends in the middle of a construct")
        self.at += 1
        return self.chars[self.at - 1]

    def until(self, end: str) -> str:
        """The text before the next unquoted `end`, which is skipped."""
        text = ""
        while not self.take(end):
            text += self.next().text
        return text

    def escape(self, flags: Flags) -> str | CharSet:
        """After a backslash, anywhere: a character, or a class of them."""
        letter = self.next().text
        if letter in _CLASSES:
            return _CLASSES[letter]
        if letter in ("p", "P"):
            return self.posix(letter == "P", flags)
        if letter in _CONTROL:
            return _CONTROL[letter]
        if letter == "x":
            digits = self.until("}") if self.take("{") else self.next().text + self.next().text
            return self.code_point(digits, 16)
        if letter == "u":
            return self.code_point("".join(self.next().text for _ in range(4)), 16)
        if letter == "0":
            return self.octal()
        if letter == "c":
            return chr(ord(self.next().text) ^ 64)
        if letter.isascii() and letter.isalnum():
            raise self.refuse(f"\\{letter} is not supported")
        return letter

    def octal(self) -> str:
        digits = ""
        while len(digits) < 3 and self.peek() in _OCTAL and int(digits + self.peek(), 8) <= 0o377:
            digits += self.next().text
        return self.code_point(digits, 8)

    def code_point(self, digits: str, base: int) -> str:
        allowed = string.hexdigits if base == 16 else string.octdigits
        if not 1 <= len(digits) <= 6 or any(digit not in allowed for digit in digits):
            raise self.refuse(f"{shown(digits)} is no character's number")
        code = int(digits, base)
        if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
            raise self.refuse(f"{shown(digits)} is no character's number")
        return chr(code)

    def posix(self, negated: bool, flags: Flags) -> CharSet:
        r"""The class named by `\p{name}`."""
        name = self.until("}") if self.take("{") else self.next().text
        if name not in POSIX:
            raise self.refuse(f"\\p{{{name[:20]}}} is not supported; POSIX classes are")
        if flags.ignore_case and name in ("Lower", "Upper"):
            raise self.refuse(f"\\p{{{name}}} under (?i) means different things in different versions of Java")
        return POSIX[name].complement() if negated else POSIX[name]
