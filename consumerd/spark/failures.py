"""What went wrong in Spark, as one declared error.

Strategy: our own code raises declared errors in the driver, in planners and in workers, but an error that has been
through the JVM comes back as text: a traceback within the message of some exception of Spark's. The last line of such
a traceback has the class and the sentence, so the error is made anew from it, exit code included. Whatever else Spark
says becomes a `SparkFailedError` with its first line; the whole is in the error's cause, and in Spark's log.
"""

from __future__ import annotations

import importlib
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from consumerd.errors import ConsumerdError, ExitCode

if TYPE_CHECKING:
    from collections.abc import Iterator

_RAISED: Final = re.compile(r"^[^\n\"']*?\b(consumerd(?:\.\w+)*)\.(\w+): (.+)$", re.MULTILINE)
#: The last line of a traceback of Python's.
_EXCEPTION: Final = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)\b.*$", re.MULTILINE)
_WORDS: Final = 600


class SparkFailedError(ConsumerdError):
    """A job, a query or its planning failed in Spark."""

    exit_code = ExitCode.SPARK


class FileFailedError(SparkFailedError):
    """A file of a table, a checkpoint or a report cannot be read or written."""


@contextmanager
def declared_errors() -> Iterator[None]:
    """Raise what Spark and the file system raise meanwhile as a ConsumerdError."""
    try:
        yield
    except OSError as error:
        if error.filename is None:  # no file's: standard output's, say
            raise
        reason = f"{error.filename} cannot be read or written ({error.strerror})"
        raise FileFailedError(f"{reason}: look at who may, and at the room that is left.") from error
    except (Py4JError, PySparkException) as error:
        raise declared(error) from error


def declared(error: Exception) -> ConsumerdError:
    """The declared error that an exception of Spark's stands for."""
    text = _text(error)
    for module, name, sentence in reversed(_RAISED.findall(text)):
        if (kind := _declared_class(module, name)) is not None:
            found = kind.__new__(kind, sentence)  # its __init__ may want what the sentence was made of
            found.args = (sentence,)
            return found
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = [lines[0] if lines else type(error).__name__]
    if "Traceback (most recent call last)" in text and (raised := _EXCEPTION.findall(text)):
        said = [said[0].partition("Traceback (")[0].strip(" :"), raised[-1]]
    return SparkFailedError(f"Spark failed: {': '.join(filter(None, said))[:_WORDS]}")


def _declared_class(module: str, name: str) -> type[ConsumerdError] | None:
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None
    return found if isinstance(found, type) and issubclass(found, ConsumerdError) else None


def _text(error: Exception) -> str:
    if not isinstance(error, Py4JJavaError):
        return str(error)
    messages = []
    cause = error.java_exception
    while cause is not None:
        messages.append(str(cause.getMessage() or cause.getClass().getName()))
        cause = cause.getCause()
    return "\n".join(reversed(messages))
