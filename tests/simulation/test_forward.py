"""The handler `forward`: nothing is lost, order is kept, and only what was not committed is repeated.

Faults at PRODUCE requests and crashes at awaits (`tests.simulation.forward_crashes`), and defects that these find
(`tests.simulation.planted_forward`). Every run takes some of the steps; `make test-long` takes all.
"""

from __future__ import annotations

from typing import get_args

import pytest

from consumerd.handlers.forward.settings import ForwardResume
from tests.simulation.forward_crashes import ForwardFault, disturb_forward
from tests.simulation.planted_forward import MUTATIONS
from tests.simulation.stepping import MOST, steps_of

pytestmark = pytest.mark.timeout(900)

FAULTS: tuple[ForwardFault, ...] = get_args(ForwardFault)
#: Turns of a process: more than requests.
MOST_TURNS = 1000


@pytest.mark.parametrize("resume", ForwardResume)
def test_target_has_each_message_in_order_when_requests_are_disturbed(resume: ForwardResume) -> None:
    names = steps_of(lambda number: disturb_forward(number, FAULTS[number % len(FAULTS)], resume), range(1, MOST, 3))
    assert set(names) == {"PRODUCE", "PRODUCE done"}


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("resume", ForwardResume)
def test_target_has_each_message_in_order_when_any_request_is_disturbed(
    resume: ForwardResume, fault: ForwardFault, seed: int
) -> None:
    assert len(steps_of(lambda number: disturb_forward(number, fault, resume, seed=seed), range(MOST))) > 10


@pytest.mark.long
@pytest.mark.parametrize("resume", ForwardResume)
def test_target_has_each_message_in_order_after_a_crash_at_each_await(resume: ForwardResume) -> None:
    found = steps_of(lambda number: disturb_forward(number, "kill", resume, "turns"), range(MOST_TURNS))
    assert len(found) > 100


#: Of each defect a step, a fault and the place of resumption that show it, and what it says.
FOUND_BY: dict[str, tuple[int, ForwardFault, ForwardResume, str]] = {
    "known_sent_again": (11, "kill", ForwardResume.TARGET, "repeated on the target"),
    "first_identity_found": (11, "kill", ForwardResume.TARGET, "repeated on the target"),
    "identity_of_another_cluster_found": (11, "kill", ForwardResume.TARGET, "not on the target"),
    "deliveries_not_confirmed": (10, "refused", ForwardResume.COMMITTED, "not on the target"),
    "acknowledged_when_sent": (10, "cut", ForwardResume.COMMITTED, "not on the target"),
    "renumbered_when_sent_again": (11, "cut", ForwardResume.COMMITTED, "repeated on the target"),
}


@pytest.mark.parametrize("mutation", FOUND_BY)
def test_finds_a_planted_defect_of_forward(mutation: str) -> None:
    number, fault, resume, message = FOUND_BY[mutation]
    with MUTATIONS[mutation](), pytest.raises(AssertionError, match=message):
        disturb_forward(number, fault, resume)


def test_every_planted_defect_of_forward_has_a_check() -> None:
    assert FOUND_BY.keys() == MUTATIONS.keys()
