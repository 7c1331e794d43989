"""The Kubernetes manifests of `deploy/`, as files and as kubectl and helm render them."""

from __future__ import annotations

import functools
import math
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
KUBERNETES = ROOT / "deploy" / "kubernetes"
CHART = ROOT / "deploy" / "helm" / "consumerd"
#: The oldest version that the chart names, and one of today.
VERSIONS = ("1.27", "1.33")

Manifest = dict[str, Any]


def load(text: str) -> list[Manifest]:
    return [document for document in yaml.safe_load_all(text) if document is not None]


def files() -> dict[Path, list[Manifest]]:
    """Every manifest as it stands in a file, by its path below `deploy/kubernetes`."""
    return {
        path.relative_to(KUBERNETES): load(path.read_text())
        for path in sorted(KUBERNETES.rglob("*.yaml"))
        if path.name != "kustomization.yaml"
    }


def kustomize(folder: str) -> list[Manifest]:
    """The manifests that `kubectl kustomize` builds from a folder below `deploy/kubernetes`."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed")
    return load(_output(kubectl, "kustomize", str(KUBERNETES / folder)))


def helm(*settings: str, chart: Path = CHART) -> list[Manifest]:
    """The manifests that `helm template` renders with these `--set` arguments. Raises CalledProcessError."""
    found = shutil.which("helm")
    if found is None:
        if os.environ.get("CI", "").lower() == "true" and shutil.which("go") is not None:
            pytest.fail("helm is not installed: `.ci/run` compiles it where there is Go", pytrace=False)
        pytest.skip("helm is not installed")
    # A helm that was built from source otherwise takes the cluster for a version that the chart does not support.
    command = ["template", "consumerd", str(chart), f"--kube-version={VERSIONS[-1]}"]
    return load(_output(found, *command, *(f"--set={setting}" for setting in settings)))


@functools.cache
def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout


def check_schema(manifests: list[Manifest]) -> None:
    """Fail for what a Kubernetes API server would reject, unknown fields too. Custom resources are not checked."""
    for manifest in manifests:
        if manifest["apiVersion"].startswith(("keda.sh/", "monitoring.coreos.com/")):
            continue
        for version in VERSIONS:
            kubernetes_validate.validate(manifest, version, strict=True)


def one(manifests: list[Manifest], kind: str) -> Manifest:
    (found,) = [manifest for manifest in manifests if manifest["kind"] == kind]
    return found


def pod_spec(manifests: list[Manifest]) -> Manifest:
    """The pod's spec of the one StatefulSet or Deployment."""
    (workload,) = [manifest for manifest in manifests if manifest["kind"] in ("StatefulSet", "Deployment")]
    spec: Manifest = workload["spec"]["template"]["spec"]
    return spec


def container(spec: Manifest) -> Manifest:
    (found,) = spec["containers"]
    result: Manifest = found
    return result


def plain_environment(spec: Manifest) -> dict[str, str]:
    """The variables of the container that have a value in the manifest."""
    return {each["name"]: each["value"] for each in container(spec)["env"] if "value" in each}


def mebibytes(quantity: str) -> int:
    return int(quantity.removesuffix("Mi"))


def stop_seconds(spec: Manifest) -> int:
    """Seconds that a stop takes at most: preStop, then the daemon's deadline."""
    (program, pause) = container(spec)["lifecycle"]["preStop"]["exec"]["command"]
    assert program == "sleep"
    return int(pause) + math.ceil(float(plain_environment(spec)["CONSUMERD_DAEMON__STOP_TIMEOUT"]))
