"""The compiled form of a pattern: a short program of relative jumps, built from fragments.

Ring 0. Fragments know the least and greatest number of characters that they can take (lookbehind needs both) and can be
put together without patching, because all jumps are relative. Copies made for `{n,m}` are counted before they are
made: a pattern of a few characters must not ask for a program of millions.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum, auto
from math import inf
from typing import NamedTuple, cast

from consumerd.wire.registry.errors import RegistryError
from consumerd.wire.registry.regex.charset import CharSet

#: Instructions of one program, those inside its lookarounds and atomic groups included.
MAX_INSTRUCTIONS = 20_000


class Opcode(IntEnum):
    """The operation of an instruction; `a` and `b` are its operands."""

    CHAR = auto()  #: take one character of the set `a`
    SPLIT = auto()  #: try `a`, then `b` (relative)
    JUMP = auto()  #: go to `a` (relative)
    AGAIN = auto()  #: back to the loop's head at `a`, or, when that was seen here (an empty turn), on to `b`
    ATOMIC = auto()  #: take the first match of the program `a`, without backtracking into it
    AHEAD = auto()  #: the program `a` matches from here; `b`: must it?
    BEHIND = auto()  #: the program `a` (a `Lookbehind`) matches up to here; `b`: must it?
    BEGIN = auto()  #: at the beginning
    END = auto()  #: at the end, or before a line terminator that ends the text
    LAST = auto()  #: at the very end
    BOUNDARY = auto()  #: between a word character and another one; `b`: must it be?
    MATCH = auto()


class Instruction(NamedTuple):
    """One step of a program."""

    op: Opcode
    a: object = None
    b: object = None


Program = tuple[Instruction, ...]


class Lookbehind(NamedTuple):
    """The operand of a lookbehind: its program and how far back it may begin."""

    program: Program
    least: int
    most: int


class ProgramFragment(NamedTuple):
    """Part of a program. It ends by running off its end.

    `least` and `most` are the numbers of characters it takes (infinity: without bound), `cost` its instructions with
    those of the programs inside it.
    """

    code: Program
    least: int
    most: float
    cost: int


EMPTY = ProgramFragment((), 0, 0, 0)


def size(program: Program) -> int:
    """The number of its instructions, those inside its lookarounds and atomic groups included."""
    total = len(program)
    for step in program:
        if step.op in (Opcode.ATOMIC, Opcode.AHEAD):
            total += size(cast("Program", step.a))
        elif step.op is Opcode.BEHIND:
            total += size(cast("Lookbehind", step.a).program)
    return total


def _check_cost(cost: int) -> None:
    if cost > MAX_INSTRUCTIONS:
        raise RegistryError(f"a topic filter grows to more than {MAX_INSTRUCTIONS} steps: repeat less")


def one(chars: CharSet) -> ProgramFragment:
    """One character of a set."""
    return ProgramFragment((Instruction(Opcode.CHAR, chars),), 1, 1, 1)


def assertion(op: Opcode, wanted: bool = True) -> ProgramFragment:
    """An assertion about the position."""
    return ProgramFragment((Instruction(op, None, wanted),), 0, 0, 1)


def chain(parts: Sequence[ProgramFragment]) -> ProgramFragment:
    """One after the other."""
    cost = sum(part.cost for part in parts)
    _check_cost(cost)
    code = tuple(step for part in parts for step in part.code)
    return ProgramFragment(code, sum(part.least for part in parts), sum(part.most for part in parts), cost)


def choice(branches: Sequence[ProgramFragment]) -> ProgramFragment:
    """Return a fragment for alternatives, tried in order; at least one is given."""
    *heads, last = branches
    cost = sum(branch.cost for branch in branches) + 2 * len(heads)
    _check_cost(cost)
    code: list[Instruction] = []
    left = sum(len(branch.code) + 2 for branch in heads) + len(last.code)
    for branch in heads:
        left -= len(branch.code) + 2
        code += (Instruction(Opcode.SPLIT, 1, len(branch.code) + 2), *branch.code, Instruction(Opcode.JUMP, left + 1))
    code += last.code
    least, most = min(branch.least for branch in branches), max(branch.most for branch in branches)
    return ProgramFragment(tuple(code), least, most, cost)


def _split(onward: int, lazy: bool) -> Instruction:
    return Instruction(Opcode.SPLIT, onward, 1) if lazy else Instruction(Opcode.SPLIT, 1, onward)


def _optional(body: ProgramFragment, times: int, lazy: bool) -> ProgramFragment:
    """Repeat up to `times`: every turn may be the last, so all turns leave to the same place."""
    code: list[Instruction] = []
    for left in range(times, 0, -1):
        code += (_split(left * (len(body.code) + 1), lazy), *body.code)
    return ProgramFragment(tuple(code), 0, body.most * times if times else 0, (body.cost + 1) * times)


def _star(body: ProgramFragment, lazy: bool) -> ProgramFragment:
    code = (_split(len(body.code) + 2, lazy), *body.code, Instruction(Opcode.AGAIN, -len(body.code) - 1, 1))
    return ProgramFragment(code, 0, 0 if body.most == 0 else inf, body.cost + 2)


def repeat(body: ProgramFragment, least: int, most: int | None, *, lazy: bool = False) -> ProgramFragment:
    """`least` to `most` times (None: without bound)."""
    _check_cost((body.cost + 1) * (least + 1 if most is None else most))
    rest = _star(body, lazy) if most is None else _optional(body, most - least, lazy)
    return chain([*[body] * least, rest])


def complete(body: ProgramFragment) -> Program:
    """A whole program that can be run."""
    return (*body.code, Instruction(Opcode.MATCH))


def atomic(body: ProgramFragment) -> ProgramFragment:
    """A group that is not entered again once it has matched."""
    return ProgramFragment((Instruction(Opcode.ATOMIC, complete(body)),), body.least, body.most, body.cost + 1)


def ahead(body: ProgramFragment, wanted: bool) -> ProgramFragment:
    """Lookahead."""
    return ProgramFragment((Instruction(Opcode.AHEAD, complete(body), wanted),), 0, 0, body.cost + 1)


def behind(body: ProgramFragment, wanted: bool) -> ProgramFragment:
    """Lookbehind. Raises RegistryError when its length has no bound, as Java does."""
    if body.most == inf:
        raise RegistryError("a lookbehind in a topic filter must be bounded: use {n,m} instead of * and + in (?<=...)")
    # It has to end exactly here: its text ends here, so "at the very end" is that condition.
    program = (*body.code, Instruction(Opcode.LAST, None, True), Instruction(Opcode.MATCH))
    operand = Lookbehind(program, body.least, int(body.most))
    return ProgramFragment((Instruction(Opcode.BEHIND, operand, wanted),), 0, 0, body.cost + 1)
