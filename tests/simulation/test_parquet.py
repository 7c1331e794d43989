"""Members that store messages with the sink `parquet` on a disk that forgets: each message is stored once, in order.

Crashes at each call to the disk and each `await` (`tests.simulation.sink_crashes`), random schedules
(`tests.simulation.parquet_world`), and defects that these have to find (`tests.simulation.planted_parquet`). Every run
takes some of the steps; `make test-long` takes all.
"""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow.parquet")

from collections.abc import Callable

from tests.simulation.defects import planted_tests
from tests.simulation.parquet_world import ParquetSchedule, ParquetWorld
from tests.simulation.planted_parquet import MUTATIONS
from tests.simulation.playing import play_all
from tests.simulation.sink_crashes import Fault, Steps, crash, zombie
from tests.simulation.stepping import MOST, steps_of

pytestmark = pytest.mark.timeout(900)

FAULTS: tuple[Fault, ...] = ("kill", "power")
#: The calls that a member makes from its start to its first commit, and a thread's beginning.
CALLS = {"thread", "stat", "mkdir", "list", "open", "write", "fsync", "rename"}


def crashed(number: int, fault: Fault, steps: Steps = "calls", seed: int = 0) -> str | None:
    """As `crash`."""
    return crash(number, fault, steps, seed, make=ParquetWorld)


def thawed(number: int, stopped: str = "rename") -> str | None:
    """As `zombie`."""
    return zombie(stopped, number, make=ParquetWorld)


def test_crash_at_calls_to_the_disk_loses_no_row() -> None:
    assert len(steps_of(lambda number: crashed(number, FAULTS[number % 2]), range(2, MOST, 23))) > 1


def test_former_owner_that_resumes_repeats_no_row() -> None:
    assert len(steps_of(thawed, range(7, MOST, 29))) > 0


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("fault", FAULTS)
def test_crash_at_each_call_to_the_disk_loses_no_row(fault: Fault, seed: int) -> None:
    assert set(steps_of(lambda number: crashed(number, fault, "calls", seed), range(MOST))) == CALLS


@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS)
def test_crash_at_each_await_loses_no_row(fault: Fault) -> None:
    assert len(steps_of(lambda number: crashed(number, fault, "turns"), range(MOST))) > 50


@pytest.mark.long
@pytest.mark.parametrize("stopped", ["open", "write", "fsync", "rename"])
def test_former_owner_stopped_before_each_call_repeats_no_row(stopped: str) -> None:
    seen = set(steps_of(lambda number: thawed(number, stopped), range(MOST)))
    assert {"list", "rename", "rmdir", "open", "write", "fsync"} <= seen


@pytest.mark.long
def test_parquet_files_have_each_message_once_in_random_schedules() -> None:
    play_all(ParquetSchedule, range(40))


#: Of each defect of its own a crash at a step, or a schedule, that shows it, and what it says. Those of the disk and of
#: takeovers are in code that it shares with the sink `files`, whose tests find them.
FOUND_BY: dict[str, tuple[Callable[[], object], str]] = {
    "footer_left_out": (lambda: crashed(16, "kill"), r"is not a whole file of rows"),
    "part_kept_when_cancelled": (lambda: ParquetSchedule(6, "zombies").run(), r"is not a whole file of rows"),
    "first_group_alone": (lambda: crashed(16, "kill"), r"after Row\(offset=0, inner=1"),
}
test_finds_a_planted_defect, test_finds_nothing_without_it, test_every_planted_defect_has_a_check = planted_tests(
    FOUND_BY, MUTATIONS, long=["part_kept_when_cancelled"]
)
