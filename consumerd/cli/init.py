"""The first process of a container (PID 1), where the image starts consumerd without an init.

Strategy: the first process inherits each orphan, and has to wait for it; else it stays as a zombie. The process that
runs the command must not do that: it cannot tell an orphan from a child whose exit code asyncio or subprocess will ask
for. So the command runs in a forked process, and the first one does nothing else than an init does: it waits for
everything that ends, passes signals on, and ends with the exit code of the command. The kernel protects the first
process from signals without a handler; the command has the usual default actions again.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Set as AbstractSet
from typing import Final

#: Signals of the process's own faults, which cannot be waited for, and those that a terminal sends to background jobs.
_NOT_PASSED: Final = frozenset(
    {
        signal.SIGABRT,
        signal.SIGBUS,
        signal.SIGFPE,
        signal.SIGILL,
        signal.SIGSEGV,
        signal.SIGSYS,
        signal.SIGTRAP,
        signal.SIGTTIN,
        signal.SIGTTOU,
    }
)
#: Of a command that a signal killed, as in a shell: 128 and the signal's number.
_KILLED: Final = 128


def fork_from_init() -> None:
    """Return in a child process that is to run the command. The calling process ends when that does."""
    signals = signal.valid_signals() - _NOT_PASSED - {signal.SIGKILL, signal.SIGSTOP}
    former = signal.pthread_sigmask(signal.SIG_BLOCK, signals | {signal.SIGTTOU})
    child = os.fork()
    if child:
        os._exit(_exit_code_of(child, signals))
    os.setpgid(0, 0)  # a terminal sends its signals to the child alone, so that Ctrl-C does not come twice
    with contextlib.suppress(OSError):
        os.tcsetpgrp(0, os.getpgrp())
    signal.pthread_sigmask(signal.SIG_SETMASK, former)


def _exit_code_of(child: int, signals: AbstractSet[int]) -> int:
    """Wait for all children and pass signals on, until `child` ends; return its exit code."""
    while True:
        number = signal.sigwait(signals)
        if number != signal.SIGCHLD:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, number)
        elif (code := _reap(child)) is not None:
            return code if code >= 0 else _KILLED - code


def _reap(child: int) -> int | None:
    """Wait for all children that have ended; return the exit code of `child`, if it is one of them."""
    code = None
    with contextlib.suppress(ChildProcessError):  # there are no more
        while True:
            ended, status = os.waitpid(-1, os.WNOHANG)
            if not ended:
                break
            if ended == child:
                code = os.waitstatus_to_exitcode(status)
    return code
