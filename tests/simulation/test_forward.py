"""Daemons with the handler `forward`: nothing is lost or misplaced through faults of the target, kills and rebalances.

Faults at PRODUCE requests and at awaits (`tests.simulation.forward_crashes`), and defects that these find
(`tests.simulation.planted_forward`). Every run takes some of the steps; `make test-long` takes all.
"""

from __future__ import annotations

from typing import get_args

import pytest

from consumerd.handlers.forward.settings import ForwardResume
from tests.simulation.copy_crashes import CopySteps, MemberFault
from tests.simulation.defects import planted_tests
from tests.simulation.forward_crashes import ClusterFault, disturb_forwarding
from tests.simulation.planted_forward import MUTATIONS
from tests.simulation.stepping import MOST, steps_of

pytestmark = pytest.mark.timeout(1800)

CLUSTER_FAULTS: tuple[ClusterFault, ...] = get_args(ClusterFault)
MEMBER_FAULTS: tuple[MemberFault, ...] = get_args(MemberFault)
#: Turns of the first daemon from its first message on: fewer than this.
MOST_TURNS = 2000
RESUMES = pytest.mark.parametrize("resume", ForwardResume)


@RESUMES
def test_target_has_each_message_in_order_when_requests_are_disturbed(resume: ForwardResume) -> None:
    faults: list[ClusterFault | MemberFault] = [*CLUSTER_FAULTS, "kill"]
    names = steps_of(lambda number: disturb_forwarding(number, faults[number % 5], resume), range(1, MOST, 7))
    assert set(names) == {"PRODUCE", "PRODUCE done"}


@RESUMES
def test_target_has_each_message_when_a_daemon_ends_or_another_one_joins(resume: ForwardResume) -> None:
    run = disturb_forwarding
    first = list(ForwardResume).index(resume)
    found = steps_of(
        lambda number: run(number, MEMBER_FAULTS[number % 3], resume, "turns"), range(first, MOST_TURNS, 149)
    )
    assert len(found) > 2


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("fault", [*CLUSTER_FAULTS, "kill"])
@RESUMES
def test_target_has_each_message_in_order_when_any_request_is_disturbed(
    resume: ForwardResume, fault: ClusterFault, seed: int
) -> None:
    assert len(steps_of(lambda number: disturb_forwarding(number, fault, resume, seed=seed), range(MOST))) > 50


@pytest.mark.long
@pytest.mark.parametrize("fault", MEMBER_FAULTS)
@RESUMES
def test_target_has_each_message_when_a_daemon_ends_at_any_await(resume: ForwardResume, fault: MemberFault) -> None:
    run = disturb_forwarding
    assert len(steps_of(lambda number: run(number, fault, resume, "turns"), range(MOST_TURNS))) > 400


COMMITTED, TARGET = ForwardResume.COMMITTED, ForwardResume.TARGET
#: Of each defect a step, a fault, the place of resumption and the kind of step that show it, and what it says.
FOUND_BY: dict[str, tuple[int, ClusterFault | MemberFault, ForwardResume, CopySteps, str]] = {
    "known_sent_again": (13, "kill", TARGET, "requests", "repeated on the target without a reason"),
    "first_identity_found": (13, "kill", TARGET, "requests", "not within 60 s: all is committed"),
    "identity_of_another_cluster_found": (13, "kill", TARGET, "requests", "not within 60 s: all is committed"),
    "deliveries_not_confirmed": (5, "refused", COMMITTED, "requests", "was not handled"),
    "acknowledged_when_sent": (12, "cut", COMMITTED, "requests", "was not handled"),
    "renumbered_when_sent_again": (48, "cut", COMMITTED, "requests", "repeated on the target without a reason"),
    "marked_before_acknowledged": (12, "cut", COMMITTED, "requests", "was not handled"),
    "target_not_asked": (13, "kill", TARGET, "requests", "repeated on the target without a reason"),
    "cancelled_at_once": (65, "stop", COMMITTED, "turns", "repeated on the target without a reason"),
    "all_marked_when_cancelled": (65, "stop", COMMITTED, "turns", "was not handled"),
}


test_finds_a_planted_defect, test_finds_nothing_without_it, test_every_planted_defect_has_a_check = planted_tests(
    FOUND_BY, MUTATIONS, disturb_forwarding
)
