from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from consumerd.spark import packages
from consumerd.spark.packages import needs_of, required_packages
from consumerd.spark.spec import PipelineSpec, parse_spark


def pipelines(tmp_path: Path, *, parse: str = "json", table_format: str = "delta") -> list[PipelineSpec]:
    refine: dict[str, Any] = {"parse": parse, "fields": {"id": "bigint"}}
    if parse == "avro":
        (tmp_path / "a.avsc").write_text('{"type": "record", "name": "a", "fields": [{"name": "id", "type": "long"}]}')
        refine["avro_schema"] = str(tmp_path / "a.avsc")
    declared = {"p": {"source": {"path": "/a", "subscribe": "t"}, "refine": refine}}
    document = {"spark": {"root": str(tmp_path), "format": table_format, "pipelines": declared}}
    return list(parse_spark(document, "test").pipelines.values())


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_json_needs_no_package(tmp_path: Path, table_format: str) -> None:
    declared = pipelines(tmp_path, table_format=table_format)
    assert required_packages(declared, {}) == packages.RequiredPackages()


def test_avro_needs_a_jar(tmp_path: Path) -> None:
    avro = pipelines(tmp_path, parse="avro")
    assert required_packages(avro, {}).packages == ("org.apache.spark:spark-avro_2.13:4.1.1",)
    assert required_packages(avro, {}).config == {}
    there = {"spark.jars": "/opt/x.jar,hdfs://nn/jars/spark-avro_2.13-4.2.0.jar"}
    assert required_packages(avro, there).packages == ()
    assert required_packages(avro, {"spark.jars": "spark-avro_2.13-sources.jar"}).packages != ()


def test_deprecated_name_still_works(tmp_path: Path) -> None:
    avro = pipelines(tmp_path, parse="avro")
    with pytest.warns(DeprecationWarning, match="use required_packages"):
        assert needs_of(avro, {}) == required_packages(avro, {})


def test_does_not_download_a_jar_in_sparks_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-avro_2.13-4.2.0.jar").touch()
    assert required_packages(pipelines(tmp_path, parse="avro"), {}).packages == ()
