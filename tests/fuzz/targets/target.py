"""One parser to be fuzzed: what it is fed, what must hold, and the bytes to begin with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import random


#: `mutate(data, change, rng)`: `data` changed by `change`, the fuzzer's own mutation, behind checksums.
Mutate: TypeAlias = "Callable[[bytes, Callable[[bytes], bytes], random.Random], bytes]"


@dataclass(frozen=True, slots=True)
class Target:
    """One parser. `check(data)` raises for a broken law: an undeclared error above all.

    `seeds` makes the first inputs by name, with our own encoders or by hand. `longest`: bytes of an input; a parser
    with a limit of its own gets more than that. Time and memory of each input are bounded by the runner.
    """

    name: str
    law: str
    check: Callable[[bytes], object]
    seeds: Callable[[], Mapping[str, bytes]]
    mutate: Mutate | None = None
    longest: int = 4096


def check_sentence(error: Exception) -> None:
    """A declared error says something, in one line."""
    assert str(error)
    assert "\n" not in str(error)
