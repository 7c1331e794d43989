"""Members that store messages with the sink `postgres`: each message is in the table once, in order.

Crashes of members and of the server at each statement and each `await`, statements that fail and connections that break
there (`tests.simulation.table_crashes`), two owners at once, random schedules (`tests.simulation.table_schedule`), and
defects that these have to find (`tests.simulation.planted_tables`). Every run takes some of the steps; `make test-long`
takes all, and as many more schedules as a tenth of `CONSUMERD_LONG_SEEDS`. `CONSUMERD_SEED=<seed>` plays one alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import get_args

import pytest

from tests.simulation.defects import planted_tests
from tests.simulation.planted_tables import MUTATIONS
from tests.simulation.playing import LONG_SEEDS, everyday, one_alone, play_all
from tests.simulation.sink_crashes import Fault, crash, zombie
from tests.simulation.sink_schedule import Outcome
from tests.simulation.stepping import MOST, steps_of
from tests.simulation.table_crashes import DatabaseFault, disturb, race, stop_for_good
from tests.simulation.table_schedule import KINDS, TableSchedule
from tests.simulation.table_world import TableWorld

pytestmark = pytest.mark.timeout(900)

#: Schedules in every test run, and in one test of the long ones.
SEEDS, LONG_BLOCK = 2, 100
FAULTS: tuple[Fault, ...] = ("kill", "power")
DATABASE_FAULTS: tuple[DatabaseFault, ...] = get_args(DatabaseFault)
#: The statements that a member sends from its start to its first commit.
STATEMENTS = {"connect", "BEGIN", "SET", "SELECT", "CREATE", "prepare", "INSERT", "COPY", "UPDATE", "COMMIT"}
STEPS = STATEMENTS | {f"{name} done" for name in STATEMENTS}


@functools.cache
def play(seeds: range) -> list[Outcome]:
    """The results of these schedules, which are played once."""
    return play_all(TableSchedule, seeds)


# -- random schedules


@pytest.mark.parametrize("seeds", everyday(SEEDS, SEEDS, more=LONG_SEEDS // 10, more_size=LONG_BLOCK), ids=str)
def test_table_has_each_message_once_in_every_schedule(seeds: range) -> None:
    play(seeds)


@one_alone
def test_table_schedules_are_not_empty() -> None:
    outcomes = play(range(SEEDS))
    assert {TableSchedule(seed).kind for seed in range(50)} == set(KINDS)
    assert all(outcome.rows > 10 and outcome.writes > 3 for outcome in outcomes)
    assert any(outcome.repeated for outcome in outcomes)  # faults do show
    assert {"now,", "crash-server", "freeze"} <= {event for outcome in outcomes for event in outcome.happened}
    assert TableSchedule(1).run() == outcomes[1]


# -- a fault at a chosen step


@one_alone
def test_crash_at_statements_loses_no_row() -> None:
    run = functools.partial(crash, steps="calls", make=TableWorld)
    assert len(steps_of(lambda number: run(number, FAULTS[number % 2]), range(5, MOST, 17))) > 1


@one_alone
def test_crash_at_an_await_loses_no_row_of_a_table() -> None:
    run = functools.partial(crash, steps="turns", make=TableWorld)
    assert len(steps_of(lambda number: run(number, FAULTS[number % 2]), range(9, MOST, 61))) > 0


@one_alone
def test_fault_of_the_database_at_statements_stores_each_row_once() -> None:
    assert len(steps_of(lambda number: disturb(number, DATABASE_FAULTS[number % 3]), range(21, MOST, 10))) > 1


@one_alone
def test_former_owner_stores_nothing_after_a_takeover_between_its_statements() -> None:
    names = steps_of(race, range(MOST))
    assert {"BEGIN done", "SELECT done", "COPY done", "UPDATE done", "COMMIT done"} <= set(names)


@one_alone
def test_takeover_from_a_member_that_is_stopped_for_good_during_a_transaction() -> None:
    assert stop_for_good(26)


@pytest.mark.long
def test_takeover_from_a_member_that_is_stopped_for_good_at_each_await() -> None:
    assert len(steps_of(lambda number: stop_for_good(number) or None, range(MOST))) > 50


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("fault", FAULTS)
def test_crash_at_each_statement_loses_no_row(fault: Fault, seed: int) -> None:
    assert set(steps_of(lambda number: crash(number, fault, "calls", seed, make=TableWorld), range(MOST))) == STEPS


@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS)
def test_crash_at_each_await_loses_no_row_of_a_table(fault: Fault) -> None:
    assert len(steps_of(lambda number: crash(number, fault, "turns", make=TableWorld), range(MOST))) > 50


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("fault", DATABASE_FAULTS)
def test_fault_of_the_database_at_each_statement_stores_each_row_once(fault: DatabaseFault, seed: int) -> None:
    assert set(steps_of(lambda number: disturb(number, fault, seed), range(MOST))) == STEPS


@pytest.mark.long
@pytest.mark.parametrize("stopped", ["BEGIN done", "SELECT done", "COPY", "UPDATE done", "COMMIT", "COMMIT done"])
def test_former_owner_stopped_at_each_statement_repeats_no_row(stopped: str) -> None:
    assert len(steps_of(lambda number: zombie(stopped, number, make=TableWorld), range(MOST))) > 20


# -- planted defects

#: Of each defect a fault at a step that shows it, and what it says. Another order of steps moves these
#: numbers: go through all of `crash`, `disturb` or `race` with the defect, and write down what fails.
FOUND_BY: dict[str, tuple[Callable[[], object], str]] = {
    "row_not_locked": (lambda: race(3), r"the position of t/0-0 is 104 after \[Row\(offset=104"),
    "epoch_not_raised": (lambda: race(0), r"the former owner: RowsOverlapError"),
    "epoch_not_checked": (lambda: race(0), r"the former owner: RowsOverlapError"),
    "rows_before_position": (lambda: disturb(46, "cut"), r"inner=0, .*\) after Row\(offset=0, inner=0"),
    "position_before_rows": (
        lambda: crash(46, "kill", "calls", make=TableWorld),
        r"position of t/0-0 is 104 after \[\]",
    ),
    "outcome_of_commit_forgotten": (lambda: disturb(45, "cut"), r"not within 60 s: the member has committed"),
    "overlap_stored_again": (lambda: disturb(47, "cut"), r"inner=0, .*\) after Row\(offset=0, inner=0"),
    "confirmed_before_commit": (lambda: disturb(47, "cut"), r"is committed up to 104 by a, but 0 was not handled"),
}


test_finds_a_planted_defect, test_finds_nothing_without_it, test_every_planted_defect_has_a_check = planted_tests(
    FOUND_BY, MUTATIONS
)
