"""Sets of characters, which one position of a pattern accepts.

Ring 0. A set is a sorted tuple of inclusive code point ranges, with the first 128 also as one integer's bits, because
topic names are nearly always ASCII. Java's predefined classes are ASCII-only unless a flag says otherwise, and that
flag is not supported, so all of them are constants here.
"""

from __future__ import annotations

from collections.abc import Iterable

Ranges = Iterable[tuple[int, int]]

_LAST = 0x10FFFF
_CASE = ord("a") - ord("A")


class CharSet:
    """An immutable set of code points."""

    __slots__ = ("_ascii", "_beyond", "ranges")

    def __init__(self, ranges: Ranges) -> None:
        merged: list[tuple[int, int]] = []
        for low, high in sorted(ranges):
            if merged and low <= merged[-1][1] + 1:
                merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
            else:
                merged.append((low, high))
        self.ranges = tuple(merged)
        self._ascii = 0
        for low, high in merged:
            for code in range(low, min(high, 127) + 1):
                self._ascii |= 1 << code
        self._beyond = tuple((low, high) for low, high in merged if high > 127)

    def __contains__(self, code: int) -> bool:
        if code < 128:
            return bool(self._ascii >> code & 1)
        return any(low <= code <= high for low, high in self._beyond)

    def __or__(self, other: CharSet) -> CharSet:
        return CharSet((*self.ranges, *other.ranges))

    def complement(self) -> CharSet:
        """Return every code point that is not in the set."""
        gaps = []
        start = 0
        for low, high in self.ranges:
            if low > start:
                gaps.append((start, low - 1))
            start = high + 1
        if start <= _LAST:
            gaps.append((start, _LAST))
        return CharSet(gaps)

    def fold(self) -> CharSet:
        """Return the set with the other case of its ASCII letters, which is all that Java's `(?i)` does."""
        extra = []
        for low, high in self.ranges:
            for first, last, shift in ((ord("a"), ord("z"), -_CASE), (ord("A"), ord("Z"), _CASE)):
                if max(low, first) <= min(high, last):
                    extra.append((max(low, first) + shift, min(high, last) + shift))
        return CharSet((*self.ranges, *extra))


def of(*items: str) -> CharSet:
    """The set of single characters (`"_"`) and ranges (`"az"`)."""
    return CharSet((ord(item[0]), ord(item[-1])) for item in items)


TERMINATORS = of("\n", "\r", "\x85", "\u2028\u2029")
ANY = of("\0\U0010ffff")
DOT = TERMINATORS.complement()
DIGIT = of("09")
SPACE = of("\t\r", " ")
WORD = of("az", "AZ", "09", "_")

_ALPHA = of("az", "AZ")
_PUNCT = of("!/", ":@", "[`", "{~")

#: `\p{name}` by name: Java's POSIX classes.
POSIX = {
    "Lower": of("az"),
    "Upper": of("AZ"),
    "ASCII": of("\0\x7f"),
    "Alpha": _ALPHA,
    "Digit": DIGIT,
    "Alnum": _ALPHA | DIGIT,
    "Punct": _PUNCT,
    "Graph": _ALPHA | DIGIT | _PUNCT,
    "Print": _ALPHA | DIGIT | _PUNCT | of(" "),
    "Blank": of(" ", "\t"),
    "Cntrl": of("\0\x1f", "\x7f"),
    "XDigit": DIGIT | of("af", "AF"),
    "Space": SPACE,
}
