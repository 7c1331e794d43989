"""Random schedules of groups that ZooKeeper coordinates beside brokers of 0.9 and later.

Strategy: the events of brokers and members are those of `tests.simulation.kafka_schedule`, in another world; faults of
ZooKeeper itself are played by `tests.simulation.schedule`, whose members differ in nothing but the brokers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.simulation.account import HandOver
from tests.simulation.kafka_schedule import CoordinatedSchedule
from tests.simulation.old_kafka_world import OldKafkaWorld
from tests.simulation.schedule import TIMES_OUT


class OldKafkaSchedule(CoordinatedSchedule):
    """ZooKeeper coordinates the group, and has its offsets."""

    tests = "tests/simulation/test_log_schedules.py"
    world: OldKafkaWorld

    def __init__(self, seed: int, kind: str | None = None) -> None:
        super().__init__(seed, kind)
        self.settings["group"] = {"assignor": self.settings["group"]["assignor"]}

    def make_world(self) -> OldKafkaWorld:
        return OldKafkaWorld(self.seed, brokers=self.brokers, era=self.era, round_trip=self.round_trip)

    def _steps(self) -> list[tuple[float, Callable[[], None]]]:
        absent = (self._move_coordinator, self._no_coordinator)
        return [(weight, step) for weight, step in super()._steps() if step not in absent]

    def _fault(self, what: str, names: Any, seconds: float = 0.0) -> None:
        super()._fault(what, names, seconds)
        for name in (None,) if names is None else names:
            self.world.account.disturbed(name, seconds + TIMES_OUT)

    def _is_explained(self, first: HandOver, again: HandOver) -> bool:
        return not again.owned or super()._is_explained(first, again)

    @property
    def _seen_when_stopped(self) -> bool:
        return True

    @property
    def _seen_afterwards(self) -> bool:
        return True
