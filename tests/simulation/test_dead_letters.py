"""Dead letters in a file that members share, on a disk that forgets: none is lost, and repeats need a crash.

Crashes at each call to the disk and each `await`, and stops between the calls of another member
(`tests.simulation.letter_crashes`), and defects that these have to find (`tests.simulation.planted_letters`). Every run
takes some of the steps; `make test-long` takes all.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation.defects import planted_tests
from tests.simulation.letter_crashes import crash_of_letters, stop_of_letters
from tests.simulation.planted_letters import MUTATIONS
from tests.simulation.sink_crashes import Fault
from tests.simulation.stepping import MOST, steps_of

pytestmark = pytest.mark.timeout(900)

FAULTS: tuple[Fault, ...] = ("kill", "power")
#: The calls that a member makes until all is committed, and a thread's beginning.
CALLS = {"thread", "stat", "list", "open", "write", "fsync", "flock", "rename"}


def test_crash_at_calls_to_the_disk_loses_no_letter() -> None:
    run = crash_of_letters
    assert len(steps_of(lambda number: run(number, FAULTS[number % 2], "calls"), range(4, MOST, 25))) > 1


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("fault", FAULTS)
def test_crash_at_each_call_to_the_disk_loses_no_letter(fault: Fault, seed: int) -> None:
    assert set(steps_of(lambda number: crash_of_letters(number, fault, "calls", seed), range(MOST))) >= CALLS


@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS)
def test_crash_at_awaits_loses_no_letter(fault: Fault) -> None:
    assert len(steps_of(lambda number: crash_of_letters(number, fault, "turns"), range(0, 3000, 3))) > 50


def test_member_that_stops_between_the_calls_of_others_loses_no_letter() -> None:
    assert len(steps_of(stop_of_letters, range(18, MOST, 36))) > 1


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_member_that_stops_at_any_call_between_those_of_others_loses_no_letter(seed: int) -> None:
    assert set(steps_of(lambda number: stop_of_letters(number, seed), range(MOST))) >= CALLS


#: Of each defect a crash that shows it or, if it is one of the lock that members share, a stop before a call: the step,
#: the fault and the seed, and what it says.
FOUND_BY: dict[str, tuple[Any, ...]] = {
    "letter_not_synced": (crash_of_letters, 8, "kill", "calls", 0, "without a letter"),
    "torn_line_continued": (crash_of_letters, 11, "power", "calls", 1, "without a letter"),
    "name_not_synced": (crash_of_letters, 8, "kill", "calls", 0, "without a letter"),
    "folders_not_synced": (crash_of_letters, 10, "kill", "calls", 0, "without a letter"),
    "number_taken_twice": (crash_of_letters, 40, "kill", "calls", 0, "without a letter"),
    "committed_before_confirmed": (crash_of_letters, 8, "kill", "calls", 0, "was not handled"),
    "not_locked": (stop_of_letters, 40, 1, "without a letter"),
    "locked_while_written_alone": (stop_of_letters, 42, 1, "without a letter"),
    "rename_not_noticed": (stop_of_letters, 15, 0, "b failed"),
}
test_finds_a_planted_defect, test_finds_nothing_without_it, test_every_planted_defect_has_a_check = planted_tests(
    FOUND_BY, MUTATIONS
)
