"""The mirror: nothing is lost, order and places are kept, and nothing is committed before the target confirmed it.

Faults at requests to the target and at awaits (`tests.simulation.mirror_crashes`), and defects that these find
(`tests.simulation.planted_mirror`). Every run takes some of the steps; `make test-long` takes all.
"""

from __future__ import annotations

from typing import get_args

import pytest

from tests.simulation.copy_crashes import MemberFault
from tests.simulation.defects import planted_tests
from tests.simulation.mirror_crashes import TargetFault, disturb_mirror
from tests.simulation.planted_mirror import MUTATIONS
from tests.simulation.stepping import MOST, steps_of

pytestmark = pytest.mark.timeout(900)

TARGET_FAULTS: tuple[TargetFault, ...] = get_args(TargetFault)
MEMBER_FAULTS: tuple[MemberFault, ...] = get_args(MemberFault)
#: Turns of the first mirror from its first message on: fewer than this.
MOST_TURNS = 1000
REQUESTS = {"ProduceRequest", "FetchRequest"}


def test_target_has_each_message_in_order_when_requests_are_disturbed() -> None:
    names = steps_of(lambda number: disturb_mirror(number, TARGET_FAULTS[number % 3]), range(1, MOST, 23))
    assert {name.removesuffix(" done") for name in names} == REQUESTS


def test_target_has_each_message_when_a_mirror_ends_or_another_one_joins() -> None:
    run = disturb_mirror
    found = steps_of(lambda number: run(number, MEMBER_FAULTS[number % 3], "turns"), range(0, MOST_TURNS, 70))
    assert len(found) > 3


@pytest.mark.long
@pytest.mark.parametrize("verify", [False, True], ids=["confirmed", "verified"])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("fault", [*TARGET_FAULTS, "kill"])
def test_target_has_each_message_in_order_when_any_request_is_disturbed(
    fault: TargetFault, seed: int, verify: bool
) -> None:
    found = steps_of(lambda number: disturb_mirror(number, fault, seed=seed, verify=verify), range(2 * MOST))
    assert len(found) > 50


@pytest.mark.long
@pytest.mark.parametrize("fault", MEMBER_FAULTS)
def test_target_has_each_message_when_a_mirror_ends_at_any_await(fault: MemberFault) -> None:
    assert len(steps_of(lambda number: disturb_mirror(number, fault, "turns"), range(MOST_TURNS))) > 200


#: Of each defect a step and a fault at a request that show it, and what it says.
FOUND_BY: dict[str, tuple[int, TargetFault, str]] = {
    "not_confirmed": (6, "cut", "was not handled"),
    "end_of_connection_ignored": (6, "cut", "was not handled"),
    "sent_again_behind_the_next": (6, "cut", "is out of order"),
    "marked_before_sent": (6, "cut", "was not handled"),
    "marked_when_all_is_sent": (12, "broker restarts", "repeated on the target without a reason"),
    "placed_by_turns": (6, "cut", "instead of"),
    "topic_not_made": (6, "cut", "instead of"),
}


test_finds_a_planted_defect, test_finds_nothing_without_it, test_every_planted_defect_has_a_check = planted_tests(
    FOUND_BY, MUTATIONS, disturb_mirror
)
