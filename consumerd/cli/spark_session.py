"""Shared by the commands of `consumerd spark`: a session with its log, signals, and progress.

Strategy: Spark logs a lot, and to standard error, so everything that its JVM prints goes to a file: a temporary one
that is read when the start fails, or the one that `--log` names. While steps run, one thread looks after the session:
it shows how far the streaming queries are, and ends the work once a signal has come: jobs at once, queries between two
batches; a step with a handler of its own lets its batch end. It learns of signals through a socket, not in a handler:
the main thread may be executing a call to the JVM.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import select
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Self

import click

from consumerd.base.clock import SystemClock
from consumerd.base.errors import ConfigError, ConsumerdError, ExitCode
from consumerd.cli.config_option import together
from consumerd.cli.step_progress import Display, StepBatches, display
from consumerd.spark.stopping import ends_its_batch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOOK_EVERY: Final = 0.5
_STOP_LOOK_EVERY: Final = 0.1
#: A batch that runs when a signal comes has so many seconds to end.
_GRACE: Final = 30.0
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class StoppedBySignal(ConsumerdError):  # noqa: N818 - no error, an end that was asked for
    """A signal ended the work before it was done."""

    exit_code = ExitCode.INTERRUPTED


session_options = together(
    click.option(
        "--master",
        metavar="URL",
        help="Spark master, such as local[4], spark://HOST:7077 or k8s://...  [default: the configuration's, or "
        "local[*]]",
    ),
    click.option(
        "--log",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="File for Spark's own warnings and errors, with their stack traces.",
    ),
)


def require_spark(*also: str) -> None:
    """Raise ConfigError unless the extra is installed. `also`: packages of it that only some commands need."""
    for package in ("pyspark", "pyarrow", *also):
        if importlib.util.find_spec(package) is None:
            raise ConfigError(
                f"this needs the package {package}; install the spark extra: pip install 'consumerd[spark]'"
            )


class Work:
    """The session of some steps, and whether a signal has requested their end."""

    def __init__(self, spark: SparkSession, shown: Display, signals: socket.socket) -> None:
        self.spark = spark
        self._shown = shown
        self._signals = signals
        self._signal: signal.Signals | None = None
        #: Whether the step that ran when it came ends by itself.
        self._ends_itself = False
        self._done = threading.Event()
        self._asked = threading.Event()
        self._thread = threading.Thread(target=self._look_after, name="consumerd-spark-watch", daemon=True)

    @property
    def stopped(self) -> bool:
        """Whether a signal has requested the end."""
        return self._signal is not None

    def begin(self, step: str) -> None:
        """Show that a step begins. Raises StoppedBySignal to prevent a further one."""
        self.check()
        self._shown.step(step)

    def batches(self, step: str) -> StepBatches:
        """Shows the batches of a step that plans them itself."""
        return StepBatches(step, self._shown, SystemClock().monotonic)

    def check(self) -> None:
        """Raise StoppedBySignal if a signal has requested the end."""
        if self._signal is not None:
            raise StoppedBySignal(f"stopped by {self._signal.name}; the same command continues where this one stopped.")

    def wait(self, seconds: float) -> bool:
        """Wait so long, or until a signal; returns whether one came."""
        return self._asked.wait(seconds)

    def _look_after(self) -> None:
        stopping: dict[Any, float] = {}
        while not self._done.is_set():
            try:
                self._read_signals(_STOP_LOOK_EVERY if self.stopped else _LOOK_EVERY)
                if self._done.is_set():
                    return
                self._look(stopping)
            except Exception as error:
                from consumerd.spark.jvm import how_it_ended  # noqa: PLC0415 - heavy, and loaded by now

                if how_it_ended(error) is None:
                    raise
                return  # the steps meet the same end, and tell of it
            self._shown.tick()

    def _look(self, stopping: dict[Any, float]) -> None:
        queries = self.spark.streams.active
        if self.stopped:
            self._stop(queries, stopping)
        for query in queries:
            if (last := query.lastProgress) is not None:
                self._shown.batch(query.name or "", last.batchId, last.numInputRows, last.processedRowsPerSecond)

    def _read_signals(self, seconds: float) -> None:
        """Wait so long for a signal; the second one ends the process at once."""
        readable, _, _ = select.select([self._signals], [], [], seconds)
        for number in self._signals.recv(64) if readable else b"":
            if number in _SIGNALS:
                if self._signal is not None:
                    os._exit(ExitCode.FORCED)
                self._ends_itself = ends_its_batch()
                self._signal = signal.Signals(number)
                self._asked.set()

    def _stop(self, queries: Iterable[Any], stopping: dict[Any, float]) -> None:
        """End the running work: jobs at once, queries between two batches, or within one that takes too long.

        A step with a handler of its own stops by itself, and then counts what was done.
        """
        if self._ends_itself:
            return
        now = time.monotonic()
        if not queries:
            self.spark.sparkContext.cancelAllJobs()
        for query in queries:
            began = stopping.setdefault(query.runId, now)
            if not query.status["isTriggerActive"] or now - began > _GRACE:
                query.stop()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join(_GRACE)


@contextlib.contextmanager
def working(
    *, master: str | None, config: Mapping[str, str], packages: Iterable[str] = (), log: Path | None, app_name: str
) -> Iterator[Work]:
    """Yield a session for some steps; errors of Spark become declared errors. A new session ends with the steps."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - heavy imports for the command that runs

    from consumerd.spark.failures import declared_errors  # noqa: PLC0415
    from consumerd.spark.jvm import end_session, quiet_end  # noqa: PLC0415
    from consumerd.spark.session import build_session  # noqa: PLC0415

    with contextlib.ExitStack() as stack:
        sink = stack.enter_context(_log_file(log))
        shown = stack.enter_context(display(sys.stderr))
        shown.step("starting Spark")
        running = SparkSession.getActiveSession()
        spark = build_session(
            master, app_name=app_name, config=config, packages=packages, log=sink,
            log_level="error" if log is None else "warn",  # an unread file must not grow for weeks
        )  # fmt: skip
        if running is None:
            stack.callback(end_session, spark)
        stack.enter_context(quiet_end(spark))
        work = stack.enter_context(Work(spark, shown, stack.enter_context(_caught_signals())))
        try:
            with declared_errors():
                yield work
        except ConsumerdError:
            work.check()  # an end on request is not a failure
            raise


def _log_file(path: Path | None) -> IO[bytes]:
    if path is None:
        return tempfile.TemporaryFile(prefix="consumerd-spark-")
    try:
        return path.open("w+b", buffering=0)
    except OSError as error:
        raise ConfigError(f"--log {path} cannot be written: {error.strerror}") from error


@contextlib.contextmanager
def _caught_signals() -> Iterator[socket.socket]:
    """Return a socket that receives a byte, the signal's number, for every signal, independent of its handler."""
    reader, writer = socket.socketpair()
    with reader, writer:
        writer.setblocking(False)
        former = {number: signal.signal(number, lambda *_: None) for number in _SIGNALS}
        waking = signal.set_wakeup_fd(writer.fileno())
        try:
            yield reader
        finally:
            signal.set_wakeup_fd(waking)
            for number, handler in former.items():
                signal.signal(number, handler)
