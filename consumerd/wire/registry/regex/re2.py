"""What of the supported subset of Java's regular expressions RE2 reads in the same way.

Ring 0. A broker matches a filter by RE2J, the RE2 of Java (KIP-848). What RE2 does not have, and the few constructs
that it reads differently, are rejected by name before a broker is asked.
"""

from __future__ import annotations

from typing import Final

from consumerd.wire.registry.errors import RegistryError, shown
from consumerd.wire.registry.regex.charset import CharSet
from consumerd.wire.registry.regex.parser import Char, Flags, PatternParser
from consumerd.wire.registry.regex.program import ProgramFragment

#: The largest number of repetitions, also of those within others together.
MAX_REPETITIONS: Final = 1000
#: Escapes of Java alone; `\0` is octal in both, of other lengths.
_ESCAPES_OF_JAVA: Final = {
    "p": "use brackets, such as [a-z]", "P": "use brackets, such as [^a-z]", "u": r"use \x{...}", "0": r"use \x{...}",
    "c": r"use \x{...}", "e": r"use \x1b", "Z": r"use \z",
}  # fmt: skip


class _Re2Parser(PatternParser):
    """As `PatternParser`, and RE2's errors."""

    def __init__(self, pattern: str) -> None:
        super().__init__(pattern)
        #: The most repetitions within the sequence that is read, and within the group that was read last.
        self._most = self._inside = 1
        self._count = 1

    def refuse(self, what: str) -> RegistryError:
        return RegistryError(
            f"the topic filter {shown(self.pattern)} cannot be matched by a broker, which has RE2: {what}"
        )

    def escape(self, flags: Flags) -> str | CharSet:
        self._check_escape()
        return super().escape(flags)

    def escaped(self, flags: Flags) -> ProgramFragment:
        self._check_escape()
        return super().escaped(flags)

    def _check_escape(self) -> None:
        letter = self.peek()
        if letter in _ESCAPES_OF_JAVA:
            raise self.refuse(rf"\{letter} is not supported; {_ESCAPES_OF_JAVA[letter]}")

    def code_point(self, digits: str, base: int) -> str:
        char = super().code_point(digits, base)
        self._check_ascii(char)
        return char

    def next(self) -> Char:
        char = super().next()
        self._check_ascii(char.text)
        return char

    def _check_ascii(self, char: str) -> None:
        """RE2J takes minutes for a range of many letters under `(?i)`; names of topics are ASCII."""
        if not char.isascii():
            raise self.refuse("characters that are not ASCII are not supported: no topic has them in its name")

    def bracket_char(self, flags: Flags) -> str | CharSet:
        if self.at < len(self.chars) and self.chars[self.at].quoted:
            raise self.refuse(r"\Q within brackets is not supported")
        return super().bracket_char(flags)

    def flags(self, flags: Flags) -> Flags:
        found = super().flags(flags)
        if self.chars[self.at - 1].text == "-":
            raise self.refuse("a - without flags after it is not supported")
        return found

    def opened(self, flags: Flags) -> ProgramFragment:
        for mark, name in (("?=", "lookahead"), ("?!", "lookahead"), ("?<=", "lookbehind"), ("?<!", "lookbehind")):
            if self.take(mark):
                raise self.refuse(f"{name} ({mark}...) is not supported")
        if self.take("?>"):
            raise self.refuse("an atomic group (?>...) is not supported; use (?:...)")
        return super().opened(flags)

    def group(self, flags: Flags) -> ProgramFragment:
        outer, self._most = self._most, 1
        body = super().group(flags)
        self._inside, self._most = self._most, outer
        return body

    def quantified(self, atom: ProgramFragment) -> ProgramFragment:
        inside, self._inside, self._count = self._inside, 1, 1
        found = super().quantified(atom)
        total = inside * self._count
        if total > MAX_REPETITIONS:
            raise self.refuse(f"more than {MAX_REPETITIONS} repetitions are not supported")
        self._most = max(self._most, total)
        return found

    def possessive(self, atom: ProgramFragment, least: int, most: int | None) -> ProgramFragment:
        raise self.refuse("a possessive repetition, such as *+, is not supported")

    def counts(self, text: str) -> tuple[int, int | None]:
        least, most = super().counts(text)
        self._count = least if most is None else most
        return least, most


def require_re2(pattern: str) -> None:
    """Raise RegistryError, which names the construct, for a pattern that RE2 does not have or reads differently."""
    _Re2Parser(pattern).whole()
