"""A broker that fails during a read: the task is retried, and a broker that stays unavailable ends the query.

A session of its own, in a process of its own: `local[2]` never tries a task again, and one JVM has one session.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from consumerd.testing.fault_proxy import Direction
from consumerd.testing.plugin import BrokerFactory, ProxyFactory
from tests.support.spark_jvm import quick_options

PROGRAM = """
import sys
from consumerd.spark.session import build_session

spark = build_session("local[2,3]", config={"spark.log.level": "OFF", "spark.sql.shuffle.partitions": "1"})
frame = spark.read.format("consumerd").options(
    brokers="0=" + sys.argv[1], assign='{"clicks": ["0-0"]}', fetchSize="128k"
).load()
for _ in range(2):
    try:
        rows = frame.selectExpr("count(*)", "count(DISTINCT offset, index)", "sum(length(value))").collect()
    except Exception as error:
        print([line for line in str(error).splitlines() if "Error: " in line][-1], flush=True)
    else:
        print(*rows[0], flush=True)
    sys.stdin.readline()
spark.stop()
"""


@pytest.mark.timeout(300)  # it starts a JVM of its own
def test_retries_a_task_and_names_a_dead_broker(
    consumerd_broker_factory: BrokerFactory, consumerd_proxy_factory: ProxyFactory
) -> None:
    broker = consumerd_broker_factory(process=True)
    rng = random.Random(1)
    payloads = [rng.randbytes(1000) for _ in range(3000)]
    for start in range(0, len(payloads), 500):
        broker.produce("clicks", payloads[start : start + 500])
    seen = 0
    once: list[Callable[[], None]] = []

    def hook(direction: Direction, data: bytes) -> bytes:
        nonlocal seen
        seen += len(data) if direction is Direction.TO_CLIENT else 0
        if seen > 1_000_000 and once:
            threading.Thread(target=once.pop()).start()
        return data

    proxy = consumerd_proxy_factory(broker.host, broker.port, hook=hook)
    once.append(lambda: proxy.cut(rst=True))
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, proxy.connect],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "SPARK_SUBMIT_OPTS": quick_options()},
        text=True,
        bufsize=1,
    ) as session:
        assert session.stdin is not None
        assert session.stdout is not None
        try:
            assert session.stdout.readline() == "3000 3000 3000000\n"
            assert not once, "the connection was cut in the middle"
            seen = 0
            once.append(broker.kill)
            session.stdin.write("\n")
            sentence = session.stdout.readline()
            assert not broker.running
            # The proxy has taken the connection, or the kernel has on its behalf: it ends before or after a request.
            assert "BrokerReadError: " in sentence or "BrokerUnavailableError: " in sentence
            assert proxy.connect in sentence
            session.stdin.write("\n")
            assert session.wait(60) == 0
        finally:
            session.kill()
