"""Members that store messages with the sink `files` on a disk that forgets: each message is stored once, in order.

Random schedules (`tests.simulation.sink_schedule`), crashes at each call to the disk and each `await`
(`tests.simulation.sink_crashes`), and defects that both have to find (`tests.simulation.planted_sinks`). Every run
takes each call to the disk; `make test-long` takes more losses of power, each `await`, and as many more schedules as a
tenth of `CONSUMERD_LONG_SEEDS`.
`CONSUMERD_SEED=<seed>` plays that one alone.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from consumerd.base.errors import HandlerFailedError
from tests.simulation.defects import finding, planted_tests
from tests.simulation.planted_sinks import MUTATIONS
from tests.simulation.playing import LONG_SEEDS, everyday, one_alone, play_all
from tests.simulation.sink_crashes import FOLDER_LOST, Fault, Story, crash, zombie
from tests.simulation.sink_schedule import KINDS, Outcome, SinkSchedule
from tests.simulation.sink_world import SinkWorld
from tests.simulation.stepping import MOST, steps_of

pytestmark = pytest.mark.timeout(900)

#: Schedules in every test run, and in one test of the long ones.
SEEDS, LONG_BLOCK = 5, 100
FAULTS: tuple[Fault, ...] = ("kill", "power")
#: The calls that a member makes from its start to its first commit, and a thread's beginning.
CALLS = {"thread", "stat", "mkdir", "list", "open", "write", "fsync", "rename"}


@functools.cache
def play(seeds: range) -> list[Outcome]:
    """The results of these schedules, which are played once."""
    return play_all(SinkSchedule, seeds)


# -- random schedules


@pytest.mark.parametrize("seeds", everyday(SEEDS, SEEDS, more=LONG_SEEDS // 10, more_size=LONG_BLOCK), ids=str)
def test_files_have_each_message_once_in_every_schedule(seeds: range) -> None:
    play(seeds)


@one_alone
def test_sink_schedules_are_not_empty() -> None:
    outcomes = play(range(SEEDS)) + play(range(7, 8))
    assert {SinkSchedule(seed).kind for seed in range(50)} == set(KINDS)
    assert all(outcome.rows > 10 and outcome.writes > 3 for outcome in outcomes)
    assert any(outcome.repeated for outcome in outcomes)  # faults do show
    assert any(outcome.members > 2 for outcome in outcomes)
    assert {"now,", "power"} <= {event for outcome in outcomes for event in outcome.happened}
    assert SinkSchedule(0).run() == outcomes[0]


# -- a crash at a chosen step


@one_alone
def test_crash_at_an_await_loses_no_row() -> None:
    assert len(steps_of(lambda number: crash(number, FAULTS[number % 2], "turns"), range(2, MOST, 19))) > 3


#: The loss of power of seed 4 takes also a name that a takeover found and did not sync.
@one_alone
@pytest.mark.parametrize(
    ("fault", "seed"),
    [
        ("power", 0),
        ("kill", 4),
        *(pytest.param(fault, seed, marks=pytest.mark.long) for seed in range(1, 4) for fault in FAULTS),
    ],
)
def test_crash_at_each_call_to_the_disk_loses_no_row(fault: Fault, seed: int) -> None:
    assert set(steps_of(lambda number: crash(number, fault, "calls", seed), range(MOST))) == CALLS


@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS)
def test_crash_at_each_await_loses_no_row(fault: Fault) -> None:
    assert len(steps_of(lambda number: crash(number, fault, "turns"), range(MOST))) > 50


@one_alone
@pytest.mark.parametrize(
    "stopped", ["rename", *(pytest.param(call, marks=pytest.mark.long) for call in ("open", "write", "fsync"))]
)
def test_former_owner_stopped_before_each_call_repeats_no_row(stopped: str) -> None:
    seen = set(steps_of(lambda number: zombie(stopped, number), range(MOST)))
    assert {"list", "rename", "rmdir", "open", "write", "fsync"} <= seen


# -- a directory that is not there


@one_alone
def test_stops_where_the_directory_is_empty_though_offsets_are_committed() -> None:
    with SinkWorld() as world:
        story = Story(world)
        first = story.join("a")
        story.until(lambda: story.committed, "the first member has committed")
        first.terminate()
        world.until_ended(first)
        stored = world.read()
        assert sum(map(len, stored.values())) > 0
        world.directory = Path("/srv/unmounted")
        world.produce_all()
        second = story.join("b")
        world.until_ended(second)
        assert isinstance(second.failure, HandlerFailedError)
        assert re.match(r"offset \d+ of t/0-0 is committed, but the directory has no folder t: ", str(second.failure))
        assert (story.committed, world.read()) == (False, {})


# -- planted defects

#: Of each defect a crash at a step, or a schedule, that shows it, and what it says. Another order of
#: steps moves these numbers: go through all of `crash` or `zombie` with the defect, and write down what fails.
FOUND_BY: dict[str, tuple[Callable[[], object], str]] = {
    "renamed_before_synced": (lambda: crash(42, "power", "calls", 19), r"is not a whole file of rows"),
    "never_synced": (lambda: crash(41, "power", "calls"), r"is not a whole file of rows"),
    "names_not_synced": (lambda: crash(5, "kill", "calls"), FOLDER_LOST),
    "takeover_not_synced": (
        lambda: [crash(number, "kill", "calls", 4) for number in (42, 43)],
        r"after None; expected Row\(offset=0",
    ),
    "found_directory_not_synced": (
        lambda: [crash(number, "kill", "calls") for number in (5, 6)],
        FOLDER_LOST,
    ),
    "written_in_place": (lambda: crash(39, "kill", "calls"), r"is not a whole file of rows"),
    "former_owner_not_fenced": (lambda: zombie("rename", 17), r"inner=0, .*\) after Row\(offset=0, inner=4"),
    "looked_before_fenced": (lambda: zombie("rename", 10), r"inner=0, .*\) after Row\(offset=0, inner=4"),
    "thread_left_behind": (lambda: SinkSchedule(272, "calm").run(), r"has ended, but its thread has not"),
}

#: Of those that random schedules find, too, a kind. `python -m tests.simulation.planted_sinks` says which seeds.
KINDS_FOR = {
    "renamed_before_synced": "power",
    "never_synced": "power",
    "names_not_synced": "power",
    "written_in_place": "kills",
    "former_owner_not_fenced": "zombies",
    "thread_left_behind": "calm",
}


test_finds_a_planted_defect, test_finds_nothing_without_it, test_every_planted_defect_has_a_check = planted_tests(
    FOUND_BY, MUTATIONS
)


@pytest.mark.long
@pytest.mark.parametrize("mutation", KINDS_FOR)
def test_random_schedules_find_a_planted_defect_of_sinks(mutation: str) -> None:
    assert list(finding(MUTATIONS[mutation], SinkSchedule, range(1000), kind=KINDS_FOR[mutation], at_least=1))
