"""Delta tables and Avro messages: both need jars of their own, hence a session of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from consumerd.base.java import MissingRuntimeError
from consumerd.spark.packages import AVRO_PACKAGE
from consumerd.spark.tables.delta import DELTA_PACKAGE
from tests.support.maven import fetch_jars


@pytest.mark.timeout(400)
def test_runs_a_pipeline_on_delta_tables_with_avro_messages(tmp_path: Path) -> None:
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
        "landed": [6, 2, 0],
        "refined": [3, 3, 2, {"the message is not a record of the Avro schema": 3}],
        "silver": [[0, 5, "hi"], [10, 5, ""], [50, 7, ""]],
        "again": False,
        "other": "TableOwnedError",
        "compacted": [True, 1],
        "kept": True,
        "after": [0, [[0, 3]]],
    }
