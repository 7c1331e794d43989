"""What Kafka's perf tools print, as 3.9.1 prints it."""

from __future__ import annotations

import pytest

from benchmarks.kafka_perf import consumed, sent

CONSUMED = """\
start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, rebalance.time.ms, fetch.time.ms, \
fetch.MB.sec, fetch.nMsg.sec
2026-11-23 18:00:00:100, 2026-11-23 18:00:04:600, 95.3674, 21.1928, 1000000, 222222.2222, 500, 4000, \
23.8419, 250000.0000
"""
SENT = """\
249000 records sent, 49800.0 records/sec (4.75 MB/sec), 12.1 ms avg latency, 250.0 ms max latency.
400000 records sent, 80000.000000 records/sec (7.63 MB/sec), 10.00 ms avg latency, 250.00 ms max latency, 8 ms 50th, \
20 ms 95th, 40 ms 99th, 90 ms 99.9th.
"""


def test_takes_the_time_of_fetching_without_that_of_joining() -> None:
    assert consumed(CONSUMED, 1_000_000) == (4.0, 95.3674)


def test_takes_the_total_of_the_producer() -> None:
    assert sent(SENT, 400_000) == 5.0


def test_refuses_another_number_of_messages() -> None:
    with pytest.raises(SystemExit, match="consumed 1000000 messages instead of 1000001"):
        consumed(CONSUMED, 1_000_001)
    with pytest.raises(SystemExit, match="did not print that it sent 249000"):
        sent(SENT, 249_000)


def test_refuses_a_warning_in_place_of_a_result() -> None:
    with pytest.raises(SystemExit, match="printed no result: WARNING"):
        consumed("WARNING: Exiting before consuming the expected number of messages\n" + CONSUMED.splitlines()[0], 1)
