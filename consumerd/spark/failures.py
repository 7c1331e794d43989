"""Failures of Spark and the file system as one declared error.

Strategy: our own code raises declared errors in the driver, in planners and in workers, but an error that has passed
through the JVM arrives as text: a traceback within the message of a Spark exception. The last line of the traceback has
the class and the message, from which the error is rebuilt, exit code included. A file system error is reported with its
reason, from any place in the chain of Java causes, and a dead JVM with how it ended. Everything else becomes a
`SparkFailedError` with its first line and the innermost cause; the full text is in the error's cause and in Spark's
log.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from consumerd.base.errors import ConfigError, ConsumerdError, ExitCode
from consumerd.spark.jvm import how_it_ended

_RAISED: Final = re.compile(r"^[^\n\"']*?\b(consumerd(?:\.\w+)*)\.(\w+): (.+)$", re.MULTILINE)
#: The last line of a traceback of Python's.
_EXCEPTION: Final = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)\b.*$", re.MULTILINE)
#: The reason of a system call that failed because of missing space or rights, as Java passes it on, and a path before.
_FILE_REASON: Final = re.compile(
    r"(?:(?P<path>(?:file:)?/[^\s:()]+)[: (]+)?"
    r"(?P<reason>No space left on device|Disk quota exceeded|Read-only file system|Input/output error|"
    r"Too many open files|Permission denied)"
)
#: Frames of Spark's own temporary files.
_SPILLING: Final = re.compile(r"^\s*at org\.apache\.spark\.(?:storage|shuffle|util\.collection)\.", re.MULTILINE)
_OUT_OF_MEMORY: Final = re.compile(r"java\.lang\.OutOfMemoryError: ([^\n]+)")
#: Spark's prefix of the reason why a query ended; the ids do not help a reader.
_QUERY_ENDED: Final = re.compile(r"\[STREAM_FAILED\] Query \[[^\]]*\] terminated with exception: ")
#: What Spark says of a worker that did not connect within 10 s.
_NO_WORKER: Final = "Python worker failed to connect back"
_WORDS: Final = 600
#: A chain of causes is no longer.
_CAUSES: Final = 30


class SparkFailedError(ConsumerdError):
    """A job, a query or its planning failed in Spark."""

    exit_code = ExitCode.SPARK


class SparkConnectError(ConfigError):
    """The session is one of Spark Connect, which has no JVM in this process."""


#: What pyspark says where Spark Connect lacks an attribute that needs a JVM.
_NO_JVM: Final = "JVM_ATTRIBUTE_NOT_SUPPORTED"
WITH_CONNECT: Final = (
    "the steps of a pipeline do not run with Spark Connect, because checkpoints and tables need the driver's JVM: run "
    "them in a session with a master such as local[*], spark://HOST:7077 or k8s://..., or by spark-submit; "
    'the data source format("consumerd") works with Spark Connect'
)


class SparkGoneError(SparkFailedError):
    """Spark's JVM has ended while it was at work."""


class FileFailedError(SparkFailedError):
    """A file of a table, a checkpoint or a report cannot be read or written."""


@contextmanager
def declared_errors(place: str | None = None) -> Iterator[None]:
    """Raise errors of Spark and the file system as a ConsumerdError.

    `place`: where is written meanwhile, for the sentence about a file system that takes no more.
    """
    try:
        yield
    except OSError as error:
        if error.filename is None:  # no file's: standard output's, say, or that of the connection to the JVM
            if (gone := _gone(error)) is not None:
                raise gone from error
            raise
        reason = f"{error.filename} cannot be read or written ({error.strerror})"
        raise FileFailedError(f"{reason}: check permissions and free space.") from error
    except (Py4JError, PySparkException) as error:
        raise declared(error, place) from error


def declared(error: Exception, place: str | None = None) -> ConsumerdError:
    """The declared error that an exception of Spark's stands for. `place` as in `declared_errors`."""
    try:
        return _declared(error, place)
    except (Py4JError, OSError) as unread:  # the message of a Java exception is requested from the JVM
        if (gone := _gone(unread)) is None:
            raise
        return gone


