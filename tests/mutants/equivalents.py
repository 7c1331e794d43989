"""Mutants that no test can notice, each with the reason: `equivalents.txt`.

An entry names the file and the function or class, then the lines before and after as `make mutants` prints them, then
the reason. `test_equivalents.py` fails when an entry no longer is a mutant of the source.

    consumerd/group/x.py Class.method
    - if a > b:
    + if a >= b:
    Equal values are handled before.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from tests.mutants.operators import Mutant

FILE: Final = Path(__file__).with_name("equivalents.txt")


class Equivalent(NamedTuple):
    """A mutant, wherever its lines have moved to in the function or class."""

    path: str
    place: str
    old: str
    new: str


def key(mutant: Mutant) -> Equivalent:
    """Return the entry by which the mutant is found."""
    return Equivalent(mutant.path, mutant.place, mutant.old, mutant.new)


def parse(text: str) -> dict[Equivalent, str]:
    """Return the reason of each entry. Raises ValueError for an entry that is incomplete or listed twice."""
    entries: dict[Equivalent, str] = {}
    for block in text.split("\n\n"):
        lines = [line for line in block.splitlines() if not line.startswith("#")]
        if not lines:
            continue
        if len(lines) < 4 or not (lines[1].startswith("- ") and lines[2].startswith("+ ")):
            raise ValueError(f"entry must be a place, `- ` old, `+ ` new and the reason: {lines[0]}")
        path, _, place = lines[0].partition(" ")
        if any(line.startswith(("- ", "+ ")) for line in lines[3:]):
            raise ValueError(f"entry must end with an empty line: {lines[0]}")
        entry = Equivalent(path, place, lines[1][2:], lines[2][2:])
        if entry in entries:
            raise ValueError(f"entry is listed twice: {entry}")
        entries[entry] = " ".join(lines[3:])
    return entries


def load() -> dict[Equivalent, str]:
    """Return the entries of the file."""
    return parse(FILE.read_text("utf-8"))
