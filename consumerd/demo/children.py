"""Child processes that end with this process, however it ends: servers, brokers and daemons for the demo and for tests.

Strategy: every child leads its own session, so that Ctrl-C in the terminal reaches only the parent, which then stops
its children in order. Beside each child stands a guard, a shell that reads from a pipe of ours: when we end in any
way (SIGKILL included) the pipe ends and the guard kills the child's whole process group. The child itself waits at
a gate (a line on its standard input) until its guard knows its pid, so there is no moment in which it can be orphaned.

A child is waited for through a pidfd, not through asyncio's subprocess transports: those belong to one event loop and
kill the process with it, while a session-wide test server outlives many loops. Output goes to a file, never to a
pipe that a reader would have to drain.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, ClassVar, Final, Self

from consumerd.base.errors import reason_of
from consumerd.demo.errors import ChildError

#: Reads the pid, then waits: a second line means that the child has ended, end of file that we have.
_GUARD: Final = 'read -r pid || exit 0; read -r word || kill -s KILL -- "-$pid" 2>/dev/null'
#: `$0` is the file that becomes standard input once the gate opens.
_GATE: Final = 'read -r go && exec "$@" <"$0"'
#: The same with the gate's own pipe left open as standard input.
_GATE_PIPE: Final = 'read -r go && exec "$@"'
_POLL_SECONDS: Final = 0.02


class Child:
    """One child process: started once, signalled as a process group, reaped by the first waiter.

    `log` takes its standard output and standard error (appended); with `stdout` the former goes to a file of its own.
    `stdin` is a file to read, or None for nothing; with `pipe=True` the child reads the bytes written to `Child.stdin`
    until `close_stdin`.
    """

    def __init__(
        self,
        argv: Sequence[str | os.PathLike[str]],
        *,
        log: Path,
        name: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdout: Path | None = None,
        stdin: Path | None = None,
        pipe: bool = False,
    ) -> None:
        self.argv = [os.fspath(part) for part in argv]
        self.name = name or Path(self.argv[0]).name
        self.log = log
        self._env = env
        self._cwd = cwd
        self._stdout = stdout
        self._stdin = stdin
        self._pipe = pipe
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    def __repr__(self) -> str:
        return f"<Child {self.name} pid={self._process.pid if self._process else None}>"

    def start(self) -> None:
        """Start the process. Does not block; raises ChildError when it cannot be started at all."""
        if self._process is not None:
            raise ChildError(f"{self.name} is already started")
        self.log.parent.mkdir(parents=True, exist_ok=True)
        gate, first = (_GATE_PIPE, os.devnull) if self._pipe else (_GATE, os.fspath(self._stdin or os.devnull))
        try:
            with contextlib.ExitStack() as files:
                errors = output = files.enter_context(self.log.open("ab"))
                self._log_start = errors.tell()
                if self._stdout is not None:
                    output = files.enter_context(self._stdout.open("ab"))
                self._guard = subprocess.Popen(
                    ["/bin/sh", "-c", _GUARD],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
                self._process = subprocess.Popen(
                    ["/bin/sh", "-c", gate, first, *self.argv],
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=errors,
                    env=self._env,
                    cwd=self._cwd,
                    start_new_session=True,
                )
            self._tell(self._guard, f"{self._process.pid}\n")
            self._tell(self._process, "go\n")
        except OSError as error:
            self.end_now()
            self._dismiss_guard()
            raise ChildError(f"{self.name} cannot be started: {reason_of(error)}") from error
        if not self._pipe:
            self.close_stdin()

    @staticmethod
    def _tell(process: subprocess.Popen[bytes], text: str) -> None:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it is gone, which its exit status says better
            process.stdin.write(text.encode())
            process.stdin.flush()

    @property
    def pid(self) -> int:
        """The pid, which is the id of the process group too. Raises ChildError before `start`."""
        if self._process is None:
            raise ChildError(f"{self.name} was not started")
        return self._process.pid

    @property
    def stdin(self) -> IO[bytes]:
        """The writing end of standard input (`pipe=True` only)."""
        if self._process is None or self._process.stdin is None or not self._pipe:
            raise ChildError(f"{self.name} has no standard input to write to")
        return self._process.stdin

    def close_stdin(self) -> None:
        """Let the child see the end of its standard input."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()

    @property
    def returncode(self) -> int | None:
        """The exit status (negative: the signal that killed it); None while it runs or before `start`.

        The first caller that finds the process ended also kills the rest of its process group and reaps it.
        """
        if self._process is None:
            return None
        if self._process.returncode is None and self._has_ended():
            self._signal_group(signal.SIGKILL)  # before it is reaped: until then no other process can get its id
            self._process.wait()
            self.close_stdin()
            self._dismiss_guard()
        return self._process.returncode

    def _has_ended(self) -> bool:
        assert self._process is not None
        if not hasattr(os, "waitid"):  # macOS before Python 3.13
            return self._process.poll() is not None
        return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None

    @property
    def running(self) -> bool:
        """Started and not ended (a stopped process counts as running)."""
        return self._process is not None and self.returncode is None

    def _dismiss_guard(self) -> None:
        guard, self._guard = self._guard, None
        if guard is None:
            return
        self._tell(guard, "ended\n")
        assert guard.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            guard.stdin.close()
        guard.wait()  # two reads from a closed pipe: it ends at once

    def _signal_group(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS says EPERM for a zombie's group
                os.killpg(self._process.pid, number)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process itself; nothing happens when it has ended."""
        if self.running:
            os.kill(self.pid, number)  # not reaped, so the id is still its own

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it and its process group at once (SIGKILL). It is reaped by `wait`, `stop` or `returncode`."""
        self._signal_group(signal.SIGKILL)

    def pause(self) -> None:
        """Freeze it and its process group (SIGSTOP); returns when it stands still (milliseconds)."""
        if self.running:
            self._signal_group(signal.SIGSTOP)
            if hasattr(os, "waitid"):
                os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Resume it and its process group (SIGCONT)."""
        self._signal_group(signal.SIGCONT)

    async def wait(self, timeout: float | None = None) -> int:
        """Return its exit status at its end. Raises TimeoutError after `timeout` seconds, ChildError before `start`."""
        async with asyncio.timeout(timeout):
            while (status := self.returncode) is None:
                await self._wait_a_moment()
        return status

    async def _wait_a_moment(self) -> None:
        """Return when the child has ended, or, where the system has no pidfd, after a short sleep."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except (AttributeError, OSError):  # not Linux, or not allowed here
            await asyncio.sleep(_POLL_SECONDS)
            return
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        try:
            loop.add_reader(descriptor, ended.set)
            await ended.wait()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)

    async def stop(self, grace: float = 10.0) -> int | None:
        """SIGTERM, then SIGKILL after `grace` seconds; returns when it has ended. Safe to call at any time.

        Cancelled meanwhile, it kills at once. None when it was never started.
        """
        if self._process is None:
            return None
        self.terminate()
        self.resume()  # a frozen process would keep SIGTERM pending
        self.close_stdin()
        try:
            with contextlib.suppress(TimeoutError):
                return await self.wait(grace)
            self.kill()
            return await self.wait()
        except BaseException:
            self.end_now()
            raise

    def end_now(self) -> None:
        """SIGKILL and reap, synchronously: blocks for the milliseconds that the system takes to end a process."""
        self.kill()
        if self._process is not None:
            self._process.wait()
            self.close_stdin()
            self._dismiss_guard()

    def output(self) -> str:
        """Return its output since `start`."""
        try:
            with self.log.open("rb") as log:
                log.seek(self._log_start)
                return log.read().decode(errors="replace")
        except FileNotFoundError:
            return ""

    def tail(self, lines: int = 5) -> str:
        """Its last lines of output without stack frames, joined by ` | `, for an error of one line."""
        said = [line.strip() for line in self.output().splitlines()]
        return " | ".join([line for line in said if line and not line.startswith("at ")][-lines:]) or "no output"

    async def wait_for_line(self, accept: Callable[[str], bool], timeout: float) -> str:
        """The first whole line of output that `accept` takes. Raises ChildError when it ends or `timeout` seconds pass.

        A file cannot be awaited, hence the polling.
        """
        rest = b""
        try:
            with self.log.open("rb") as log:
                log.seek(self._log_start)
                async with asyncio.timeout(timeout):
                    while True:
                        ended = not self.running  # checked first: what was written before its end is read below
                        *whole, rest = (rest + log.read()).split(b"\n")
                        for line in whole:
                            if accept(text := line.decode(errors="replace")):
                                return text
                        if ended:
                            raise ChildError(f"{self.name} ended early with status {self.returncode}: {self.tail()}")
                        await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            raise ChildError(f"{self.name} was not ready within {timeout:g} s: {self.tail()}") from None

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


