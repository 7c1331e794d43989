r"""Reads a documented subset of Java's regular expressions (docs/topic-filters.md) into a program.

Ring 0. A recursive descent, character by character. `\Q...\E` is resolved first, as Java does; a quoted
character has no special meaning, and `peek` and `take` ignore it. A construct that is not supported exactly is
rejected by name: a member that guessed would claim other partitions than its peers do.
"""

from __future__ import annotations

import string
from typing import NamedTuple

from consumerd.wire.registry.errors import RegistryError, shown
from consumerd.wire.registry.regex import program as build
from consumerd.wire.registry.regex.charset import ANY, DIGIT, DOT, POSIX, SPACE, WORD, CharSet
from consumerd.wire.registry.regex.program import Opcode, Program, ProgramFragment

#: Groups within groups; keeps the parser and the matcher off Python's recursion limit.
MAX_DEPTH = 30

_ASSERTIONS = {
    "A": build.assertion(Opcode.BEGIN),
    "z": build.assertion(Opcode.LAST),
    "Z": build.assertion(Opcode.END),
    "b": build.assertion(Opcode.BOUNDARY),
    "B": build.assertion(Opcode.BOUNDARY, wanted=False),
}
#: Longest first: `(?<=` before `(?<`.
_LOOKS = (
    ("?<=", build.behind, True),
    ("?<!", build.behind, False),
    ("?=", build.ahead, True),
    ("?!", build.ahead, False),
)
_QUANTIFIERS: dict[str, tuple[int, int | None]] = {"?": (0, 1), "*": (0, None), "+": (1, None)}
_FLAG_LETTERS = frozenset(string.ascii_letters + "-")


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
    """The flags of `(?i)` and `(?s)`."""

    ignore_case: bool = False
    dot_all: bool = False


class Char(NamedTuple):
    """A character of the pattern; if `quoted`, without its special meaning."""

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


