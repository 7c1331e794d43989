"""The configuration of a daemon, read and validated by a child process: pydantic stays out of the daemon.

Strategy: pydantic and its models take 9 MiB, and the search for plugins 2. Both are needed once. The child is forked
before the process has threads or an event loop, when what both need is imported, and validates while the parent imports
the rest. Only a valid configuration comes back, as plain values, with the entry points of the installed packages. In
any other case, also where a child cannot be started, the process reads the file by itself, as every command does: so
errors and their tracebacks are the same. A reload has a process of its own, as one with threads must not be forked.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn, cast

from consumerd.base.plugins import KINDS, entry_points, remember_entry_points
from consumerd.service.config.model import Config, load, parse

#: The program of the process that parses for a reload.
_PARSES: Final = (
    "import pickle, sys; from consumerd.service.config.child import parsed; "
    "sys.stdout.buffer.write(parsed(*pickle.load(sys.stdin.buffer)))"
)


def begin_loading(path: Path) -> Callable[[], Config]:
    """Begin to read the configuration at `path`; return what waits for it: raises ConfigError, as `load`."""
    if "pydantic" in sys.modules or threading.active_count() > 1:  # nothing to be spared; not safe
        return partial(load, path)
    reader, writer = os.pipe()
    try:
        child = os.fork()
    except OSError:  # a limit on processes
        os.close(reader)
        os.close(writer)
        return partial(load, path)
    if child == 0:
        _validate(path, writer)
    os.close(writer)
    return partial(_loaded, path, child, reader)


def _validate(path: Path, writer: int) -> NoReturn:
    """Write the configuration to the pipe, or nothing, and end this process."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends without a traceback: the parent reports it
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        with open(writer, "wb") as pipe:
            pipe.write(_pickled(load(path)))
        code = 0
    finally:
        os._exit(code)  # whatever the error is: the parent meets it again, and reports it


def _loaded(path: Path, child: int, reader: int) -> Config:
    with open(reader, "rb") as pipe:
        pickled = pipe.read()
    try:
        _, status = os.waitpid(child, 0)
    except ChildProcessError:  # SIGCHLD is ignored, so nobody knows how it ended
        status = -1
    return load(path) if status else _unpickled(pickled)


def parsed(document: dict[str, Any], source: str) -> bytes:
    """Return what the process of `parse_aside` writes. Raises as `consumerd.service.config.model.parse`."""
    return _pickled(parse(document, source))


def _pickled(config: Config) -> bytes:
    return pickle.dumps((config, {kind.group: entry_points(kind.group) for kind in KINDS}))


def _unpickled(pickled: bytes) -> Config:
    config, found = pickle.loads(pickled)  # noqa: S301 - of our own child
    remember_entry_points(found)
    return cast("Config", config)


def parse_aside(document: dict[str, Any], source: str) -> Config:
    """As `consumerd.service.config.model.parse`, in another process if this one is without pydantic. Blocks."""
    if "pydantic" not in sys.modules and sys.executable:
        try:
            ended = subprocess.run(
                [sys.executable, "-P", "-c", _PARSES],
                input=pickle.dumps((dict(document), source)),
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                check=False,
            )
        except OSError:  # a limit on processes
            return parse(document, source)
        if ended.returncode == 0:
            return _unpickled(ended.stdout)
    return parse(document, source)
