"""Random schedules of groups that a broker coordinates, each from one seed; and broken machines that must be caught.

A failing seed is printed with the last happenings before the failure. Run that one again with

    CONSUMERD_SEED=1234 python -m pytest tests/property/test_coordinated_simulation.py -k seeds
"""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, TypeVar

import pytest

from consumerd.group import coordinated, membership_tables
from consumerd.group import coordinated_events as e
from consumerd.group.coordinated import CoordinatedMember
from consumerd.group.coordinated_tables import PHASES, Phase
from tests.support.simulator import SimulationError
from tests.support.simulator.coordinated import CoordinatedSchedule, Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable
    from enum import Enum

    State = TypeVar("State", bound=Enum)
    Cause = TypeVar("Cause", bound=Enum)

#: Schedules in every test run, and on top of them with `-m long`.
SEEDS = 400
LONG_SEEDS = int(os.environ.get("CONSUMERD_LONG_SEEDS", "5000"))
BLOCK = 500
SHOWN = 2


def simulate(
    seeds: Iterable[int], machine: type[CoordinatedMember] = CoordinatedMember
) -> tuple[list[Outcome], list[str], Counter[tuple[object, object]]]:
    outcomes, failures = [], []
    taken: Counter[tuple[object, object]] = Counter()

    def follow(table: dict[tuple[State, Cause], State], state: State, cause: Cause) -> State:
        taken[state, cause] += 1
        return membership_tables.follow(table, state, cause)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coordinated, "follow", follow)
        for seed in seeds:
            try:
                outcomes.append(CoordinatedSchedule(seed, machine).run())
            except (SimulationError, RuntimeError) as error:
                failures.append(str(error))
    return outcomes, failures, taken


def report(failures: list[str]) -> str:
    return "\n\n".join([f"{len(failures)} schedules failed", *failures[:SHOWN]])


def test_group_holds_its_invariants_in_every_schedule() -> None:
    """Two members never deliver one partition; once quiet, every partition has its one consumer; nothing is idle."""
    one = os.environ.get("CONSUMERD_SEED")
    outcomes, failures, taken = simulate([int(one)] if one else range(SEEDS))
    assert not failures, report(failures)
    if not one:
        # A transition that no schedule reaches is not tested.
        assert not PHASES.keys() - taken.keys()
        assert sum(outcome.members >= 2 and outcome.partitions >= 2 for outcome in outcomes) > SEEDS / 3
        assert sum(outcome.generations for outcome in outcomes) > 2 * SEEDS


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(SEEDS, SEEDS + LONG_SEEDS, BLOCK))
def test_group_holds_its_invariants_in_more_schedules(first: int) -> None:
    _, failures, _ = simulate(range(first, min(first + BLOCK, SEEDS + LONG_SEEDS)))
    assert not failures, report(failures)


def test_same_seed_gives_the_same_schedule() -> None:
    assert [CoordinatedSchedule(seed).run() for seed in range(5)] == [
        CoordinatedSchedule(seed).run() for seed in range(5)
    ]


# ---- Machines that are broken on purpose: the simulation must find each of them ------------------------------------


class JoinsBeforeItIsDrained(CoordinatedMember):
    def handle(self, event: e.Event, now: float) -> list[e.Action]:
        actions = super().handle(event, now)
        for action in list(actions):
            if isinstance(action, e.Drain):
                actions += super().handle(e.Drained(action.ticket), now)
        return actions


class TrustsSilence(CoordinatedMember):
    @property
    def lease_until(self) -> float:
        return float("inf") if self.session_id else float("-inf")


class IsAsPatientAsItsHandlers(CoordinatedMember):
    """Drains for as long as it takes, and does not count the coordinator's patience."""

    def handle(self, event: e.Event, now: float) -> list[e.Action]:
        self._rebalance_timeout = 1000.0
        actions = super().handle(event, now)
        return [e.Drain(each.ticket, now + 900.0) if isinstance(each, e.Drain) else each for each in actions]


class NeverRefreshesTopics(CoordinatedMember):
    def handle(self, event: e.Event, now: float) -> list[e.Action]:
        actions = super().handle(event, now)
        if self._phase is Phase.STABLE:
            self._refresh_at = float("inf")
        return actions


class InsistsOnItsId(CoordinatedMember):
    def _not_known(self, code: int) -> None:
        pass


class DoesNotTryAgain(CoordinatedMember):
    def handle(self, event: e.Event, now: float) -> list[e.Action]:
        if isinstance(event, e.Failed) and event.ticket == self._waiting:
            return []
        return super().handle(event, now)


@pytest.mark.parametrize(
    "broken",
    [
        JoinsBeforeItIsDrained,
        TrustsSilence,
        IsAsPatientAsItsHandlers,
        NeverRefreshesTopics,
        InsistsOnItsId,
        DoesNotTryAgain,
    ],
)
def test_simulation_detects_broken_machines(broken: type[CoordinatedMember]) -> None:
    for seed in range(100):
        if simulate([seed], broken)[1]:
            return
    pytest.fail("no schedule found it")
