from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from consumerd.base.java import JavaRuntime, MissingRuntimeError
from consumerd.spark import session
from consumerd.spark.failures import SparkConnectError
from consumerd.spark.session import (
    LAUNCHER_HOME,
    LAUNCHER_VARIABLE,
    WORKER_PYTHON,
    WORKER_VARIABLE,
    SparkStartError,
    build_session,
    is_here,
    last_reason,
    prepare_java,
    prepare_python,
    shuffle_partitions,
)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo all settings of a test after it."""
    workers = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_LOCAL_IP", WORKER_VARIABLE)
    for name in ("JAVA_HOME", LAUNCHER_VARIABLE, "SPARK_SUBMIT_OPTS", "SPARK_CONF_DIR", "SPARK_HOME", *workers):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def fake_java(folder: Path, modules: str) -> JavaRuntime:
    """A program that lists these modules, and else prints its arguments, one per line."""
    program = folder / "a jdk" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        f'#!/bin/sh\nif [ "$1" = --list-modules ]; then printf "{modules}"; else printf "%s\\n" "$@"; fi\n'
    )
    program.chmod(0o755)
    return JavaRuntime(program, 21, "test")


@pytest.mark.parametrize(("variable", "master"), [("", "sc://spark:15002"), ("sc://spark:15002", None)])
def test_rejects_a_server_of_spark_connect(monkeypatch: pytest.MonkeyPatch, variable: str, master: str | None) -> None:
    monkeypatch.setenv("SPARK_REMOTE", variable)
    with pytest.raises(SparkConnectError, match=r" is sc://spark:15002, but the steps of a pipeline do not run with"):
        build_session(master)


def test_sets_java_home_to_a_whole_jdk(tmp_path: Path) -> None:
    java = fake_java(tmp_path, r"java.base@21\njdk.incubator.vector@21\n")
    assert prepare_java(java) == tmp_path / "a jdk"
    assert os.environ["JAVA_HOME"] == str(tmp_path / "a jdk")
    assert LAUNCHER_VARIABLE not in os.environ


def test_launcher_drops_one_flag_and_keeps_other_arguments(tmp_path: Path) -> None:
    java = fake_java(tmp_path, r"java.base@25\njdk.incubator.vector.not@25\n")
    assert prepare_java(java) == LAUNCHER_HOME
    program = f"{os.environ['JAVA_HOME']}/bin/java"
    arguments = ["-Da=two words", "--add-modules=jdk.incubator.vector", "", "*", "--add-modules=java.sql", "$HOME 'x'"]
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [one for one in arguments if "vector" not in one]


def test_does_not_wrap_a_runtime_found_through_the_launcher(tmp_path: Path) -> None:
    java = fake_java(tmp_path, "java.base@25")
    prepare_java(java)
    again = JavaRuntime(LAUNCHER_HOME / "bin" / "java", 25, "JAVA_HOME")
    assert prepare_java(again) == LAUNCHER_HOME
    assert os.environ[LAUNCHER_VARIABLE] == str(java.executable)


def test_launcher_reports_its_missing_variable() -> None:
    done = subprocess.run([LAUNCHER_HOME / "bin" / "java"], capture_output=True, text=True, env={}, check=False)
    assert done.returncode != 0
    assert f"{LAUNCHER_VARIABLE}: names no java" in done.stderr


def test_workers_import_the_installed_pyspark_and_keep_other_folders(tmp_path: Path) -> None:
    prepare_python(executors_here=True, quick=True)
    assert os.environ["PYSPARK_DRIVER_PYTHON"] == os.environ["PYSPARK_PYTHON"]
    archives = ["/spark/python/lib/pyspark.zip", "/spark/python/lib/py4j-0.10.9.9-src.zip"]
    for others in ([str(tmp_path / "a folder"), "/pyspark.zip"], []):
        environ = {**os.environ, "PYTHONPATH": ":".join([*archives, *others])}
        command = [
            os.environ["PYSPARK_PYTHON"],
            "-c",
            "import os, sys; print(os.environ.get('PYTHONPATH'), sys.argv[1])",
        ]
        done = subprocess.run([*command, "$HOME 'x'"], capture_output=True, text=True, check=True, env=environ)
        assert done.stdout == f"{':'.join(others) or None} $HOME 'x'\n"
    done = subprocess.run([WORKER_PYTHON], capture_output=True, text=True, env={}, check=False)
    assert f"{WORKER_VARIABLE}: names no interpreter" in done.stderr


@pytest.mark.parametrize(
    ("environ", "quick"), [({}, False), ({"SPARK_HOME": "/spark"}, True), ({"PYSPARK_PYTHON": "/python"}, True)]
)
def test_leaves_the_interpreter_of_other_workers_alone(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], quick: bool
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    prepare_python(executors_here=True, quick=quick)
    assert os.environ["PYSPARK_PYTHON"] == environ.get("PYSPARK_PYTHON", sys.executable)


def test_uses_the_launcher_for_a_runtime_that_lists_no_modules(tmp_path: Path) -> None:
    java = JavaRuntime(tmp_path / "gone" / "java", 21, "test")
    assert prepare_java(java) == LAUNCHER_HOME


def test_reports_a_launcher_that_is_not_executable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "LAUNCHER_HOME", tmp_path)
    with pytest.raises(
        MissingRuntimeError, match=r"is not executable, and .* needs it to start Spark: make it executable"
    ):
        prepare_java(fake_java(tmp_path, "java.base@25"))
    assert "JAVA_HOME" not in os.environ


@pytest.mark.parametrize("folder", ["SPARK_CONF_DIR", "SPARK_HOME"])
def test_keeps_the_users_log_profile(tmp_path: Path, folder: str) -> None:
    where = tmp_path if folder == "SPARK_CONF_DIR" else tmp_path / "conf"
    where.mkdir(exist_ok=True)
    options = session._log_options({folder: str(tmp_path)}, "warn")
    assert options.startswith("-Dlog4j2.configurationFile=file:///")
    assert options.endswith("log4j2.properties -Dconsumerd.spark.log.level=warn")
    (where / "log4j2.properties").write_text("")
    assert session._log_options({folder: str(tmp_path)}, "warn") == ""


@pytest.mark.parametrize("former", [None, "-Xss4m"])
def test_java_options_last_only_for_the_start_and_users_come_last(former: str | None) -> None:
    if former is not None:
        os.environ["SPARK_SUBMIT_OPTS"] = former
    with session._java_options("-Da=1"):
        assert os.environ["SPARK_SUBMIT_OPTS"] == ("-Da=1" if former is None else "-Da=1 -Xss4m")
    assert os.environ.get("SPARK_SUBMIT_OPTS") == former


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('WARNING: x\nException in thread "main" org.apache.spark.SparkException: Bad\n\tat a.b(C.java:1)\n', "Bad"),
        ("2026-01-02 03:04:05.678 ERROR Backend: It was killed. Reason: All gone\n2026-01-02 WARN x\n", "All gone"),
        ("Invalid heap\n\n  Error: no VM\n", "Invalid heap | Error: no VM"),
        ("", None),
    ],
)
def test_finds_the_reason_in_the_log(tmp_path: Path, text: str, reason: str | None) -> None:
    path = tmp_path / "log"
    path.write_text("\tat a.B.c(B.java:1)\n" * 10_000 + text if reason else text)
    with path.open("r+b") as log:
        assert last_reason(log) == reason
    assert last_reason(None) is None


@pytest.mark.parametrize(
    ("master", "here"),
    [
        ("local", True),
        ("local[4]", True),
        ("local-cluster[2,1,1024]", True),
        ("spark://127.0.0.1:7077", True),
        ("spark://localhost:7077", True),
        ("spark://[::1]:7077", True),
        ("spark://10.0.0.1:7077", False),
        ("spark://one:1,two:2", False),
        ("spark://[:7077", False),
        ("k8s://https://127.0.0.1:6443", False),
        ("yarn", False),
        (None, False),
    ],
)
def test_recognizes_masters_on_this_machine(master: str | None, here: bool) -> None:
    assert is_here(master) is here


@pytest.mark.parametrize(
    ("master", "parts"),
    [
        ("local", 2),
        ("local[1]", 2),
        ("local[4]", 4),
        ("local[6,3]", 6),
        ("local[99]", 8),
        ("spark://localhost:7077", 8),
    ],
)
def test_shuffles_have_a_part_for_each_local_thread(master: str, parts: int) -> None:
    assert shuffle_partitions(master) == parts


def test_shuffles_have_a_part_for_each_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 5)
    assert shuffle_partitions("local[*]") == 5


def test_a_failed_start_has_its_own_exit_code() -> None:
    assert SparkStartError("x").exit_code == 14
