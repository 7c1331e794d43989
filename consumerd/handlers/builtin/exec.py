"""A handler that feeds messages to a program: NDJSON on its standard input, acknowledged line by line.

Strategy: one process for each member, started with the first batch and kept. It gets one line for each message (see
`consumerd.handlers.builtin.records`) and prints one line for each that it has handled, in order: an empty line or `ok`,
`ok N` for N messages at once, or `error` and a reason, which fails the message at the front. Lines are written while
acknowledgements are read, so neither side waits for the other's pipe; each acknowledgement moves the position.

Input that a program has read ahead of a failure cannot be taken back, so after a failure, timeout or cancellation it is
killed, with all processes that it started in its group, and the next batch starts it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import structlog

from consumerd.base.errors import HandlerFailedError
from consumerd.base.settings.kind import checked
from consumerd.base.settings.setting import SecondsOrZero
from consumerd.base.threads import until_done
from consumerd.handlers.api import Handler
from consumerd.handlers.builtin.records import encode_records
from consumerd.handlers.chunks import in_chunks
from consumerd.handlers.context import HandlerContext
from consumerd.handlers.messages import Batch
from consumerd.handlers.threads import in_thread

log = structlog.get_logger(__name__)

#: Lines, and their bytes, that are written at once.
_LINES: Final = 1000
_BYTES: Final = 256 << 10
#: Of one line that a program prints.
_MAX_LINE: Final = 64 << 10


class ProgramError(Exception):
    """The program ended, failed a message, or printed something else than an acknowledgement."""


class ExecHandler(Handler):
    """Feeds a program. Options:

    `command`: the program and its arguments, a list; no shell is involved. `cwd`: where it runs. `env`: variables that
    are added to the daemon's own. `stop_timeout`: seconds that it has to end once its standard input was closed. What
    it prints on standard error goes to that of the daemon.
    """

    @checked
    def __init__(
        self,
        command: Sequence[str],
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stop_timeout: SecondsOrZero = 5.0,
    ) -> None:
        if not isinstance(command, list | tuple) or not command or not all(isinstance(each, str) for each in command):
            raise ValueError(f'command must be a list such as ["/usr/bin/program", "--option"], not {command!r}')
        self._command = tuple(command)
        self._cwd = cwd
        self._env = None if env is None else {**os.environ, **{name: str(value) for name, value in env.items()}}
        self._stop_timeout = stop_timeout
        self._turn = asyncio.Lock()  # partitions come concurrently
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, context: HandlerContext) -> None:
        """Start the program, so that a wrong command is found before the group is joined."""
        await self._running()

    async def check_online(self) -> str:
        """Look for the program. Raises HandlerFailedError."""
        program, directory = self._command[0], Path(self._cwd or ".")
        path = (self._env or os.environ).get("PATH")

        def look() -> str | None:
            if not directory.is_dir():
                raise HandlerFailedError(
                    f"handler 'exec' cannot run in {directory}: it is not a directory; check options.cwd."
                )
            return shutil.which(str(directory / program) if os.sep in program else program, path=path)

        found: str | None = await in_thread(look)
        if found is None:
            raise HandlerFailedError(
                f"handler 'exec' cannot start {program!r}: there is no such program that may be executed; check "
                "options.command and PATH."
            )
        return f"{found} can be executed"

    async def stop(self) -> None:
        """Close the program's standard input and wait for its end; kill it after `stop_timeout`."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(self._stop_timeout):
                await process.wait()
        except TimeoutError:
            log.warning("program_killed", program=self._command[0], reason="it did not end after its input")
        finally:
            await _kill(process)

    async def handle(self, batch: Batch) -> None:
        """Return when the program has acknowledged every message of `batch`. Raises ProgramError, OSError."""
        async with self._turn:
            process = await self._running()
            try:
                async with asyncio.TaskGroup() as group:
                    feeding = group.create_task(_feed(process, batch.rest(batch.handled)))
                    group.create_task(self._acknowledge(process, batch, feeding))
            except BaseExceptionGroup as errors:
                await self._ended(process)
                raise errors.exceptions[0] from None
            except BaseException:
                await self._ended(process)
                raise

    async def _running(self) -> asyncio.subprocess.Process:
        if self._process is not None and self._process.returncode is None:
            return self._process
        await self._ended(self._process)
        starting = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                cwd=self._cwd,
                env=self._env,
                limit=_MAX_LINE,
                start_new_session=True,  # Ctrl-C is the daemon's, and all that it starts can be killed at once
            )
        )
        # It runs before this returns: a cancellation in between must not leave it, and what it started, behind.
        cancelled = await until_done(starting)
        try:
            self._process = starting.result()
        except (FileNotFoundError, PermissionError, NotADirectoryError) as error:
            raise HandlerFailedError(
                f"handler 'exec' cannot start {self._command[0]!r}: {error.strerror}; check options.command and cwd."
            ) from error
        log.info("program_started", program=self._command[0], pid=self._process.pid)
        process = self._process
        if cancelled is not None:
            await self._ended(process)
            raise cancelled
        return process

    async def _ended(self, process: asyncio.subprocess.Process | None) -> None:
        self._process = None
        if process is not None:
            await _kill(process)

    async def _acknowledge(
        self, process: asyncio.subprocess.Process, batch: Batch, feeding: asyncio.Task[None]
    ) -> None:
        assert process.stdout is not None
        while batch.handled < len(batch):
            try:
                line = await process.stdout.readuntil()
            except asyncio.IncompleteReadError:
                code = await process.wait()
                feeding.cancel()  # the end of the program is the cause of an error of its pipe
                raise ProgramError(f"{self._command[0]} ended with {_outcome(code)}") from None
            except asyncio.LimitOverrunError:
                raise ProgramError(f"{self._command[0]} printed a line longer than {_MAX_LINE} bytes") from None
            batch.mark(batch.handled + self._count(line, len(batch) - batch.handled))

    def _count(self, line: bytes, most: int) -> int:
        """Return the number of messages that a line acknowledges. Raises ProgramError."""
        word, _, rest = line.decode(errors="replace").strip().partition(" ")
        if word == "error":
            raise ProgramError(rest or f"{self._command[0]} printed `error`")
        if word in ("", "ok") and not rest:
            return 1
        if word == "ok" and rest.isascii() and rest.isdigit() and len(rest) < 19 and 0 < int(rest) <= most:
            return int(rest)
        raise ProgramError(f"{self._command[0]} printed {line[:200]!r}, which acknowledges nothing")


async def _feed(process: asyncio.subprocess.Process, batch: Batch) -> None:
    """Write all lines. The task that reads its answers notices a program that stops reading."""
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        for piece in in_chunks(encode_records(batch), _LINES, _BYTES, len):
            process.stdin.write(b"".join(piece))
            await process.stdin.drain()


async def _kill(process: asyncio.subprocess.Process) -> None:
    """Kill the process and all of its group, and return when it has ended, also when cancelled meanwhile."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    cancelled = await until_done(asyncio.ensure_future(process.wait()))
    if process.stdin is not None:
        process.stdin.close()
    if cancelled is not None:
        raise cancelled


def _outcome(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {-code}"
