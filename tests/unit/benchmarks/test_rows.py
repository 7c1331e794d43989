"""How benchmarks with several subjects of ours make rows of their rounds."""

from __future__ import annotations

import pytest

from benchmarks import broker, kafka, surroundings
from benchmarks.kafka_clients import OURS, OURS_MESSAGES
from benchmarks.kafka_job import Result

CODEC = surroundings.codec()


def rounds() -> list[dict[str, Result]]:
    def result(wall: float, cpu: float) -> Result:
        return Result(messages=1_000_000, bytes=1, wall=wall, cpu=cpu)

    slow = {OURS: result(2.0, 1.0), OURS_MESSAGES: result(4.0, 2.0), "aiokafka": result(8.0, 3.0)}
    fast = {OURS: result(1.0, 0.5), OURS_MESSAGES: result(2.0, 1.0), "aiokafka": result(4.0, 1.5)}
    return [slow, fast, fast]


def test_clients_stand_beside_both_ways_of_ours() -> None:
    ratios = {(row.case, row.unit): row.ratio for row in kafka.rows("consume", rounds()) if row.subject == "aiokafka"}
    assert ratios == {
        (f"consume, {CODEC}", "M msg/s"): 4.0,
        (f"consume, {CODEC}", "M msg/cpu-s"): 3.0,
        (f"consume, messages, {CODEC}", "M msg/s"): 2.0,
        (f"consume, messages, {CODEC}", "M msg/cpu-s"): 1.5,
    }


def test_promises_are_of_processor_time() -> None:
    found = kafka.verdict(kafka.rows("consume", rounds()))
    assert len(found) == 2
    assert all("by CPU" in sentence and kept for sentence, kept in found.items())


def test_each_loop_of_the_broker_stands_beside_the_blocking_one() -> None:
    figures = {
        "fetch 1 MiB": {"blocking": [4e8, 2e8], "asyncio": [1e8, 1e8], "uvloop": [2e8, 1e8]},
        "round trips": {"asyncio": [10.0, 30.0], "uvloop": [40.0, 40.0]},
    }
    rows = broker.results(100, figures)
    assert [(row.case, row.ratio) for row in rows if row.subject == "blocking"] == [
        ("fetch 1 MiB, 100 B, asyncio", 0.375),
        ("fetch 1 MiB, 100 B, uvloop", 0.5),
    ]
    assert [row.value for row in rows if row.case.startswith("round trips")] == [20.0, 40.0]
    assert next(row.value for row in rows if row.subject == "blocking") == pytest.approx(3e8 / 110 / 1e6)


def test_figures_of_processor_time_are_of_the_same_cases() -> None:
    figures = {
        "produce, no flush": {"blocking": [8e8], "asyncio": [2e8], "uvloop": [4e8]},
        "round trips": {"asyncio": [9.0]},
    }
    clock, processor = broker.results(1000, figures), broker.results(1000, figures, broker.PROCESSOR)
    cases = [(row.case, row.subject, row.ratio) for row in processor]
    assert cases == [(row.case, row.subject, row.ratio) for row in clock]
    assert {row.unit for row in processor} == {"M msg/cpu-s", "/cpu-s"}
    assert {row.unit for row in clock} == {"M msg/s", "/s"}
