"""A SparkSession with a Java that runs it, whether or not the machine has one, and with the settings we rely on.

Strategy: whoever runs us has the last word. Under spark-submit the JVM is there already and knows its master and
properties; what the caller gives wins over those, and `DEFAULTS` only fill what nobody has set. Where a session runs
already (a notebook), it is taken as it is. A start that fails is one sentence.
"""

from __future__ import annotations

import ipaddress
import os
from typing import IO, TYPE_CHECKING, Final
from urllib.parse import urlsplit

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from consumerd.java import JavaRuntime, find_java
from consumerd.spark.jvm import forget, is_gone
from consumerd.spark.launch import SparkStartError, last_reason, prepare_java, prepare_python, start_jvm

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: What every session has, unless the caller or Spark's own configuration says otherwise.
DEFAULTS: Final[Mapping[str, str]] = {
    "spark.python.unix.domain.socket.enabled": "true",  # halves the cost of small splits
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
}
#: Spark's launcher asks for a progress bar on standard error of every session that it takes for a shell's, as ours.
_LAUNCH_DEFAULTS: Final[Mapping[str, str]] = {"spark.ui.showConsoleProgress": "false"}
#: Besides, where driver and executors are on this machine: nothing listens on other interfaces, and a streaming query's
#: state is not in 200 parts, each of which costs a task and some files per batch.
LOCAL_DEFAULTS: Final[Mapping[str, str]] = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "8",
}
#: Any of these may bring a master from outside: spark-submit, or a folder with Spark's configuration files.
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
    `config` names. `log`: a file, open for reading and writing, for what the JVM and the workers print; None leaves it
    on standard error. `log_level`: the least severe that Spark logs. Where a session runs already, all of these but
    `config`'s SQL settings are too late.

    Raises MissingRuntimeError where there is no Java, SparkStartError where the JVM or the context does not start.
    """
    asked = dict(config or {})
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
    prepare_python(executors_here=here)
    for key, value in {**DEFAULTS, **(LOCAL_DEFAULTS if here else {})}.items():
        conf.setIfMissing(key, value)
    try:
        SparkContext.getOrCreate(conf)
        return SparkSession.builder.getOrCreate()
    except (Py4JError, PySparkException) as error:
        reason = _reason(error)
        if "stopped SparkContext" in reason:  # what pyspark meets when the cluster has turned the application away
            reason = last_reason(log) or reason
        raise SparkStartError(f"Spark did not start on {conf.get('spark.master')}: {reason}") from error


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


def _ensure_jvm(wanted: Mapping[str, str], java: JavaRuntime | None, log: IO[bytes] | None, log_level: str) -> None:
    # pyspark has no public question for "is there a JVM", and a second one beside it would never be used.
    if SparkContext._gateway is not None:  # noqa: SLF001
        return
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # else spark-submit has started it
        prepare_java(java or find_java())
        prepare_python(executors_here=is_here(wanted.get("spark.master")))
    conf = SparkConf(loadDefaults=False)
    for key, value in {**_LAUNCH_DEFAULTS, **wanted}.items():
        conf.set(key, value)
    SparkContext._ensure_initialized(gateway=start_jvm(conf, log, log_level))  # noqa: SLF001


def _reason(error: Py4JError | PySparkException) -> str:
    """The first line of what was the matter, innermost cause first."""
    if isinstance(error, Py4JJavaError):
        cause = error.java_exception
        while (inner := cause.getCause()) is not None:
            cause = inner
        text = f"{cause.getMessage() or cause.getClass().getName()}"
    else:
        text = str(error)
    return text.strip().splitlines()[0] if text.strip() else type(error).__name__
