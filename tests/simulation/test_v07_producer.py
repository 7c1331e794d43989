"""The producers for brokers of 0.7: what they promise is so, whatever happens at a request.

Faults at requests (`tests.simulation.v07_producer_crashes`), and defects that these have to find
(`tests.simulation.planted_v07_producer`). Every run takes some of the requests; `make test-long` takes all.
"""

from __future__ import annotations

from typing import get_args

import pytest

from tests.simulation.defects import planted_tests
from tests.simulation.planted_v07_producer import MUTATIONS
from tests.simulation.stepping import MOST, steps_of
from tests.simulation.v07_producer_crashes import V07Fault, V07Mode, disturb_v07_producer

pytestmark = pytest.mark.timeout(900)

FAULTS: tuple[V07Fault, ...] = get_args(V07Fault)
MODES = pytest.mark.parametrize("mode", get_args(V07Mode))


@MODES
def test_logs_are_as_told_when_requests_are_disturbed(mode: V07Mode) -> None:
    names = steps_of(lambda number: disturb_v07_producer(number, FAULTS[number % 4], mode), range(1, MOST, 9))
    assert len(set(names)) > 1


@pytest.mark.long
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("fault", FAULTS)
@MODES
def test_logs_are_as_told_when_any_request_is_disturbed(mode: V07Mode, fault: V07Fault, seed: int) -> None:
    assert len(steps_of(lambda number: disturb_v07_producer(number, fault, mode, seed), range(MOST))) > 40


#: Of each defect a step, a fault and a mode that show it, and what it says.
FOUND_BY: dict[str, tuple[int, V07Fault, V07Mode, str]] = {
    "not_confirmed": (4, "cut", "sync", "delivered, but not in the logs"),
    "end_of_connection_ignored": (4, "cut", "sync", "delivered, but not in the logs"),
    "sent_again_behind_the_next": (0, "cut", "sync", "is out of order"),
    "uncertain_called_unsent": (4, "broker away", "sync", "refused, but in the logs"),
    "lost_connection_forgotten": (1, "cut", "unconfirmed", "delivered, but not in the logs"),
    "failures_not_reported": (4, "broker away", "async", "delivered, but not in the logs"),
    "flushed_without_the_queue": (4, "kill", "async", "delivered, but not in the logs"),
    "closed_without_the_queue": (4, "cut", "async", "delivered, but not in the logs"),
}


test_finds_a_planted_defect, test_finds_nothing_without_it, test_every_planted_defect_has_a_check = planted_tests(
    FOUND_BY, MUTATIONS, disturb_v07_producer
)


def test_finds_a_batch_that_is_called_unsent_and_stored_twice() -> None:
    with MUTATIONS["uncertain_called_unsent"](), pytest.raises(AssertionError, match="in the logs twice"):
        disturb_v07_producer(4, "cut", "once")
