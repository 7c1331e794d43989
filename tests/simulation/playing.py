"""Many schedules one after the other, in tests. `CONSUMERD_SEED=<seed>` plays that one alone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.simulation.base_schedule import BaseSchedule, ScheduleError

_Outcome = TypeVar("_Outcome")

#: Of this many failing seeds the timeline is shown.
SHOWN = 2
#: Schedules with `-m long`, on top.
LONG_SEEDS = int(os.environ.get("CONSUMERD_LONG_SEEDS", "20000"))
_SEED = os.environ.get("CONSUMERD_SEED")
#: The one seed that was asked for, if so.
ONE = None if _SEED is None else range(int(_SEED), int(_SEED) + 1)

one_alone = pytest.mark.skipif(ONE is not None, reason="one schedule alone was asked for")


def blocks(first: int, end: int, size: int) -> list[range]:
    """The seeds from `first` to `end`, so many to a test."""
    return [range(start, min(start + size, end)) for start in range(first, end, size)]


def everyday(end: int, size: int, *, quick: int = 1, more: int = 0, more_size: int = 200) -> list[Any]:
    """The seeds of every run, `size` to a test, or the one that was asked for; those after `quick` tests are `slow`.

    `more`: seeds with `-m long`, on top, `more_size` to a test.
    """
    if ONE is not None:
        return [ONE]
    found = blocks(0, end, size)
    slow = (pytest.param(seeds, marks=pytest.mark.slow) for seeds in found[quick:])
    long = (pytest.param(seeds, marks=pytest.mark.long) for seeds in blocks(end, end + more, more_size))
    return [*found[:quick], *slow, *long]


def play_all(make: Callable[[int], BaseSchedule[Any, _Outcome]], seeds: range) -> list[_Outcome]:
    """The schedules of `seeds`. Raises what failed, some of it whole."""
    outcomes, failures = [], []
    for seed in seeds:
        try:
            outcomes.append(make(seed).run())
        except ScheduleError as error:
            failures.append(str(error))
    count = f"{len(failures)} of {len(seeds)} schedules failed"
    headlines = [failure.splitlines()[0] for failure in failures[SHOWN:]]
    assert not failures, "\n\n".join([count, *failures[:SHOWN], *headlines])
    return outcomes


def printed_in_two_processes(module: str, schedule: str, seeds: int) -> list[list[str]]:
    """The outcomes of the first seeds as two processes print them, whose strings have other hashes."""
    script = f"from {module} import {schedule}\nfor seed in range({seeds}): print({schedule}(seed).run())"
    return [
        subprocess.run(
            [sys.executable, "-c", script],
            cwd=Path(__file__).parents[2],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
        for hash_seed in ("1", "2")
    ]
