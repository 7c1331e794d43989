"""The limit on log events that each message can cause."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

import consumerd
from consumerd.service.daemon.repeats import PASS, REPEATED, SECONDS, RepeatLimit


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def passes(limit: RepeatLimit, event: str = "handler_failed", **fields: Any) -> bool:
    try:
        limit(None, "warning", {"event": event, **fields})
    except structlog.DropEvent:
        return False
    return True


def test_the_first_events_pass_and_the_rest_is_counted() -> None:
    clock = Clock()
    limit = RepeatLimit(monotonic=clock)
    with capture_logs() as logs:
        passed = [passes(limit, handler="mine", reason=f"KeyError: {n}") for n in range(9173)]
        limit.flush()
        assert logs == []  # not before the time is over
        clock.now += SECONDS
        limit.flush()
    assert passed == [True] * PASS + [False] * (9173 - PASS)
    assert logs == [
        {
            "event": "events_suppressed",
            "suppressed": "handler_failed",
            "handler": "mine",
            "events": 9173 - PASS,
            "seconds": 5.0,
            "reason": "and 9,163 more in 5 s (KeyError)",
            "log_level": "warning",
        }
    ]


def test_the_next_event_of_the_kind_tells_the_number_and_passes() -> None:
    clock = Clock()
    limit = RepeatLimit(monotonic=clock)
    with capture_logs() as logs:
        for _ in range(PASS + 1):
            passes(limit)
        clock.now += SECONDS + 2
        assert passes(limit)
        limit.flush(all_kinds=True)
    assert [(each["events"], each["seconds"]) for each in logs] == [(1, 7.0)]


@pytest.mark.parametrize("flushes", [True, False], ids=["daemon", "without-flush"])
def test_what_goes_on_for_an_hour_is_a_handful_of_lines_a_minute(flushes: bool) -> None:
    clock = Clock()
    limit = RepeatLimit(monotonic=clock)
    passed: list[float] = []
    with capture_logs() as logs:
        for _ in range(36_000):
            if passes(limit, reason="KeyError: 'id'"):
                passed.append(clock.now - 1000.0)
            clock.now += 0.1
            if flushes:
                limit.flush()
        limit.flush(all_kinds=True)
    assert sum(each["events"] for each in logs) + len(passed) == 36_000
    assert sum(1 for at in passed if at < 60) == PASS + 3
    assert sum(1 for at in passed if 600 <= at < 1200) in (10, 11)
    assert [each["seconds"] for each in logs][:5] == pytest.approx([5, 10, 20, 40, 60], abs=0.5)


def test_all_pass_again_after_a_quiet_time() -> None:
    clock = Clock()
    limit = RepeatLimit(monotonic=clock)
    with capture_logs():
        for _ in range(PASS + 1):
            passes(limit)
        for _ in range(60):  # the daemon's, with nothing to count
            clock.now += 1.0
            limit.flush()
        assert [passes(limit) for _ in range(PASS + 1)] == [True] * PASS + [False]


def test_another_error_handler_or_event_is_not_hidden() -> None:
    limit = RepeatLimit(monotonic=Clock())
    kinds = [
        {"handler": "a", "reason": "KeyError: 'id'"},
        {"handler": "b", "reason": "KeyError: 'id'"},
        {"handler": "b", "reason": "OSError: x"},
        {"subscription": "s", "handler": "b", "reason": "OSError: x"},
        {"event": "messages_skipped", "handler": "b", "reason": "OSError: x"},
        {"event": "oversized_message_set_dropped", "topic": "t"},
        {"event": "oversized_message_set_dropped", "topic": "u"},
    ]
    for kind in kinds:
        assert [passes(limit, **kind) for _ in range(PASS + 1)] == [True] * PASS + [False]


def test_events_that_are_not_named_always_pass() -> None:
    limit = RepeatLimit(monotonic=Clock())
    assert all(passes(limit, "partition_parked") for _ in range(1000))


def test_an_outage_of_the_target_is_a_few_lines_for_all_partitions() -> None:
    limit = RepeatLimit(monotonic=Clock())
    reason = "cannot connect to broker b:9092: Connection refused"
    with capture_logs() as logs:
        passed = [passes(limit, "produce_retried", partition=f"t/{number}", reason=reason) for number in range(1000)]
        limit.flush(all_kinds=True)
    assert sum(passed) == PASS
    assert [(each["suppressed"], each["events"]) for each in logs] == [("produce_retried", 1000 - PASS)]


def test_holds_a_bounded_number_of_kinds() -> None:
    limit = RepeatLimit(monotonic=Clock())
    passed = sum(passes(limit, reason=f"Error{n}: x") for n in range(5000))
    assert passed == 200 + PASS


@pytest.mark.parametrize("event", sorted(REPEATED))
def test_each_named_event_is_one_that_is_logged(event: str) -> None:
    sources = "\n".join(path.read_text("utf-8") for path in Path(consumerd.__file__).parent.rglob("*.py"))
    assert len(re.findall(rf'"{event}"', sources)) > 1  # the list itself is one


def test_the_log_of_a_process_is_limited_and_its_end_tells_the_rest() -> None:
    program = """
import structlog
from consumerd.service.daemon.logs import configure_logs
configure_logs("info", "json")
for number in range(500):
    structlog.get_logger().error("messages_skipped", reason="KeyError: 'id'")
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    lines = [json.loads(line) for line in ended.stderr.splitlines()]
    assert [line["event"] for line in lines] == ["messages_skipped"] * PASS + ["events_suppressed"]
    assert (lines[-1]["events"], lines[-1]["level"]) == (500 - PASS, "error")
