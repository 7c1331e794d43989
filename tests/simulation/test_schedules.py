"""Random schedules of whole groups (`tests.simulation.schedule`): what no seed may break.

`CONSUMERD_SEED=<seed>` plays that one alone; `CONSUMERD_LONG_SEEDS` is how many `make test-long` adds.

What they find of defects that are put back: `tests.simulation.planted`.
"""

from __future__ import annotations

import functools

import pytest

from tests.simulation.playing import LONG_SEEDS, blocks, everyday, one_alone, play_all, printed_in_two_processes
from tests.simulation.schedule import KINDS, NODES, Outcome, Schedule

pytestmark = pytest.mark.timeout(900)

#: Schedules in every test run, and in one test of them.
SEEDS, IDS = 180, 40
BLOCK = 20


@functools.cache
def play(seeds: range) -> list[Outcome]:
    """The results of these schedules, which are played once."""
    return play_all(Schedule, seeds)


@pytest.mark.parametrize("seeds", everyday(SEEDS, BLOCK, quick=2, more=LONG_SEEDS), ids=str)
def test_group_holds_its_invariants_in_every_schedule(seeds: range) -> None:
    play(seeds)


@pytest.mark.parametrize("seeds", everyday(IDS, BLOCK, more=LONG_SEEDS // 4), ids=str)
def test_group_survives_what_happens_to_id_nodes(seeds: range) -> None:
    outcomes = play_all(lambda seed: Schedule(seed, NODES), seeds)
    if len(outcomes) > 1:
        assert {each for outcome in outcomes for each in outcome.happened} >= {"kill", "delete", "strange", "nudge"}


@one_alone
def test_schedules_are_not_empty() -> None:
    assert {Schedule(seed).kind for seed in range(SEEDS)} == set(KINDS)
    outcomes = play(blocks(0, SEEDS, BLOCK)[0])
    assert sum(outcome.members > 2 and outcome.partitions > 2 for outcome in outcomes) > len(outcomes) / 3
    assert sum(bool(outcome.repeated) for outcome in outcomes) > 3  # faults do show
    assert all(outcome.messages for outcome in outcomes)
    priced = [Schedule(seed, "priced").run() for seed in range(8)]
    assert {price.event for outcome in priced for price in outcome.prices} == {"join", "leave", "partition", "burst"}


@one_alone
def test_seed_gives_the_same_schedule_in_every_process() -> None:
    """Whatever the hashes of strings are there."""
    one, other = printed_in_two_processes("tests.simulation.schedule", "Schedule", 6)
    assert one == other
    assert len(one) == 6
