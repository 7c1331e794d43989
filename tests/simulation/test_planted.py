"""Each defect of `tests.simulation.planted`, put back, is found: by schedules that are known to find it, or by a test.

What another order of random choices makes of a seed is another schedule. When these find nothing any more, say
`python -m tests.simulation.planted <name> --kind <kind>`, and write down what it tells.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation import test_groups as groups
from tests.simulation import test_handover as handover
from tests.simulation.defects import finding
from tests.simulation.planted import MUTATIONS
from tests.simulation.schedule import Schedule

pytestmark = pytest.mark.timeout(900)

#: Of each defect the kind of schedule, and seeds of that kind that find it; one of them has to.
KNOWN: dict[str, tuple[str, tuple[int, ...]]] = {
    "drain_by_partition": ("large", (2,)),
    "released_while_committed": ("churn", (8, 32)),
    "fence_by_owner_version": ("churn", (57, 70)),
    "fence_without_look": ("churn", (12, 25)),
    "latest_not_written": ("faulty", (3,)),
    "set_back_stays": ("mixed", (0, 2)),
    "no_lease": ("faulty", (0, 3)),
    "swallowed_cancellation": ("faulty", (1, 5)),
    "reads_anew": ("priced", (0, 3)),
    "no_settling": ("priced", (0, 10)),
    "first_address_only": ("calm", (0, 1)),
    "unreadable_topic_ends_snapshots": ("calm", (8, 9)),
    "moved_broker_kept": ("calm", (2, 10)),
    "released_before_drained": ("nodes", (0, 1)),
    "blocked_taken": ("nodes", (4, 5)),
    "blocked_not_claimed_again": ("churn", (206,)),
    "loss_ignored": ("faulty", (0, 1)),
    "never_reconciles": ("nodes", (0, 5)),
    "id_of_former_session_adopted": ("nodes", (0, 1)),
    "missing_id_overlooked": ("nodes", (0, 5)),
}

#: Of each defect that needs one moment, which random times seldom hit, the test that does, and what it says.
DIRECTED: dict[str, tuple[Callable[[], None], str]] = {
    "no_fence": (
        handover.test_suspended_process_delivers_nothing_after_its_lease_ended,
        r"a is handed events/0-0 at .*, which it does not own since .* \(timed out\)",
    ),
    "clock_stands_still": (
        handover.test_suspended_machine_delivers_nothing_after_the_lease_ended,
        r"a is handed events/0-0 at .*, which it does not own since .* \(timed out\)",
    ),
    "lease_told_once": (
        handover.test_each_end_of_a_lease_cancels_batches_of_handlers,
        r"a has events/0-0 in hand still, without a session",
    ),
    "retries_forget_watches": (
        handover.test_member_that_waits_for_one_partition_notices_the_loss_of_another,
        r"a is handed events/0-0 at .*, which it does not own since .* \(taken\)",
    ),
    "never_nudges": (
        groups.test_nudge_wakes_a_jvm_consumer_that_gave_up,
        r"not within 20 s: all partitions are owned",
    ),
}


@pytest.mark.parametrize("mutation", KNOWN)
def test_simulation_finds_a_planted_defect(mutation: str) -> None:
    kind, seeds = KNOWN[mutation]
    found = list(finding(MUTATIONS[mutation], Schedule, seeds, kind=kind, at_least=1))
    assert found, f"{mutation} is not found by seeds {seeds} of kind {kind} any more"
    Schedule(found[0][0], kind).run()  # without the defect nothing is wrong


@pytest.mark.parametrize("mutation", DIRECTED)
def test_planted_defect_fails_its_own_test(mutation: str) -> None:
    run, message = DIRECTED[mutation]
    with MUTATIONS[mutation](), pytest.raises(AssertionError, match=message):
        run()


def test_every_planted_defect_has_a_check() -> None:
    assert {*KNOWN, *DIRECTED} == MUTATIONS.keys()


@pytest.mark.long
@pytest.mark.parametrize("mutation", KNOWN)
def test_random_schedules_find_each_planted_defect(mutation: str) -> None:
    assert list(finding(MUTATIONS[mutation], Schedule, range(2000), at_least=1))
