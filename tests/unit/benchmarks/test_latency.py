from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections import Counter
from typing import Any

import pytest

from benchmarks.idle import rows_of as idle_rows_of
from benchmarks.latency import ROWS, Row, parse_row, rows_of, sending
from benchmarks.latency_clients import QUANTILES, SIZE, Taker, message, quantiles
from benchmarks.race import OURS
from benchmarks.waiting import V08, load


def test_a_run_is_reported_with_its_last_message() -> None:
    reports: list[str] = []
    taker = Taker(reports.append)
    now = time.monotonic_ns()
    taker.take(message(1, 2, now - 3_000_000))
    taker.take(message(2, 1, now))
    taker.take(memoryview(message(1, 2, now - 5_000_000_000)))
    second, first = map(json.loads, reports)
    assert (second["run"], second["messages"]) == (2, 1)
    assert (first["run"], first["messages"]) == (1, 2)
    assert 3 <= first["quantiles"][0] < 2000 < 5000 <= first["quantiles"][-1]


def test_messages_have_100_bytes() -> None:
    assert len(message(255, 4_000_000_000, 1 << 62)) == SIZE == 100


def test_quantiles_are_of_the_nearest_rank() -> None:
    found = dict(zip(QUANTILES, quantiles([n * 1_000_000 for n in range(1, 101)]), strict=True))
    assert [found[part] for part in (0.0, 0.01, 0.5, 0.99, 1.0)] == [1, 1, 50, 99, 100]
    assert quantiles([7_000_000]) == [7.0] * len(QUANTILES)


def test_rows_are_parsed_by_their_short_names() -> None:
    assert parse_row("200/8") == Row("0.8+", 8, 200)
    assert parse_row("0.7:5/1") == Row("0.7", 1, 5)
    assert parse_row("send") is None
    assert parse_row("5/1000") in ROWS
    assert len({row.case for row in ROWS}) == len(ROWS) == 18


@pytest.mark.parametrize("text", ["", "5", "0/8", "5/0", "0.6:5/8", "5/8 "])
def test_rejects_other_rows(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="neither send nor"):
        parse_row(text)


@pytest.mark.parametrize("rate", [500, 5_000])
async def test_each_of_several_readers_gets_its_messages(rate: float) -> None:
    class Noting:
        def __init__(self) -> None:
            self.got: list[tuple[str, int, int]] = []

        async def produce(self, topic: str, messages: dict[int, list[bytes]]) -> None:
            self.got += [(topic, each[0], partition) for partition, found in messages.items() for each in found]

    stage = Noting()
    await load(stage, [("a", 3), ("b", 4)], 8, rate, 60)  # type: ignore[arg-type]
    assert Counter((topic, run) for topic, run, _ in stage.got) == {("a", 3): 60, ("b", 4): 60}
    assert {partition for *_, partition in stage.got} == set(range(8))
    assert {topic for topic, *_ in stage.got[:60]} == {"a", "b"}  # not one after the other


def test_first_round_of_send_is_not_counted() -> None:
    class Warming:
        protocol = V08
        turns = 0

        async def topic(self, partitions: int) -> str:
            return f"topic of {partitions}"

        async def send(self, name: str, python: str, topic: str, messages: int, *acks: str) -> dict[str, Any]:
            self.turns += 1
            value = 100.0 if self.turns <= 2 else 2.0 if acks else 4.0
            return {"quantiles": [value] * len(QUANTILES)}

    options = argparse.Namespace(rounds=1, seconds=1.0, tree=[], subjects=[OURS], json=True)
    rows = asyncio.run(sending(Warming(), options))  # type: ignore[arg-type]
    assert [(row.case, row.value) for row in rows if "p50" in row.case] == [
        ("0.8+, send and wait, p50", 4.0),
        ("0.8+, send and wait, acks 1, p50", 2.0),
    ]


def test_ratios_of_latencies_are_theirs_by_ours() -> None:
    ours, theirs = [[2.0 + n for n in range(11)]] * 3, [[4.0 + 2 * n for n in range(11)]] * 3
    rows = rows_of("case", {OURS: ours, "peer": theirs})
    assert [(row.case, row.subject, row.value, row.ratio) for row in rows] == [
        ("case, p50", OURS, 7.0, None), ("case, p50", "peer", 14.0, 2.0),
        ("case, p90", OURS, 9.0, None), ("case, p90", "peer", 18.0, 2.0),
        ("case, p99", OURS, 11.0, None), ("case, p99", "peer", 22.0, 2.0),
    ]  # fmt: skip
    assert [row.subject for row in rows if row.quantiles] == [OURS, "peer"]
    assert rows[1].quantiles == theirs[0]


def test_ratios_of_costs_are_theirs_by_ours() -> None:
    rows = idle_rows_of("case", {OURS: [0.5, 1.0], "peer": [1.0, 2.0]}, {OURS: [40.0, 40.0], "peer": [30.0, 30.0]})
    assert [(row.case, row.ratio) for row in rows if row.subject == "peer"] == [
        ("case, processor time", 2.0),
        ("case, resident", 0.75),
    ]
