"""The same pipeline on clusters: executors in processes of their own, and from nothing but a packaged environment.

Each driver is a process of its own, because one process has one SparkContext. Executors leave their work where
SPARK_HOME or the worker says, so SPARK_HOME is a folder of the test that stands for the installed one.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NoReturn

import pyspark
import pytest

from consumerd.base.java import JavaRuntime
from consumerd.demo.children import Child
from consumerd.demo.ports import free_port
from consumerd.demo.processes import clean_environment, format_toml
from consumerd.spark.session import LAUNCHER_VARIABLE, prepare_java
from consumerd.wire.v07 import Codec, encode_message_set
from tests.support.spark_jvm import QUICK_JVM

ROOT = Path(__file__).resolve().parents[2]
PIPELINE = ROOT / "deploy" / "spark" / "pipeline.py"
LOOK = ROOT / "tests" / "spark" / "cluster_look.py"
PARTITIONS = 3
LINES = 400
SMALL = {
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": QUICK_JVM,
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": QUICK_JVM,
    "spark.sql.shuffle.partitions": "2",
}
#: Spark's own start, twice, on a machine that has other work.
TIMEOUT = 500

pytestmark = pytest.mark.timeout(3 * TIMEOUT)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Segments of topic `t`: of every ten messages one is not JSON."""
    folder = tmp_path / "archive"
    for partition in range(PARTITIONS):
        log = folder / f"t-{partition}"
        log.mkdir(parents=True)
        lines = [b"?" if n % 10 == 0 else b'{"id": %d}' % n for n in range(LINES)]
        data = b"".join(
            encode_message_set(lines[at : at + 20], codec=tuple(Codec)[at // 20 % 3]) for at in range(0, LINES, 20)
        )
        (log / f"{0:020}.kafka").write_bytes(data)
    return folder


@pytest.fixture
def config(tmp_path: Path, archive: Path) -> Path:
    """A pipeline over the archive, in small splits."""
    path = tmp_path / "pipeline.toml"
    source = {"path": str(archive), "subscribe": "t", "maxSplitBytes": 4096}
    tables: dict[str, dict[str, Any]] = {
        "spark": {"root": str(tmp_path / "lake")},
        "spark.pipelines.p": {"source": source, "refine": {"fields": {"id": "bigint not null"}}},
    }
    path.write_text(format_toml(tables))
    return path


@pytest.fixture
def environ(tmp_path: Path, java: JavaRuntime, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """For drivers, masters and workers."""
    home = tmp_path / "spark"
    home.mkdir()
    for path in Path(pyspark.__file__).parent.iterdir():
        if path.name != "work":
            (home / path.name).symlink_to(path)
    for name in ("JAVA_HOME", LAUNCHER_VARIABLE):
        monkeypatch.setenv(name, "")
    prepare_java(java)
    found = {**clean_environment(), "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1", "TMPDIR": str(tmp_path)}
    return {name: text for name, text in found.items() if not name.startswith("PYSPARK_")}


def run(command: list[str], environ: dict[str, str], cwd: Path) -> list[Any]:
    """The output of a driver: JSON, line by line."""
    done = subprocess.run(command, env=environ, cwd=cwd, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def submit(environ: dict[str, str], master: str, config: Path, *options: str) -> list[str]:
    """The command that lands and refines on that master."""
    submit = f"{environ['SPARK_HOME']}/bin/spark-submit"
    settings = [word for name, value in SMALL.items() for word in ("--conf", f"{name}={value}")]
    return [submit, "--master", master, *settings, *options, str(PIPELINE), "-c", str(config), "land", "refine"]


def check(found: dict[str, Any]) -> None:
    """Everything landed once, and was refined."""
    assert found["land"]["rows"] == PARTITIONS * LINES
    assert found["refine"]["rows_silver"] == PARTITIONS * LINES * 9 // 10
    assert found["refine"]["rows_quarantined"] == PARTITIONS * LINES // 10
    assert found["refine"]["duplicates"] == 0


@pytest.mark.long
def test_runs_a_pipeline_on_two_executors(config: Path, environ: dict[str, str], tmp_path: Path) -> None:
    driver = {**environ, "PYSPARK_DRIVER_PYTHON": sys.executable}
    (found,) = run(submit(environ, "local-cluster[2,1,1024]", config), driver, tmp_path)
    check(found)


@contextlib.asynccontextmanager
async def standalone(environ: dict[str, str], folder: Path) -> AsyncIterator[str]:
    """A standalone master with two workers on loopback; its URL."""
    spark_class = f"{environ['SPARK_HOME']}/bin/spark-class"
    node = {**environ, "SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": QUICK_JVM, "SPARK_LOG_DIR": str(folder)}
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    one = ["--host", "127.0.0.1", "--webui-port", "0"]
    async with contextlib.AsyncExitStack() as stack:
        master = Child(
            [spark_class, "org.apache.spark.deploy.master.Master", *one, "--port", str(port)],
            log=folder / "master.log", name="master", env=node, cwd=folder,
        )  # fmt: skip
        await stack.enter_async_context(master)
        await master.wait_for_line(lambda line: "New state: ALIVE" in line, TIMEOUT)
        workers = [
            Child(
                [
                    spark_class, "org.apache.spark.deploy.worker.Worker", *one, "--cores", "1", "--memory", "1g",
                    "--work-dir", str(folder / f"work-{number}"), url,
                ],
                log=folder / f"worker-{number}.log", name=f"worker-{number}", env=node, cwd=folder,
            )
            for number in range(2)
        ]  # fmt: skip
        for worker in workers:
            await stack.enter_async_context(worker)
        for worker in workers:
            await worker.wait_for_line(lambda line: "Successfully registered with master" in line, TIMEOUT)
        yield url


@pytest.mark.long  # tests/integration/test_spark_package.py reads a split with the package every day
async def test_runs_a_pipeline_with_only_a_packaged_environment(
    config: Path, environ: dict[str, str], tmp_path: Path, missing: Callable[[str], NoReturn]
) -> None:
    if sys.prefix == sys.base_prefix:
        missing("the tests run in no virtual environment, so that there is nothing that executors could do without")
    package = [sys.executable, str(ROOT / "deploy" / "spark" / "package.py"), "-o", str(tmp_path / "package")]
    subprocess.run(package, cwd=tmp_path, timeout=TIMEOUT, check=True, stdout=subprocess.DEVNULL)
    packed = tmp_path / "package" / "consumerd-environment.tar.gz"
    here = tmp_path / "driver"
    with tarfile.open(packed) as archive:
        archive.extractall(here / "consumerd", filter="data")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    bare = {
        **environ,
        "CONSUMERD_NODE_PYTHON": str(Path(sys.base_prefix) / "bin" / f"python{version}"),
        "PYSPARK_PYTHON": "./consumerd/bin/python",
        "PATH": os.pathsep.join(each for each in os.get_exec_path() if Path(each) != Path(sys.executable).parent),
    }
    options = ["--archives", f"{packed}#consumerd", str(LOOK)]
    async with standalone(bare, tmp_path) as master:
        seen, found = run(submit(bare, master, config, *options), bare, here)
    check(found)
    assert {each["executor"] for each in seen} == {"0", "1"}
    for each in seen:
        assert each["cwd"].startswith(str(tmp_path / "work-"))
        assert [name for name in each["modules"] if not name.startswith(f"{each['cwd']}/consumerd/lib/")] == []
        assert sysconfig.get_path("purelib") not in each["path"]
        assert str(ROOT) not in each["path"]


@pytest.mark.long
async def test_runs_a_pipeline_on_a_standalone_cluster(config: Path, environ: dict[str, str], tmp_path: Path) -> None:
    async with standalone(environ, tmp_path) as master:
        driver = {**environ, "PYSPARK_DRIVER_PYTHON": sys.executable}
        (found,) = run(submit(environ, master, config), driver, tmp_path)
    check(found)
