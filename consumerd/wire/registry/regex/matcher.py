"""Runs a program over a topic's name, each (instruction, position) at most once.

Ring 0. Backtracking in Java's order of preference, so that possessive and lazy repetition and atomic groups mean what
they mean there; but a state that was seen before has failed before (nothing else is remembered on the way: there are no
back references) and is not tried again. So the time is bounded by program length times name length, where a
backtracking library would let `(a+)+b`, which any client can write into a member's znode, stop the whole process.
Lookarounds and atomic groups run their own programs; their result at a position is kept. `MAX_STEPS` bounds the rest.
"""

from __future__ import annotations

from typing import cast

from consumerd.wire.registry.errors import RegistryError
from consumerd.wire.registry.regex.charset import TERMINATORS, WORD, CharSet
from consumerd.wire.registry.regex.program import Lookbehind, Opcode, Program

#: Steps of about a tenth of a second, during which nothing else runs; lists of hundreds of topics take a few thousand.
MAX_STEPS = 100_000


class _Run:
    """The run over one name. Programs are told apart by identity: they live as long as the pattern that holds them."""

    __slots__ = ("codes", "found", "steps")

    def __init__(self, text: str) -> None:
        self.codes = [ord(char) for char in text]
        self.found: dict[tuple[int, int, int], int | None] = {}
        self.steps = 0

    def first_end(self, program: Program, start: int, limit: int) -> int | None:
        """Return the end of the preferred match of `program` from `start`, up to `limit`; None without one."""
        key = (id(program), start, limit)
        if key not in self.found:
            self.found[key] = self._search(program, start, limit)
        return self.found[key]

    def _search(self, program: Program, start: int, limit: int) -> int | None:  # noqa: C901 - the inner loop
        codes = self.codes
        width = limit + 1
        seen = bytearray(len(program) * width)
        todo = [(0, start)]
        while todo:
            at, position = todo.pop()
            while True:
                slot = at * width + position
                if seen[slot]:
                    break
                seen[slot] = 1
                self.steps += 1
                op, a, b = program[at]
                if op is Opcode.CHAR:
                    if position >= limit or codes[position] not in cast("CharSet", a):
                        break
                    at += 1
                    position += 1
                elif op is Opcode.SPLIT:
                    todo.append((at + cast("int", b), position))
                    at += cast("int", a)
                elif op is Opcode.JUMP:
                    at += cast("int", a)
                elif op is Opcode.AGAIN:
                    head = at + cast("int", a)
                    at = at + cast("int", b) if seen[head * width + position] else head
                elif op is Opcode.MATCH:
                    return position
                elif op is Opcode.ATOMIC:
                    end = self.first_end(cast("Program", a), position, limit)
                    if end is None:
                        break
                    at += 1
                    position = end
                elif self._holds(op, a, position, limit) is b:
                    at += 1
                else:
                    break
            if self.steps > MAX_STEPS:
                raise RegistryError(f"a topic filter takes more than {MAX_STEPS} steps for one name: simplify it")
        return None

    def _holds(self, op: Opcode, a: object, position: int, limit: int) -> bool:
        """Whether an assertion about a position holds."""
        size = len(self.codes)
        if op is Opcode.AHEAD:
            return self.first_end(cast("Program", a), position, size) is not None
        if op is Opcode.BEHIND:
            look = cast("Lookbehind", a)
            starts = range(position - look.least, max(position - look.most, 0) - 1, -1)
            return any(self.first_end(look.program, start, position) is not None for start in starts)
        if op is Opcode.LAST:
            return position == limit
        if op is Opcode.BEGIN:
            return position == 0
        if op is Opcode.END:
            rest = self.codes[position : position + 3]
            return not rest or rest == [13, 10] or (len(rest) == 1 and rest[0] in TERMINATORS)
        before = position > 0 and self.codes[position - 1] in WORD
        after = position < size and self.codes[position] in WORD
        return before is not after


def matches(program: Program, text: str) -> bool:
    """Whether `program`, which ends with `LAST`, matches all of `text`. Raises RegistryError beyond `MAX_STEPS`."""
    return _Run(text).first_end(program, 0, len(text)) is not None
