"""A worker process: runs one generator at a time for the process that started it, until that one closes the socket.

The parent starts it with `main` and one end of a socket. Signals are blocked by the parent, which decides whether the
work under way is finished. A parent that was killed is noticed with the next report of progress: then the worker ends,
and what it wrote is not part of a table.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Generator
from enum import Enum
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

from consumerd.base.errors import ConsumerdError

#: Yields its progress, and returns the result. Importable, as it is passed by its name.
WorkFunction: TypeAlias = "Callable[..., Generator[Any, None, Any]]"


def followed(function: WorkFunction, task: tuple[Any, ...]) -> tuple[list[Any], Any]:
    """All that a task yields, and its result."""
    yielded, work = [], function(*task)
    while True:
        try:
            yielded.append(next(work))
        except StopIteration as ended:
            return yielded, ended.value


class Reply(Enum):
    """What a worker sends, with a value each: progress, then one of the others."""

    PROGRESS = "progress"
    RESULT = "result"
    #: A declared error, or the text of another one's traceback.
    ERROR = "error"


def serve(connection: Connection) -> None:
    """Do what comes from the connection until it is closed."""
    try:
        while True:
            function, arguments = connection.recv()
            _run(connection, function, arguments)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the parent has all that it asked for, or was killed


def _run(connection: Connection, function: WorkFunction, arguments: tuple[Any, ...]) -> None:
    work = function(*arguments)
    while True:
        try:
            reply = Reply.PROGRESS, next(work)
        except StopIteration as end:
            reply = Reply.RESULT, end.value
        except ConsumerdError as error:
            reply = Reply.ERROR, error
        except Exception:
            reply = Reply.ERROR, traceback.format_exc()
        connection.send(reply)
        if reply[0] is not Reply.PROGRESS:
            return


def main(socket: int) -> None:
    """Serve the socket with this descriptor; warnings go to standard error."""
    logging.basicConfig(format="consumerd: %(message)s", level=logging.WARNING)
    serve(Connection(socket))
