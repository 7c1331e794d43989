"""Delta tables that an earlier release began, and Avro messages: both need jars, hence a session of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from consumerd.base.java import MissingRuntimeError
from consumerd.spark.packages import AVRO_PACKAGE
from tests.support.maven import fetch_jars

#: The jar by which earlier releases wrote Delta tables.
DELTA_PACKAGE = "io.delta:delta-spark_4.2_2.13:4.4.0"


@pytest.mark.timeout(400)
def test_goes_on_with_delta_tables_of_an_earlier_release_and_reads_avro(tmp_path: Path) -> None:
    try:
        jars = [jar for package in (DELTA_PACKAGE, AVRO_PACKAGE) for jar in fetch_jars([package])]
    except MissingRuntimeError as error:
        pytest.skip(str(error))
    wanted = [str(jar) for jar in jars if jar.name.startswith(("delta-", "unitycatalog-", "spark-avro"))]
    job = Path(__file__).with_name("delta_and_avro.py")
    done = subprocess.run(
        [sys.executable, job, tmp_path, ",".join(wanted)], capture_output=True, text=True, timeout=380, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "earlier": [3, 2],
        "landed": [3, 2, 0],
        "refined": [1, 2, 2, {"the message is not a record of the Avro schema": 2}],
        "silver": [[0, 5, "hi"], [10, 5, ""], [50, 7, ""]],
        "quarantine": [[20, "0a02086869"], [30, "0a020468690021"], [40, ""]],
        "nested": "'tags' = 'array<int>' is array<bigint> in the Avro schema: declare that type.",
        "again": False,
        "other": "TableOwnedError",
        "compacted": [True, 1],
        "kept": True,
        "after": [0, [[0, 4]]],
    }
