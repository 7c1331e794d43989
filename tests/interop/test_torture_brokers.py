"""Random faults on real brokers of 0.8 and later (`tests.torture`), with groups in ZooKeeper and in the brokers."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NoReturn

import pytest

from consumerd.base.java import JavaRuntime, MissingRuntimeError
from tests.kill.test_torture import SECONDS, SEED, assert_kept
from tests.torture.run import Options, torture

pytestmark = [
    pytest.mark.interop,
    pytest.mark.kill,
    pytest.mark.long,
    pytest.mark.timeout(SECONDS * 3 + 600),
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all of 127.0.0.0/8 as loopback addresses"),
]


@pytest.mark.parametrize(
    ("brokers", "coordination", "cluster"),
    [
        ("0.8.2.2", "zookeeper", 1),
        ("1.1.1", "zookeeper", 1),
        ("1.1.1", "kafka", 3),
        ("3.9.1", "kafka", 1),
        ("4.1.0", "kafka", 3),
    ],
)
async def test_random_faults_lose_nothing(
    java: JavaRuntime,
    tmp_path: Path,
    missing: Callable[[str], NoReturn],
    brokers: str,
    coordination: Literal["zookeeper", "kafka"],
    cluster: int,
) -> None:
    options = Options(
        SEED, SECONDS, servers=1, full_disks=os.geteuid() == 0,
        brokers=brokers, coordination=coordination, cluster=cluster,
    )  # fmt: skip
    try:
        report = await torture(options, tmp_path, lambda _: None)
    except MissingRuntimeError as error:  # a Java of that age, or the release itself
        missing(str(error))
    assert_kept(report, tmp_path)
