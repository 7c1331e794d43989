r"""Reads a documented subset of Java's regular expressions (docs/topic-filters.md) into a program.

Ring 0. A recursive descent over the characters that `reader` hands out. Whatever is not understood exactly is refused
by name: a member that guessed would claim other partitions than its peers do.
"""

from __future__ import annotations

import string

from consumerd.registry.errors import shown
from consumerd.registry.regex import program as build
from consumerd.registry.regex.charset import ANY, DOT, CharSet
from consumerd.registry.regex.program import Fragment, Op, Program
from consumerd.registry.regex.reader import Char, Flags, Reader

#: Groups within groups; keeps the parser and the matcher off Python's recursion limit.
MAX_DEPTH = 30

_ASSERTIONS = {
    "A": build.assertion(Op.BEGIN),
    "z": build.assertion(Op.LAST),
    "Z": build.assertion(Op.END),
    "b": build.assertion(Op.BOUNDARY),
    "B": build.assertion(Op.BOUNDARY, wanted=False),
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


class _Parser(Reader):
    def __init__(self, pattern: str) -> None:
        super().__init__(pattern)
        self.depth = 0

    # Structure: alternatives of sequences of quantified atoms.

    def whole(self) -> Fragment:
        result = self.alternatives(Flags())
        if self.at < len(self.chars):
            raise self.refuse("it closes a group that it did not open")
        return result

    def alternatives(self, flags: Flags) -> Fragment:
        branches: list[Fragment] = []
        while True:
            branch, flags = self.sequence(flags)
            branches.append(branch)
            if not self.take("|"):
                return build.choice(branches)

    def sequence(self, flags: Flags) -> tuple[Fragment, Flags]:
        """One branch, and the flags after it: those of `(?i)` hold to the end of the group, across `|`."""
        parts: list[Fragment] = []
        while self.at < len(self.chars) and self.peek() not in ("|", ")"):
            if self.peek() == "(" and self.peek(1) == "?" and self.peek(2) in _FLAG_LETTERS:
                self.at += 2
                inner = self.flags(flags)
                if self.take(")"):
                    flags = inner
                    continue
                if not self.take(":"):
                    raise self.refuse(f"(?{self.peek()} is not known here")
                atom = self.group(inner)
            else:
                atom = self.atom(flags)
            parts.append(self.quantified(atom))
        return build.chain(parts), flags

    def flags(self, flags: Flags) -> Flags:
        """The letters of `(?i)`, `(?s-i:`; stops before what is none."""
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

    def group(self, flags: Flags) -> Fragment:
        """What stands between here and the closing parenthesis."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.refuse(f"groups are nested deeper than {MAX_DEPTH}")
        body = self.alternatives(flags)
        if not self.take(")"):
            raise self.refuse("a group is not closed")
        self.depth -= 1
        return body

    def opened(self, flags: Flags) -> Fragment:
        """A group whose `(` was just read."""
        for mark, look, wanted in _LOOKS:
            if self.take(mark):
                return look(self.group(flags), wanted)
        if self.take("?>"):
            return build.atomic(self.group(flags))
        if self.take("?<"):
            name = self.until(">")
            if not (name.isascii() and name.isalnum() and name[0].isalpha()):
                raise self.refuse(f"{shown(name)} cannot name a group")
        elif self.peek() == "?" and not self.take("?:"):
            raise self.refuse(f"(?{self.peek(1)} is not supported")
        return self.group(flags)

    def quantified(self, atom: Fragment) -> Fragment:
        mark = self.peek()
        if mark in _QUANTIFIERS:
            least, most = _QUANTIFIERS[self.next().text]
        elif self.take("{"):
            least, most = self.counts(self.until("}"))
        else:
            return atom
        if self.take("+"):
            return build.atomic(build.repeat(atom, least, most))
        return build.repeat(atom, least, most, lazy=self.take("?"))

    def counts(self, text: str) -> tuple[int, int | None]:
        """The inside of `{n}`, `{n,}` or `{n,m}`."""
        first, comma, second = text.partition(",")
        for number in (first, second):
            if number and not (number.isascii() and number.isdigit() and len(number) <= 9):
                break
        else:
            if first and (not second or int(first) <= int(second)):
                if not comma:
                    return int(first), int(first)
                return int(first), int(second) if second else None
        raise self.refuse(f"{{{text[:20]}}} is no repetition")

    # Atoms.

    def atom(self, flags: Flags) -> Fragment:
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
                return build.assertion(Op.BEGIN)
            if char.text == "$":
                return build.assertion(Op.END)
            if char.text in ("*", "+", "?", "{"):
                raise self.refuse(f"{char.text} repeats nothing")
        return build.one(self.single(char.text, flags))

    def single(self, char: str, flags: Flags) -> CharSet:
        chars = CharSet([(ord(char), ord(char))])
        return chars.fold() if flags.ignore_case else chars

    def escaped(self, flags: Flags) -> Fragment:
        """After a backslash, outside of brackets."""
        if self.peek() in _ASSERTIONS:
            return _ASSERTIONS[self.next().text]
        found = self.escape(flags)
        return build.one(found if isinstance(found, CharSet) else self.single(found, flags))

    # Bracketed classes.

    def bracket(self, flags: Flags) -> CharSet:
        """After `[`, to the closing bracket."""
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
        """One character, range or predefined class between brackets."""
        low = self.bracket_char(flags)
        if isinstance(low, CharSet):
            return low.ranges
        if self.peek() != "-" or self.peek(1) in ("]", "[") or self.at + 1 >= len(self.chars):
            return ((ord(low), ord(low)),)
        self.at += 1
        high = self.bracket_char(flags)
        if isinstance(high, CharSet) or high < low:
            raise self.refuse("a range in brackets does not go from a lower to a higher character")
        return ((ord(low), ord(high)),)

    def bracket_char(self, flags: Flags) -> str | CharSet:
        char = self.next()
        return self.escape(flags) if char == Char("\\", False) else char.text


def parse(pattern: str) -> Program:
    """The program for Java's `String.matches(pattern)`. Raises RegistryError, naming the construct it does not know."""
    body = _Parser(pattern).whole()
    return build.complete(build.chain([body, build.assertion(Op.LAST)]))
