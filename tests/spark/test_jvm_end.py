"""A JVM that dies under the command is one sentence and exit code 14, and the next session has a JVM of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from consumerd.base.errors import ExitCode
from consumerd.base.java import JavaRuntime
from consumerd.demo.processes import format_toml
from consumerd.wire.v07 import encode_message_set
from tests.support.spark_jvm import quick_options

_TWICE = """
import os, signal, sys
from consumerd.spark.failures import SparkGoneError, declared_errors
from consumerd.spark.session import build_session
from pyspark import SparkContext
spark = build_session("local[1]")
process = SparkContext._gateway.proc
assert spark.range(3).count() == 3
os.kill(process.pid, signal.SIGKILL)
try:
    with declared_errors():
        spark.range(3).count()
except SparkGoneError as error:
    print(error)
print(build_session("local[1]").range(4).count(), flush=True)
"""


#: More pieces of cached rows than memory has room for; each row is a piece.
_CACHED = """
import json, sys
from pyspark import StorageLevel
from consumerd.spark.failures import SparkFailedError, SparkGoneError, declared_errors
from consumerd.spark.session import build_session
spark = build_session("local[1]", config={"spark.driver.memory": "512m", **json.loads(sys.argv[1])})
rows = spark.range(0, 150, 1, 1).selectExpr("repeat(chr(97 + id), 3900000) AS value").persist(StorageLevel.DISK_ONLY)
try:
    with declared_errors():
        print(rows.selectExpr("sum(length(value))").first()[0], flush=True)
except (SparkFailedError, SparkGoneError) as error:
    print(error, flush=True)
"""


@pytest.fixture
def environment(java: JavaRuntime) -> dict[str, str]:
    return {
        **os.environ,
        "JAVA_HOME": str(java.executable.absolute().parent.parent),
        "SPARK_SUBMIT_OPTS": quick_options(),
    }


def jvm_of(pid: int) -> int:
    """The child that is a Java."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return next(int(child) for child in children if Path(f"/proc/{child}/comm").read_text().strip() == "java")


def test_reports_a_jvm_that_is_killed_during_a_command(environment: dict[str, str], tmp_path: Path) -> None:
    log = tmp_path / "archive" / "t-0"
    log.mkdir(parents=True)
    (log / f"{0:020}.kafka").write_bytes(encode_message_set([b"%d" % number for number in range(100)]))
    tables: dict[str, dict[str, Any]] = {
        "spark": {"root": str(tmp_path / "lake"), "master": "local[1]"},
        "spark.pipelines.p": {"source": {"path": str(tmp_path / "archive"), "subscribe": "t"}, "trigger": "1 second"},
    }
    (tmp_path / "p.toml").write_text(format_toml(tables))
    command = [sys.executable, "-m", "consumerd", "spark", "land", "-c", str(tmp_path / "p.toml"), "--continuous"]
    done = tmp_path / "lake/p/_checkpoints/land/commits/0"
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            while not done.exists():
                assert process.poll() is None
                signal.sigtimedwait([], 0.1)
            os.kill(jvm_of(process.pid), signal.SIGKILL)
            _, said = process.communicate()
        finally:
            process.kill()
    assert process.returncode == ExitCode.SPARK, said
    *steps, sentence = said.splitlines()
    assert sentence.startswith("consumerd: Spark's JVM was killed by SIGKILL, as the kernel does when memory runs out")
    assert all(line.startswith("consumerd: ") for line in steps), said


def test_starts_a_session_after_the_jvm_of_another_died(environment: dict[str, str]) -> None:
    ran = subprocess.run([sys.executable, "-c", _TWICE], env=environment, capture_output=True, text=True, check=True)
    sentence, count = ran.stdout.splitlines()
    assert sentence.startswith("Spark's JVM was killed by SIGKILL")
    assert count == "4"


def cached(environment: dict[str, str], config: dict[str, str]) -> str:
    command = [sys.executable, "-c", _CACHED, json.dumps(config)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def test_caches_more_rows_than_memory_has_room_for(environment: dict[str, str]) -> None:
    assert cached(environment, {}) == str(150 * 3_900_000)


def test_reports_that_the_memory_of_the_jvm_ran_out(environment: dict[str, str]) -> None:
    said = cached(environment, {"spark.serializer.objectStreamReset": "100"})  # Spark's default
    # The JVM ends by itself. Which is first, its answer or its end, is not defined.
    assert said.startswith(
        ("Spark ran out of memory (Java heap space): ", "Spark's JVM ended because its memory ran out: ")
    )
    assert "spark.driver.memory" in said