class StartedChild(ABC):
    """The operations on a process that can be started again after each end; a subclass defines how it starts."""

    #: Seconds that `stop` leaves a process for an orderly end.
    _GRACE: ClassVar[float] = 10.0
    _child: Child | None = None

    @abstractmethod
    async def start(self) -> None:
        """Start it and wait until it serves; nothing happens when it runs."""

    @property
    def running(self) -> bool:
        """The process is there (perhaps paused)."""
        return self._child is not None and self._child.running

    async def stop(self, grace: float | None = None) -> int | None:
        """SIGTERM (an orderly shutdown), then SIGKILL after `grace` seconds; returns when it has ended.

        Returns its exit status (negative: the signal that ended it), None if it was never started.
        """
        return None if self._child is None else await self._child.stop(self._GRACE if grace is None else grace)

    def kill(self) -> None:
        """SIGKILL to it and its workers; returns when it is gone (milliseconds)."""
        if self._child is not None:
            self._child.end_now()

    def pause(self) -> None:
        """Freeze the process (SIGSTOP): connections stay open and nothing answers."""
        if self._child is not None:
            self._child.pause()

    def resume(self) -> None:
        """Resume a frozen process."""
        if self._child is not None:
            self._child.resume()

    async def restart(self) -> None:
        """Stop, if it runs, and start again with the same port and files."""
        await self.stop()
        await self.start()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
