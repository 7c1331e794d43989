"""Each defect of `tests.simulation.planted`, put back, is found: by schedules that are known to find it, or by a test.

What another order of random choices makes of a seed is another schedule. When these find nothing any more, say
`python -m tests.simulation.planted <name> --kind <kind>`, and write down what it tells.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.simulation import test_handover as handover
from tests.simulation.planted import MUTATIONS, finding
from tests.simulation.schedule import Schedule

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.timeout(900)

#: Of each defect the kind of schedule, and seeds of that kind that find it; one of them has to.
KNOWN: dict[str, tuple[str, tuple[int, ...]]] = {
    "drain_by_partition": ("large", (2,)),
    "released_while_committed": ("churn", (5, 1)),
    "fence_by_owner_version": ("churn", (3, 1)),
    "fence_without_look": ("churn", (3, 1)),
    "latest_not_written": ("faulty", (3,)),
    "set_back_stays": ("mixed", (0, 2)),
    "no_lease": ("faulty", (0, 3)),
    "swallowed_cancellation": ("faulty", (1, 5)),
    "reads_anew": ("priced", (0, 3)),
    "no_settling": ("priced", (0, 10)),
    "first_address_only": ("calm", (0, 1)),
    "unreadable_topic_ends_snapshots": ("calm", (8, 9)),
    "moved_broker_kept": ("calm", (2, 10)),
}

#: Of each defect that needs one moment, which random times seldom hit, the test that does, and what it says.
DIRECTED: dict[str, tuple[Callable[[], None], str]] = {
    "no_fence": (
        handover.test_a_process_that_was_stopped_hands_over_nothing_once_its_lease_has_ended,
        r"a is handed events/0-0 at .*, which it does not own since .* \(timed out\)",
    ),
    "clock_stands_still": (
        handover.test_a_machine_that_slept_hands_over_nothing_once_the_lease_has_ended,
        r"a is handed events/0-0 at .*, which it does not own since .* \(timed out\)",
    ),
    "lease_told_once": (
        handover.test_each_end_of_a_lease_takes_what_handlers_have_in_hand,
        r"a has events/0-0 in hand still, without a session",
    ),
    "retries_forget_watches": (
        handover.test_a_member_that_waits_for_one_partition_hears_that_another_is_taken,
        r"a is handed events/0-0 at .*, which it does not own since .* \(taken\)",
    ),
}


@pytest.mark.parametrize("mutation", KNOWN)
def test_a_defect_that_is_put_back_is_found(mutation: str) -> None:
    kind, seeds = KNOWN[mutation]
    found = list(finding(mutation, seeds, kind=kind, at_least=1))
    assert found, f"{mutation} is not found by seeds {seeds} of kind {kind} any more"
    Schedule(found[0][0], kind).run()  # without the defect nothing is wrong


@pytest.mark.parametrize("mutation", DIRECTED)
def test_a_defect_that_is_put_back_fails_a_test_of_its_own(mutation: str) -> None:
    run, message = DIRECTED[mutation]
    with MUTATIONS[mutation](), pytest.raises(AssertionError, match=message):
        run()


def test_each_defect_is_found_in_one_way_or_the_other() -> None:
    assert {*KNOWN, *DIRECTED} == MUTATIONS.keys()


@pytest.mark.long
@pytest.mark.parametrize("mutation", KNOWN)
def test_random_schedules_find_each_defect(mutation: str) -> None:
    assert list(finding(mutation, range(2000), at_least=1))
