"""Errors and exit codes: every failure that a user can cause or repair has a class here or in its room, and a code.

Strategy: `ConsumerdError` carries one clear sentence that names the thing and the remedy; the command line prints
that sentence and exits with the class's `exit_code`. A traceback appears only with `--debug`. An exception that is
not a `ConsumerdError` is a defect of ours and exits with `ExitCode.INTERNAL`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import ClassVar


class ExitCode(IntEnum):
    """Exit codes of every command. Scripts may rely on them; they change only with a major version."""

    #: Success (for `run`: a graceful stop).
    OK = 0
    #: A defect in consumerd itself.
    INTERNAL = 1
    #: Wrong command line (also used by the option parser).
    USAGE = 2
    #: The configuration is missing, unreadable or wrong.
    CONFIG = 3
    #: A handler plugin cannot be found, imported or built.
    HANDLER = 4
    #: ZooKeeper cannot be reached, refuses us, or holds nodes that contradict us.
    ZOOKEEPER = 5
    #: A broker cannot be reached or breaks the protocol.
    BROKER = 6
    #: Data on disk or on the wire is corrupt and the policy is to stop.
    CORRUPT = 7
    #: A topic, group or partition that was named does not exist.
    NOT_FOUND = 8
    #: The configured consumer id or broker id is held by another live process.
    ID_TAKEN = 9
    #: The handler kept failing and the policy is to stop.
    HANDLER_FAILED = 10
    #: A requested check found differences (`log verify`, `demo`, ...).
    CHECK_FAILED = 11
    #: The stop deadline passed, or a second signal forced the exit.
    FORCED = 12
    #: A change was refused because it would do harm (offsets of a group that runs, ...); nothing was changed.
    REFUSED = 13
    #: Spark did not start, a job of it failed, or a worker process of `lake` ended.
    SPARK = 14
    #: Interrupted from the terminal (128 + SIGINT).
    INTERRUPTED = 130
    #: The reader of our output closed the pipe (128 + SIGPIPE).
    PIPE = 141


class ConsumerdError(Exception):
    """Base of every declared error: `str(error)` is one sentence with the thing and the remedy."""

    exit_code: ClassVar[ExitCode] = ExitCode.INTERNAL


def nearest(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """Return the known name that is most similar to `name`, in upper or lower case.

    None if none is as similar as `cutoff`, from 0 to 1.
    """
    from difflib import get_close_matches  # noqa: PLC0415 - only an error needs it

    lowered = {each.lower(): each for each in known}
    return next((lowered[each] for each in get_close_matches(name.lower(), lowered, n=1, cutoff=cutoff)), None)


def did_you_mean(name: str, known: Iterable[str], otherwise: str = ".") -> str:
    """Return the end of a sentence about an unknown name: `, did you mean 'size'?`, or `otherwise`."""
    meant = nearest(name, known)
    return otherwise if meant is None else f", did you mean {meant!r}?"


def reason_of(error: BaseException) -> str:
    """Return the text of an error of any class for a log event or a message: one line, never empty.

    A bare TimeoutError has no text, and others, such as KeyError, say little without their type.
    """
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(reason_of(each) for each in error.exceptions)
    text = " ".join(str(error).split())
    if isinstance(error, TimeoutError):
        return text or "no answer in time"
    name = type(error).__name__
    if isinstance(error, ConsumerdError | OSError):
        return text or name
    return f"{name}: {text}" if text else name


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The errors in a group and in groups within it; `error` itself if it is not a group."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error


class ConfigError(ConsumerdError):
    """The configuration is missing, unreadable or wrong."""

    exit_code = ExitCode.CONFIG


class HandlerLoadError(ConsumerdError):
    """A handler plugin cannot be found, imported or built."""

    exit_code = ExitCode.HANDLER


class HandlerFailedError(ConsumerdError):
    """The handler failed more often than its retry policy allows."""

    exit_code = ExitCode.HANDLER_FAILED


class ZooKeeperError(ConsumerdError):
    """ZooKeeper cannot be reached, refuses us, or holds nodes that contradict us."""

    exit_code = ExitCode.ZOOKEEPER


class IdTakenError(ConsumerdError):
    """A configured consumer id or broker id is held by another live process."""

    exit_code = ExitCode.ID_TAKEN


class BrokerError(ConsumerdError):
    """A broker cannot be reached or breaks the protocol."""

    exit_code = ExitCode.BROKER


class CorruptDataError(ConsumerdError):
    """Bytes on disk or on the wire are corrupt, which must not be ignored."""

    exit_code = ExitCode.CORRUPT


class NotFoundError(ConsumerdError):
    """A topic, group or partition that was named does not exist."""

    exit_code = ExitCode.NOT_FOUND
