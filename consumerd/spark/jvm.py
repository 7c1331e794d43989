"""The JVM behind a session: whether and how it ended, and starting another session after that.

Strategy: pyspark keeps the process that it started beside its gateway, so its exit status can be read. It is read only
after a call has failed as calls to a dead process do, since a connection breaks a moment before the kernel reaps the
process, or as calls do while the process ends by itself, as it does when a task finds no memory. A JVM that
spark-submit has started is not a child of this process: then only the failed call tells.
"""

from __future__ import annotations

import contextlib
import logging
import re
import signal
import subprocess
from collections.abc import Iterator
from typing import Any, Final

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession, SQLContext

#: Seconds for a process to end after its connections: the kernel frees its memory first.
_BURIAL: Final = 10.0
#: Exit code of a JVM whose memory ran out: Spark's `SparkExitCode.OOM`.
_OUT_OF_MEMORY: Final = 52
#: What Spark answers to calls while its context stops because the JVM ends: of the last, after its scheduler is gone.
_ENDING: Final = re.compile(
    r"SparkContext was shut down|SparkContext has been shutdown|stopped SparkContext"
    r"|SparkContext\.dagScheduler\(\)\" is null"
)
#: Modules of py4j that log to the root logger the errors that they raise as well.
_PY4J: Final = ("py4j/java_gateway.py", "py4j/clientserver.py")


def how_it_ended(error: BaseException) -> str | None:
    """Return how the JVM ended, in words after `Spark's JVM`, if `error` is that of a call to a dead one; else None.

    A call to one that is ending counts too. Blocks for some seconds where the process still stands.
    """
    if not any(_is_of_connection(each) or _is_of_an_ending_context(each) for each in _chain(error)):
        return None
    process = _process()
    if process is None:
        return "ended, or cannot be reached"
    try:
        code = process.wait(_BURIAL)
    except subprocess.TimeoutExpired:
        return None
    if code == -signal.SIGKILL:
        return "was killed by SIGKILL, as the kernel does when memory runs out"
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    if code == _OUT_OF_MEMORY:
        return "ended because its memory ran out"
    return f"ended with the exit code {code}"


def is_gone() -> bool:
    """Whether the JVM that this process has started has ended."""
    process = _process()
    return process is not None and process.poll() is not None


def forget() -> None:
    """Let the next session start a JVM of its own, and close what belonged to the dead one."""
    context: Any = SparkContext._active_spark_context  # noqa: SLF001 - pyspark has no public way, here and below
    if context is not None:
        context._jsc = None  # noqa: SLF001 - so that `stop` asks nothing of the JVM
        context.stop()
    if (gateway := SparkContext._gateway) is not None:  # noqa: SLF001
        with contextlib.suppress(Py4JError, OSError):
            gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001
    for holder in (SparkSession, SQLContext):
        for name in ("_instantiatedSession", "_activeSession", "_instantiatedContext"):
            if hasattr(holder, name):
                setattr(holder, name, None)


def end_session(spark: SparkSession) -> None:
    """Stop the session, whether or not its JVM is still there."""
    if is_gone():
        forget()
        return
    try:
        spark.stop()
    except (Py4JError, OSError) as error:
        if how_it_ended(error) is None:
            raise
        forget()


@contextlib.contextmanager
def quiet_end(spark: SparkSession) -> Iterator[None]:
    """Suppress the tracebacks that py4j and a pyspark server print when the JVM ends; the error reports it."""

    def passes(record: logging.LogRecord) -> bool:
        return not record.pathname.endswith(_PY4J)

    server = getattr(spark.sparkContext, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda *_: None
    root = logging.getLogger()  # py4j logs the failure of a call there
    root.addFilter(passes)
    try:
        yield
    finally:
        root.removeFilter(passes)


def _process() -> subprocess.Popen[bytes] | None:
    found: subprocess.Popen[bytes] | None = getattr(SparkContext._gateway, "proc", None)  # noqa: SLF001
    return found


def _is_of_connection(error: BaseException) -> bool:
    """Whether a call got no response. One with a trace, or a Java exception, is a response."""
    if isinstance(error, Py4JError):
        return not isinstance(error, Py4JJavaError) and "Trace:" not in str(error)
    return isinstance(error, (ConnectionRefusedError, ConnectionResetError))


def _is_of_an_ending_context(error: BaseException) -> bool:
    return isinstance(error, (Py4JJavaError, PySparkException)) and _ENDING.search(str(error)) is not None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
