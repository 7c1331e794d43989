"""Runs with a crash at one step after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

_Found = TypeVar("_Found")

#: A member makes fewer steps of each kind than this.
MOST = 300


def steps_of(run: Callable[[int], _Found | None], numbers: Iterable[int]) -> list[_Found]:
    """What each run found, such as the name of its step, until the first number that it does not reach."""
    found: list[_Found] = []
    for number in numbers:
        one = run(number)
        if one is None:
            return found
        found.append(one)
    raise AssertionError(f"a member makes more than {MOST} steps")