class PatternParser:
    """A place in a pattern. Every error or unknown construct from here on is a RegistryError."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.chars = _resolve_quotes(pattern)
        self.at = 0
        self.depth = 0

    # Characters, and escapes.

    def refuse(self, what: str) -> RegistryError:
        # Parts of the pattern stand in it as they are.
        told = "".join(char if char.isprintable() else repr(char)[1:-1] for char in what)
        return RegistryError(f"the topic filter {shown(self.pattern)} cannot be used: {told}")

    def peek(self, ahead: int = 0) -> str:
        """Return the next character if it has its special meaning, else ""."""
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
        """Return the text before the next unquoted `end`, which is skipped."""
        text = ""
        while not self.take(end):
            text += self.next().text
        return text

    def escape(self, flags: Flags) -> str | CharSet:
        """Read an escape after a backslash, anywhere: a character, or a class of them."""
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
            raise self.refuse(f"{shown(digits)} is not the code of a character")
        code = int(digits, base)
        if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
            raise self.refuse(f"{shown(digits)} is not the code of a character")
        return chr(code)

    def posix(self, negated: bool, flags: Flags) -> CharSet:
        r"""Read the class named by `\p{name}`."""
        name = self.until("}") if self.take("{") else self.next().text
        if name not in POSIX:
            raise self.refuse(f"\\p{{{name[:20]}}} is not supported; POSIX classes are")
        if flags.ignore_case and name in ("Lower", "Upper"):
            raise self.refuse(f"\\p{{{name}}} under (?i) differs between versions of Java")
        return POSIX[name].complement() if negated else POSIX[name]

    # Structure: alternatives of sequences of quantified atoms.

    def whole(self) -> ProgramFragment:
        result = self.alternatives(Flags())
        if self.at < len(self.chars):
            raise self.refuse("it closes a group that is not open")
        return result

    def alternatives(self, flags: Flags) -> ProgramFragment:
        branches: list[ProgramFragment] = []
        while True:
            branch, flags = self.sequence(flags)
            branches.append(branch)
            if not self.take("|"):
                return build.choice(branches)

    def sequence(self, flags: Flags) -> tuple[ProgramFragment, Flags]:
        """Read one branch, and the flags after it: those of `(?i)` hold to the end of the group, across `|`."""
        parts: list[ProgramFragment] = []
        while self.at < len(self.chars) and self.peek() not in ("|", ")"):
            if self.peek() == "(" and self.peek(1) == "?" and self.peek(2) in _FLAG_LETTERS:
                self.at += 2
                inner = self.flags(flags)
                if self.take(")"):
                    flags = inner
                    continue
                if not self.take(":"):
                    raise self.refuse(f"(?{self.peek()} is not supported")
                atom = self.group(inner)
            else:
                atom = self.atom(flags)
            parts.append(self.quantified(atom))
        return build.chain(parts), flags

    def flags(self, flags: Flags) -> Flags:
        """Read the letters of `(?i)`, `(?s-i:`; stop before anything else."""
        on = True
        while self.peek() in _FLAG_LETTERS:
            letter = self.next().text
            if letter == "-":
                if not on:
                    raise self.refuse("a second - among flags")
                on = False
            elif letter == "i":
                flags = flags._replace(ignore_case=on)
            elif letter == "s":
                flags = flags._replace(dot_all=on)
            else:
                raise self.refuse(f"the flag {letter} is not supported; only i and s are")
        return flags

    def group(self, flags: Flags) -> ProgramFragment:
        """Read the pattern up to the closing parenthesis."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.refuse(f"groups are nested deeper than {MAX_DEPTH}")
        body = self.alternatives(flags)
        if not self.take(")"):
            raise self.refuse("a group is not closed")
        self.depth -= 1
        return body

    def opened(self, flags: Flags) -> ProgramFragment:
        """Read a group whose `(` was just read."""
        for mark, look, wanted in _LOOKS:
            if self.take(mark):
                return look(self.group(flags), wanted)
        if self.take("?>"):
            return build.atomic(self.group(flags))
        if self.take("?<"):
            name = self.until(">")
            if not (name.isascii() and name.isalnum() and name[0].isalpha()):
                raise self.refuse(f"{shown(name)} is not a valid group name")
        elif self.peek() == "?" and not self.take("?:"):
            raise self.refuse(f"(?{self.peek(1)} is not supported")
        return self.group(flags)

    def quantified(self, atom: ProgramFragment) -> ProgramFragment:
        mark = self.peek()
        if mark in _QUANTIFIERS:
            least, most = _QUANTIFIERS[self.next().text]
        elif self.take("{"):
            least, most = self.counts(self.until("}"))
        else:
            return atom
        if self.take("+"):
            return self.possessive(atom, least, most)
        return build.repeat(atom, least, most, lazy=self.take("?"))

    def possessive(self, atom: ProgramFragment, least: int, most: int | None) -> ProgramFragment:
        """Repeat as `*+` does, which gives nothing back."""
        return build.atomic(build.repeat(atom, least, most))

    def counts(self, text: str) -> tuple[int, int | None]:
        """Read the inside of `{n}`, `{n,}` or `{n,m}`."""
        first, comma, second = text.partition(",")
        for number in (first, second):
            if number and not (number.isascii() and number.isdigit() and len(number) <= 9):
                break
        else:
            if first and (not second or int(first) <= int(second)):
                if not comma:
                    return int(first), int(first)
                return int(first), int(second) if second else None
        raise self.refuse(f"{{{text[:20]}}} is not a repetition")

    # Atoms.

    def atom(self, flags: Flags) -> ProgramFragment:
        char = self.next()
        if not char.quoted:
            if char.text == "\\":
                return self.escaped(flags)
            if char.text == "(":
                return self.opened(flags)
            if char.text == "[":
                return build.one(self.bracket(flags))
            if char.text == ".":
                return build.one(ANY if flags.dot_all else DOT)
            if char.text == "^":
                return build.assertion(Opcode.BEGIN)
            if char.text == "$":
                return build.assertion(Opcode.END)
            if char.text in ("*", "+", "?", "{"):
                raise self.refuse(f"{char.text} repeats nothing")
        return build.one(self.single(char.text, flags))

    def single(self, char: str, flags: Flags) -> CharSet:
        chars = CharSet([(ord(char), ord(char))])
        return chars.fold() if flags.ignore_case else chars

    def escaped(self, flags: Flags) -> ProgramFragment:
        """Read an escape after a backslash, outside of brackets."""
        if self.peek() in _ASSERTIONS:
            return _ASSERTIONS[self.next().text]
        found = self.escape(flags)
        return build.one(found if isinstance(found, CharSet) else self.single(found, flags))

    # Bracketed classes.

    def bracket(self, flags: Flags) -> CharSet:
        """Read a class after `[`, to the closing bracket."""
        negated = self.take("^")
        ranges: list[tuple[int, int]] = []
        first = True
        while first or not self.take("]"):
            if self.peek() == "[":
                raise self.refuse("a class within a class is not supported")
            if self.peek() == "&" and self.peek(1) == "&":
                raise self.refuse("&& (the intersection of classes) is not supported")
            ranges.extend(self.member(flags))
            first = False
        chars = CharSet(ranges)
        if flags.ignore_case:
            chars = chars.fold()
        return chars.complement() if negated else chars

    def member(self, flags: Flags) -> tuple[tuple[int, int], ...]:
        """Read one character, range or predefined class between brackets."""
        low = self.bracket_char(flags)
        if isinstance(low, CharSet):
            return low.ranges
        if self.peek() != "-" or self.peek(1) in ("]", "[") or self.at + 1 >= len(self.chars):
            return ((ord(low), ord(low)),)
        self.at += 1
        high = self.bracket_char(flags)
        if isinstance(high, CharSet) or high < low:
            raise self.refuse("a range in brackets must go from a lower to a higher character")
        return ((ord(low), ord(high)),)

    def bracket_char(self, flags: Flags) -> str | CharSet:
        char = self.next()
        return self.escape(flags) if char == Char("\\", False) else char.text


def parse(pattern: str) -> Program:
    """Return the program for Java's `String.matches(pattern)`. Raises RegistryError naming an unknown construct."""
    body = PatternParser(pattern).whole()
    return build.complete(build.chain([body, build.assertion(Opcode.LAST)]))
