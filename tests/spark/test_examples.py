"""The examples that need Spark."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from importlib import util
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pyspark
import pytest
from pyarrow import parquet
from pyspark.sql import SparkSession

from consumerd.base.java import JavaRuntime
from consumerd.spark.session import prepare_java
from consumerd.wire.v07 import Codec, encode_message_set

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SCRIPT = EXAMPLES / "spark-archive" / "top_words.py"
PIPELINE = EXAMPLES / "spark-pipelines"


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    folder = tmp_path / "logs" / "clicks-0"
    folder.mkdir(parents=True)
    data = encode_message_set([b"a", b"b"]) + encode_message_set([b"c", b"d"], codec=Codec.GZIP)
    (folder / f"{0:020d}.kafka").write_bytes(data)
    return folder.parent


def test_example_counts_the_words_of_an_archive(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "clicks-0"
    folder.mkdir()
    data = encode_message_set([b"the cat", b"the hat"]) + encode_message_set([b"a cat", b"the end"], codec=Codec.GZIP)
    (folder / "00000000000000000000.kafka").write_bytes(data)
    spec = util.spec_from_file_location("top_words", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules.setdefault("top_words", util.module_from_spec(spec))
    spec.loader.exec_module(module)
    rows = module.top_words(spark, str(tmp_path), "clicks", 2).collect()
    assert [(row.word, row["count"]) for row in rows] == [("the", 3), ("cat", 2)]


def test_definitions_of_the_declarative_pipeline_read_the_archive(
    spark: SparkSession, tmp_path: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without Spark's own runner, which needs packages of Spark Connect: see the next test."""
    registry: Any = ModuleType("pyspark.pipelines")
    registry.table = registry.materialized_view = lambda function: function
    monkeypatch.setitem(sys.modules, "pyspark.pipelines", registry)
    monkeypatch.setattr(pyspark, "pipelines", registry, raising=False)
    module = runpy.run_path(str(PIPELINE / "transformations" / "clicks.py"))
    spark.conf.set(module["ARCHIVE"], str(archive))
    query = (
        module["clicks"]()
        .writeStream.option("checkpointLocation", f"{tmp_path}/checkpoint")
        .trigger(availableNow=True)
        .start(f"{tmp_path}/clicks")
    )
    query.awaitTermination()
    spark.read.parquet(f"{tmp_path}/clicks").createOrReplaceTempView("clicks")
    try:
        (row,) = module["clicks_per_partition"]().collect()
    finally:
        spark.catalog.dropTempView("clicks")
        spark.conf.unset(module["ARCHIVE"])
    assert (row.topic, row.broker_partition, row.messages) == ("clicks", "0-0", 4)
    assert row.end == (archive / "clicks-0" / f"{0:020d}.kafka").stat().st_size


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.skipif(find_spec("grpc") is None, reason="needs pyspark[pipelines]: Spark Connect and YAML")
def test_spark_runs_the_declarative_pipeline(java: JavaRuntime, tmp_path: Path, archive: Path) -> None:
    prepare_java(java)
    project = tmp_path / "project"
    shutil.copytree(PIPELINE, project)
    spec = project / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("file:///tmp/clicks-storage", f"file://{tmp_path}/storage"))
    command = [f"{sys.prefix}/bin/spark-pipelines", "run", "--conf", f"spark.consumerd.archive={archive}"]
    done = subprocess.run(
        [*command, "--conf", "spark.ui.enabled=false"],
        cwd=project,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    (counts,) = (project / "spark-warehouse" / "clicks_per_partition").glob("*.parquet")
    assert parquet.read_table(counts).to_pylist()[0]["messages"] == 4