def _declared(error: Exception, place: str | None) -> ConsumerdError:
    if (gone := _gone(error)) is not None:
        return gone
    if isinstance(error, PySparkException) and error.getCondition() == _NO_JVM:
        return SparkConnectError(f"{WITH_CONNECT}.")
    texts = _texts(error)
    text = "\n".join(texts)
    for module, name, sentence in reversed(_RAISED.findall(text)):
        if (kind := _declared_class(module, name)) is not None:
            found = kind.__new__(kind, sentence)  # its __init__ may require the parts of the sentence
            found.args = (sentence,)
            return found
    if (refused := _FILE_REASON.search(text)) is not None:
        return _file_failed(refused, text, place)
    if "CONCURRENT_STREAM_LOG_UPDATE" in text:
        return SparkFailedError(
            f"another run is using the checkpoint {place or 'of this query'}: stop one of them; two pipelines "
            "must differ in name or root."
        )
    if (memory := _OUT_OF_MEMORY.search(text)) is not None:
        return SparkFailedError(
            f"Spark ran out of memory ({memory[1].strip()}): raise spark.driver.memory, on a cluster "
            "spark.executor.memory, in [spark.config]."
        )
    if _NO_WORKER in text:
        return SparkFailedError(
            "a Python worker of Spark did not start in time: the machine has too much to do, or the interpreter of "
            "PYSPARK_PYTHON cannot start; completed work is kept, and the same command continues from there."
        )
    return SparkFailedError(f"Spark failed: {': '.join(_said(texts))[:_WORDS]}")


def _gone(error: Exception) -> SparkGoneError | None:
    ended = how_it_ended(error)
    if ended is None:
        return None
    return SparkGoneError(
        f"Spark's JVM {ended}: check the kernel's log, Spark's log (--log) and free memory "
        "(spark.driver.memory in [spark.config]); completed work is kept, and the same command continues from there."
    )


def _file_failed(refused: re.Match[str], text: str, place: str | None) -> FileFailedError:
    where = refused["path"]
    if where is None:
        spilled = _SPILLING.search(text) is not None
        where = "the folder of Spark's temporary files (spark.local.dir, else /tmp)" if spilled else place
    where = "a file of Spark's" if where is None else where.removeprefix("file:")
    return FileFailedError(
        f"{where} cannot be read or written ({refused['reason']}): check free space and "
        "permissions; completed work is kept, and the same command continues from there."
    )


def _said(texts: list[str]) -> list[str]:
    """The first line of Spark's message (of a traceback the last one) and the innermost Java cause."""
    lines = [line.strip() for line in texts[0].splitlines() if line.strip()]
    said = [_QUERY_ENDED.sub("", lines[0]) if lines else "Spark gave no reason"]
    if "Traceback (most recent call last)" in texts[0] and (raised := _EXCEPTION.findall(texts[0])):
        said = [said[0].partition("Traceback (")[0].strip(" :"), raised[-1]]
    for cause in reversed(texts[1:]):
        if line := next((line.strip() for line in cause.splitlines() if line.strip()), ""):
            if not any(line in each for each in said):
                said.append(line)
            break
    return list(filter(None, said))


def _declared_class(module: str, name: str) -> type[ConsumerdError] | None:
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None
    return found if isinstance(found, type) and issubclass(found, ConsumerdError) else None


def _texts(error: Exception) -> list[str]:
    """The message of an exception, and then its Java causes, outermost first."""
    java: Any = error.java_exception if isinstance(error, Py4JJavaError) else getattr(error, "_origin", None)
    texts = [] if isinstance(error, Py4JJavaError) else [str(error)]
    try:
        if not texts:
            texts, java = [_message(java)], java.getCause()
        elif java is not None:
            java = java.getCause()
        while java is not None and len(texts) < _CAUSES:
            texts.append(_message(java))
            java = java.getCause()
    except (Py4JError, OSError):
        pass  # the JVM has ended meanwhile: the texts read so far are used
    return texts or [str(error)]


def _message(java: Any) -> str:
    return str(java.getMessage() or java.getClass().getName())
