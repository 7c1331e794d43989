"""Random schedules of groups that a broker coordinates, and of fixed partitions: what no seed may break.

`CONSUMERD_SEED=<seed>` plays that one of both alone; `CONSUMERD_LONG_SEEDS` is how many `make test-long` adds.
"""

from __future__ import annotations

import pytest

from tests.simulation.kafka_broker import ERAS
from tests.simulation.kafka_schedule import CoordinatedSchedule, FixedSchedule
from tests.simulation.playing import LONG_SEEDS, ONE, blocks, one_alone, play_all

pytestmark = pytest.mark.timeout(900)

#: Schedules in every test run, and in one test of them.
COORDINATED, FIXED, BLOCK = 100, 40, 20
LONG_BLOCK = 200


@pytest.mark.parametrize("seeds", blocks(0, COORDINATED, BLOCK) if ONE is None else [ONE], ids=str)
def test_no_seeds_break_a_coordinated_group(seeds: range) -> None:
    play_all(CoordinatedSchedule, seeds)


@pytest.mark.parametrize("seeds", blocks(0, FIXED, BLOCK) if ONE is None else [ONE], ids=str)
def test_no_seeds_break_fixed_partitions(seeds: range) -> None:
    play_all(FixedSchedule, seeds)


@pytest.mark.long
@pytest.mark.parametrize("seeds", blocks(COORDINATED, COORDINATED + LONG_SEEDS, LONG_BLOCK), ids=str)
def test_no_more_seeds_break_a_coordinated_group(seeds: range) -> None:
    play_all(CoordinatedSchedule, seeds)


@pytest.mark.long
@pytest.mark.parametrize("seeds", blocks(FIXED, FIXED + LONG_SEEDS // 4, LONG_BLOCK), ids=str)
def test_no_more_seeds_break_fixed_partitions(seeds: range) -> None:
    play_all(FixedSchedule, seeds)


@one_alone
def test_the_schedules_are_not_empty() -> None:
    outcomes = play_all(CoordinatedSchedule, range(30))
    assert {outcome.kind for outcome in outcomes} == {"calm", "faulty"}
    assert {outcome.era for outcome in outcomes} == {era.name for era in ERAS}
    assert sum(outcome.members > 2 and outcome.partitions > 2 for outcome in outcomes) > len(outcomes) / 3
    assert sum(outcome.generations > 3 for outcome in outcomes) > len(outcomes) / 3
    assert any(outcome.repeated for outcome in outcomes)  # faults do show
    assert all(outcome.messages for outcome in outcomes)
