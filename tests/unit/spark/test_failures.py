from __future__ import annotations

from pathlib import Path

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark import SparkContext
from pyspark.errors import PySparkAttributeError, PySparkException

from consumerd.base.errors import BrokerError, ConsumerdError, ExitCode, NotFoundError
from consumerd.base.files import SystemFiles
from consumerd.member.fetch.errors import BrokerUnknownError
from consumerd.spark.failures import (
    FileFailedError,
    SparkConnectError,
    SparkFailedError,
    SparkGoneError,
    declared,
    declared_errors,
)

TRACEBACK = """[PYTHON_DATA_SOURCE_ERROR] Failed to plan: Traceback (most recent call last):
  File "x.py", line 1, in <module>
    raise ValueError("consumerd.base.errors.NotFoundError: quoted, not raised")
consumerd.base.errors.BrokerError: the inner one

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "x.py", line 2, in plan
{last}
\tat org.apache.spark.sql.Thing(Thing.scala:1)
"""


def test_rebuilds_the_last_declared_error_of_a_traceback() -> None:
    error = declared(
        PySparkException(TRACEBACK.format(last="consumerd.base.errors.NotFoundError: no topic 'a: b'; see x."))
    )
    assert type(error) is NotFoundError
    assert str(error) == "no topic 'a: b'; see x."
    assert error.exit_code is ExitCode.NOT_FOUND


def test_keeps_class_and_sentence_of_an_error_with_other_arguments() -> None:
    error = declared(PySparkException("x: consumerd.member.fetch.errors.BrokerUnknownError: broker 7 is not there"))
    assert type(error) is BrokerUnknownError
    assert str(error) == "broker 7 is not there"


@pytest.mark.parametrize(
    "last",
    [
        "consumerd.base.errors.Nothing: x",
        "consumerd.nothing.NotFoundError: x",
        "consumerd.base.errors.ExitCode: x",
        "KeyError: 1",
    ],
)
def test_ignores_names_that_are_not_declared_errors(last: str) -> None:
    assert type(declared(PySparkException(TRACEBACK.format(last=last)))) is BrokerError


def test_says_that_steps_do_not_run_with_spark_connect() -> None:
    error = PySparkAttributeError(
        errorClass="JVM_ATTRIBUTE_NOT_SUPPORTED", messageParameters={"attr_name": "sparkContext"}
    )
    with (
        pytest.raises(
            SparkConnectError, match=r"^the steps of a pipeline do not run with Spark Connect, .*local\[\*\]"
        ),
        declared_errors(),
    ):
        raise error


def test_says_what_a_worker_that_does_not_start_means() -> None:
    error = declared(
        PySparkException("[STREAM_FAILED] Query [id = 1] terminated: Python worker failed to connect back")
    )
    assert str(error).startswith("a Python worker of Spark did not start in time: the machine has too much to do, or")


def test_shortens_other_errors_to_their_first_line() -> None:
    error = declared(PySparkException("\n  [PATH_NOT_FOUND] gone" + "!" * 9000 + "\nJVM stacktrace:\nx"))
    assert isinstance(error, SparkFailedError)
    assert str(error).startswith("Spark failed: [PATH_NOT_FOUND] gone!")
    assert "JVM" not in str(error)
    assert len(str(error)) < 1000
    assert error.exit_code is ExitCode.SPARK


def test_takes_the_last_line_of_a_traceback() -> None:
    text = "[X] Failed to plan: Traceback (most recent call last):\n  File 'x'\nModuleNotFoundError: No module 'a'\n z"
    error = declared(PySparkException(text))
    assert str(error) == "Spark failed: [X] Failed to plan: ModuleNotFoundError: No module 'a'"


class UnreadableError(PySparkException):
    """The JVM that has the message ended before it was read."""

    def __str__(self) -> str:
        raise Py4JNetworkError("An error occurred while trying to connect to the Java server")


def test_reports_that_the_jvm_ended_before_its_error_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkContext, "_gateway", None)  # that of other tests' session
    error = declared(UnreadableError("boom"))
    assert isinstance(error, SparkGoneError)
    assert str(error).startswith("Spark's JVM ended, or cannot be reached: ")


def test_translates_only_errors_of_spark() -> None:
    with pytest.raises(KeyError), declared_errors():
        raise KeyError(1)
    cause = PySparkException("one")
    with pytest.raises(ConsumerdError) as caught, declared_errors():
        raise cause
    assert caught.value.__cause__ is cause


def test_reports_an_unwritable_directory_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "lake").write_text("a file")
    sentence = "/lake/bronze cannot be read or written .Not a directory.: check"
    with pytest.raises(FileFailedError, match=sentence) as caught, declared_errors():
        SystemFiles().make_directory(f"{tmp_path}/lake/bronze")
    assert caught.value.exit_code is ExitCode.SPARK
    with pytest.raises(BrokenPipeError), declared_errors():
        raise BrokenPipeError(32, "Broken pipe")
