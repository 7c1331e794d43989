"""The Kubernetes files, read by the very library that Spark talks to Kubernetes with."""

from __future__ import annotations

import json
import runpy
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from consumerd.base.errors import ConsumerdError
from consumerd.spark.packages import AVRO_PACKAGE
from consumerd.spark.spec import parse_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "spark"


def objects(spark: SparkSession, text: str) -> list[dict[str, Any]]:
    """Kubernetes objects of a YAML text, known fields only, as JSON has them."""
    jvm: Any = spark.sparkContext._jvm
    serialization = jvm.io.fabric8.kubernetes.client.utils.KubernetesSerialization()
    found = []
    for document in text.split("\n---\n"):
        made = serialization.unmarshal(document)
        assert made.getClass().getName().startswith("io.fabric8.kubernetes.api.model")
        found.append(json.loads(serialization.asJson(made)))
    return found


def test_kubernetes_manifests_are_valid_and_consistent(spark: SparkSession) -> None:
    text = (FOLDER / "kubernetes.yaml").read_text()
    found = {each["kind"]: each for each in objects(spark, text)}
    assert list(found) == ["ConfigMap", "ServiceAccount", "Role", "RoleBinding", "CronJob"]
    assert found["RoleBinding"]["roleRef"]["name"] == found["Role"]["metadata"]["name"]
    (subject,) = found["RoleBinding"]["subjects"]
    assert subject["name"] == found["ServiceAccount"]["metadata"]["name"]

    pod = found["CronJob"]["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == subject["name"]
    (driver,) = pod["containers"]
    mounts = {each["name"]: each["mountPath"] for each in driver["volumeMounts"]}
    assert set(mounts) == {each["name"] for each in pod["volumes"]}
    (config,) = (each["configMap"]["name"] for each in pod["volumes"] if "configMap" in each)
    assert config == found["ConfigMap"]["metadata"]["name"]
    files = found["ConfigMap"]["data"]
    named = [word.rpartition("=")[2] for word in driver["args"] if word.startswith("--conf=") and "/etc/" in word]
    named += [word.partition("=")[2] for word in driver["args"] if word.startswith("--config=")]
    assert [Path(each).name for each in named] == ["executor.yaml", "pipeline.toml"]
    assert {str(Path(each).parent) for each in named} == {mounts["config"]}
    assert set(files) == {"executor.yaml", "pipeline.toml"}
    variables = {each["name"] for each in driver["env"]}
    assert {"POD_IP", "POD_NAME", "NAMESPACE"} == variables
    assert all(f"$({name})" in " ".join(driver["args"]) for name in variables)

    spec = parse_spark(tomllib.loads(files["pipeline.toml"]), "kubernetes.yaml")
    (executor,) = objects(spark, files["executor.yaml"])
    (container,) = executor["spec"]["containers"]
    assert [each["mountPath"] for each in container["volumeMounts"]] == [spec.root] == [mounts["lake"]]


def test_job_asks_for_the_jar_of_avro(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refined = 'refine = { parse = "avro", avro_schema = "a.avsc", fields = { id = "int" } }'
    (tmp_path / "p.toml").write_text(
        f'[spark]\nroot = "/lake"\n[spark.pipelines.p]\nsource = {{ path = "/" }}\n{refined}\n'
    )
    asked: list[object] = []

    def build(**named: object) -> None:
        asked.append(named["packages"])
        raise ConsumerdError("asked")

    monkeypatch.setattr("consumerd.spark.session.build_session", build)
    monkeypatch.setattr("sys.argv", ["pipeline.py", "-c", str(tmp_path / "p.toml")])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(FOLDER / "pipeline.py"), run_name="__main__")
    assert (ended.value.code, asked) == (ConsumerdError.exit_code, [(AVRO_PACKAGE,)])


def test_image_and_manifests_use_the_same_paths() -> None:
    made = (FOLDER / "Dockerfile").read_text()
    asked = (FOLDER / "kubernetes.yaml").read_text()
    assert "deploy/spark/pipeline.py /opt/consumerd/pipeline.py" in made
    assert "- /opt/consumerd/pipeline.py" in asked
    assert "python -m venv /opt/consumerd" in made
    assert '"/opt/consumerd/bin/spark-submit"' in asked
