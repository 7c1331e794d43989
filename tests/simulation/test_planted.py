"""Each defect of `tests.simulation.planted`, put back, is found: by schedules that are known to find it.

What another order of random choices makes of a seed is another schedule. When these find nothing any more, say
`python -m tests.simulation.planted <name> --kind <kind>`, and write down what it tells.
"""

from __future__ import annotations

import pytest

from tests.simulation.planted import MUTATIONS, finding
from tests.simulation.schedule import Schedule

pytestmark = pytest.mark.timeout(900)

#: Of each defect the kind of schedule, and seeds of that kind that find it; one of them has to.
KNOWN: dict[str, tuple[str, tuple[int, ...]]] = {
    "drain_by_partition": ("large", (1,)),
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


@pytest.mark.parametrize("mutation", KNOWN)
def test_a_defect_that_is_put_back_is_found(mutation: str) -> None:
    kind, seeds = KNOWN[mutation]
    found = list(finding(mutation, seeds, kind=kind, at_least=1))
    assert found, f"{mutation} is not found by seeds {seeds} of kind {kind} any more"
    Schedule(found[0][0], kind).run()  # without the defect nothing is wrong


def test_what_is_known_is_planted() -> None:
    assert KNOWN.keys() <= MUTATIONS.keys()


@pytest.mark.long
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_random_schedules_find_each_defect(mutation: str) -> None:
    assert list(finding(mutation, range(2000), at_least=1))
