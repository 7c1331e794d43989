"""Short runs of `make soak` (`tests.soak`), so that it works when somebody has an hour for it."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from consumerd.base.java import JavaRuntime
from tests.soak.full_speed import full_speed
from tests.soak.run import Options, soak
from tests.support.postgres import PostgresServer

pytestmark = [
    pytest.mark.kill,
    pytest.mark.zookeeper,
    pytest.mark.long,
    pytest.mark.skipif(sys.platform != "linux", reason="needs Linux: /proc, and all of 127.0.0.0/8"),
]

SECONDS = float(os.environ.get("CONSUMERD_LONG_SECONDS", "60"))
#: Promises about counts; how much a process grows is a question for longer runs on an idle machine.
_GROWTH = (" grew by ", " took ")


def broken(record: dict[str, object]) -> list[str]:
    violations = record["violations"]
    assert isinstance(violations, list)
    return [text for text in violations if not any(words in text for words in _GROWTH)]


@pytest.mark.timeout(SECONDS * 4 + 900)
def test_faults_leave_every_message_once_in_the_sinks(java: JavaRuntime, tmp_path: Path) -> None:
    (disk := tmp_path / "disk").mkdir()
    options = Options(7, SECONDS, rate=1000.0, partitions=4, members=2, servers=1, full_disks=False)
    with PostgresServer() as server:
        record = asyncio.run(soak(options, tmp_path, disk, server.dsn, lambda _: None))
    assert broken(record) == []
    assert record["episodes"] >= 1
    assert record["sinks"]["files"]["rows"] == record["sinks"]["database"]["rows"] == record["stored"] > 0


@pytest.mark.timeout(SECONDS * 4 + 300)
def test_full_speed_delivers_every_message_once(java: JavaRuntime, tmp_path: Path) -> None:
    record = asyncio.run(full_speed(min(SECONDS, 60.0), tmp_path, lambda _: None))
    assert broken(record) == []
    assert record["handled"] > 0
