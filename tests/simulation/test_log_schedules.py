"""Random schedules in which logs become other ones, for each way of coordination.

`LogFaults.log_changes` switches these faults on, in addition to all the others. They are played here alone, so that the
seeds of the other tests keep their schedules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.simulation.kafka_schedule import CoordinatedSchedule, FixedSchedule
from tests.simulation.log_faults import LogFaults
from tests.simulation.old_kafka_schedule import OldKafkaSchedule
from tests.simulation.playing import everyday, play_all
from tests.simulation.schedule import Schedule

pytestmark = pytest.mark.timeout(900)

#: Schedules of each way every day, on top of them with `-m long`, and in one test.
SCHEDULES, LONG, BLOCK = 10, 30, 10
SEEDS = everyday(SCHEDULES, BLOCK, more=LONG, more_size=BLOCK)


@pytest.mark.parametrize("seeds", SEEDS, ids=str)
def test_group_of_old_consumers_holds_its_invariants_in_every_schedule(seeds: range) -> None:
    play_all(OldKafkaSchedule, seeds)


@pytest.mark.parametrize(
    "schedule",
    [CoordinatedSchedule, FixedSchedule, OldKafkaSchedule, Schedule],
    ids=lambda schedule: schedule.__name__,
)
@pytest.mark.parametrize("seeds", SEEDS, ids=str)
def test_every_message_of_the_present_logs_is_delivered(
    schedule: Callable[[int], Any], seeds: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LogFaults, "log_changes", True)
    play_all(schedule, seeds)
