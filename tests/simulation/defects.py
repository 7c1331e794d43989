"""Tables of defects that are put in place in memory, and which schedules find them.

    MUTATIONS = Defects()

    @MUTATIONS.instead(OwnedPartitions, "check_committed")
    async def set_back_stays(self: OwnedPartitions) -> None:
        \"""The offsets of idle partitions are not checked for writes of another process.\"""

Strategy: a defect is known by the name of its function. Patching makes sure that what it is to replace is there: one
that has lost its target fails instead of planting nothing.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar
from unittest import mock

import pytest

from tests.simulation.base_schedule import BaseSchedule, ScheduleError
from tests.simulation.playing import one_alone

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Defects(dict[str, "Callable[[], AbstractContextManager[Any]]"]):
    """Defects by name; each call makes a context in which the defect is there."""

    def add(self, plant: Callable[[], Iterator[None]]) -> Callable[[], AbstractContextManager[None]]:
        """Decorate a generator that plants the defect, yields, and removes it."""
        made = self[plant.__name__] = contextmanager(plant)
        return made

    def instead(self, owner: Any, attribute: str) -> Callable[[_Function], _Function]:
        """Decorate a function that stands for `owner`'s."""

        def note(function: _Function) -> _Function:
            self[function.__name__] = functools.partial(mock.patch.object, owner, attribute, function)
            return function

        return note

    def around(self, owner: Any, attribute: str) -> Callable[[_Function], _Function]:
        """Decorate a function that stands for `owner`'s, which it gets first."""

        def note(function: _Function) -> _Function:
            def plant() -> AbstractContextManager[Any]:
                original = getattr(owner, attribute)

                def replaced(*arguments: Any, **options: Any) -> Any:
                    return function(original, *arguments, **options)

                return mock.patch.object(owner, attribute, replaced)

            self[function.__name__] = plant
            return function

        return note


def finding(
    plant: Callable[[], AbstractContextManager[Any]],
    make: Callable[[int, str | None], BaseSchedule[Any, Any]],
    seeds: Iterable[int],
    *,
    kind: str | None = None,
    at_least: int = 0,
) -> Iterator[tuple[int, str]]:
    """The seeds that fail while the defect is there, and how; no more than `at_least`, unless that is 0.

    `kind`: of schedule, instead of the one that each seed chooses.
    """
    found = 0
    with plant():
        for seed in seeds:
            try:
                make(seed, kind).run()
            except ScheduleError as error:
                found += 1
                yield seed, str(error).partition("\n")[0]
                if found == at_least:
                    return


def planted_tests(
    found_by: Mapping[str, tuple[Any, ...]],
    defects: Defects,
    run: Callable[..., object] = lambda play, *arguments: play(*arguments),
    *,
    long: Collection[str] = (),
) -> tuple[Callable[[str], None], Callable[[str], None], Callable[[], None]]:
    """The tests of `defects`: what shows each one fails with it, and does not without it; and each one has a check.

    `found_by`: the arguments of `run` that show a defect, and behind them what the failure says. The second test is
    `long`, and so is the first one for the names in `long`.
    """
    names = [pytest.param(name, marks=pytest.mark.long) if name in long else name for name in found_by]

    @one_alone
    @pytest.mark.parametrize("mutation", names)
    def finds(mutation: str) -> None:
        *arguments, message = found_by[mutation]
        with defects[mutation](), pytest.raises(AssertionError, match=message):
            run(*arguments)

    @pytest.mark.long
    @pytest.mark.parametrize("mutation", found_by)
    def finds_nothing(mutation: str) -> None:
        run(*found_by[mutation][:-1])

    def has_a_check() -> None:
        assert found_by.keys() == defects.keys()

    return finds, finds_nothing, has_a_check


def main(defects: Defects, make: Callable[[int, str | None], BaseSchedule[Any, Any]], kinds: Sequence[str]) -> None:
    """For people."""
    parser = argparse.ArgumentParser(description="Say which seeds find defects that are put back.")
    parser.add_argument("names", nargs="*", default=list(defects), metavar="name", help=", ".join(defects))
    parser.add_argument("--seeds", default="0-300", help="from which to which, the last one not included")
    parser.add_argument("--at-least", type=int, default=3, help="so many per defect are enough; 0 for all there are")
    parser.add_argument("--kind", choices=sorted(set(kinds)), help="of schedule, for all seeds")
    arguments = parser.parse_args()
    first, _, end = arguments.seeds.partition("-")
    seeds = range(int(first), int(end))
    for name in arguments.names:
        found = finding(defects[name], make, seeds, kind=arguments.kind, at_least=arguments.at_least)
        for seed, headline in found:
            sys.stdout.write(f"{name:32} {seed:6}  {headline}\n")
            sys.stdout.flush()
