from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

import pytest

from consumerd.base.errors import ConfigError
from consumerd.spark import packages
from consumerd.spark.packages import needs_of, required_packages
from consumerd.spark.spec import PipelineSpec, parse_spark


def pipelines(tmp_path: Path, *, parse: str = "json", table_format: str = "parquet") -> list[PipelineSpec]:
    refine: dict[str, Any] = {"parse": parse, "fields": {"id": "bigint"}}
    if parse == "avro":
        (tmp_path / "a.avsc").write_text('{"type": "record", "name": "a", "fields": [{"name": "id", "type": "long"}]}')
        refine["avro_schema"] = str(tmp_path / "a.avsc")
    declared = {"p": {"source": {"path": "/a", "subscribe": "t"}, "refine": refine}}
    document = {"spark": {"root": str(tmp_path), "format": table_format, "pipelines": declared}}
    return list(parse_spark(document, "test").pipelines.values())


def test_json_and_parquet_need_no_package(tmp_path: Path) -> None:
    assert required_packages(pipelines(tmp_path), {}) == packages.RequiredPackages()


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


def test_delta_needs_a_jar_for_this_spark_and_its_settings(tmp_path: Path) -> None:
    delta = pipelines(tmp_path, table_format="delta")
    found = required_packages(delta, {})
    assert found.packages == ("io.delta:delta-spark_4.2_2.13:4.4.0",)
    assert found.config["spark.sql.extensions"] == "io.delta.sql.DeltaSparkSessionExtension"
    mine = {"spark.sql.extensions": "my.Own,io.delta.sql.DeltaSparkSessionExtension"}
    assert set(required_packages(delta, mine).config) == {"spark.sql.catalog.spark_catalog"}


def test_reports_delta_without_its_extra_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> NoReturn:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(packages, "version", missing)
    with pytest.raises(ConfigError, match=r"pip install 'consumerd\[delta\]'"):
        required_packages(pipelines(tmp_path, table_format="delta"), {})
