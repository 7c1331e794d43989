"""The producer for brokers of 0.8 and later: what it acknowledges is in the logs, in order, and once with idempotence.

Faults at PRODUCE requests (`tests.simulation.producer_crashes`), and defects that these have to find
(`tests.simulation.planted_producer`). Every run takes some of the requests; `make test-long` takes all.
"""

from __future__ import annotations

from typing import get_args

import pytest

from tests.simulation.defects import planted_tests
from tests.simulation.kafka_broker import PRODUCER_ERAS, Era
from tests.simulation.planted_producer import MUTATIONS
from tests.simulation.producer_crashes import ProducerFault, disturb_producer
from tests.simulation.stepping import MOST, steps_of

pytestmark = pytest.mark.timeout(900)

FAULTS: tuple[ProducerFault, ...] = get_args(ProducerFault)
ERAS = pytest.mark.parametrize("era", PRODUCER_ERAS, ids=lambda era: era.name)


@ERAS
def test_keeps_acknowledged_messages_in_order_when_requests_are_disturbed(era: Era) -> None:
    names = steps_of(lambda number: disturb_producer(number, FAULTS[number % 4], era=era), range(1, MOST, 9))
    assert set(names) == {"PRODUCE", "PRODUCE done"}


@pytest.mark.long
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("fault", FAULTS)
@ERAS
def test_keeps_acknowledged_messages_in_order_when_any_request_is_disturbed(
    era: Era, fault: ProducerFault, seed: int
) -> None:
    assert len(steps_of(lambda number: disturb_producer(number, fault, era=era, seed=seed), range(MOST))) > 10


@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS)
def test_keeps_acknowledged_messages_in_order_without_idempotence(fault: ProducerFault) -> None:
    assert len(steps_of(lambda number: disturb_producer(number, fault, idempotent=False), range(MOST))) > 10


#: Of each defect a step and a fault that show it, and what it says.
FOUND_BY: dict[str, tuple[int, ProducerFault, str]] = {
    "renumbered_when_sent_again": (7, "cut", "has messages twice"),
    "next_batch_first": (6, "cut", "is out of order"),
    "acknowledged_when_sent": (6, "cut", "acknowledged, but not in"),
    "refusal_not_read": (6, "leader moves", "acknowledged, but not in"),
}


test_finds_a_planted_defect, test_finds_nothing_without_it, test_every_planted_defect_has_a_check = planted_tests(
    FOUND_BY, MUTATIONS, disturb_producer
)
