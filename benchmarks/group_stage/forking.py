"""The program of `benchmarks.group_stage.host.Host`: has imported everything, and forks daemons on request.

Two hundred interpreters that start at once would measure importing. It reads a line `CONFIG LOG` for each daemon that
is to start, runs `consumerd run -c CONFIG` in a fork, and says `started CONFIG PID` and `ended PID STATUS`. Its daemons
stay in its process group, so they end with it, whatever ends it.
"""

from __future__ import annotations

import contextlib
import gc
import os
import selectors
import signal

import uvloop  # noqa: F401

from consumerd.cli.main import run


def _become(config: str, log: str) -> int:
    """The child's whole life; its exit status."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(target, 1)
    os.dup2(target, 2)
    os.closerange(3, 64)
    return run(["run", "-c", config])


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            print("ended", found[0], os.waitstatus_to_exitcode(found[1]), flush=True)


def main() -> None:
    """The parent's."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writing)
    gc.collect()
    gc.freeze()
    print("READY", flush=True)
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        selector.register(reading, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fd == reading:
                    os.read(reading, 4096)
                    _reap()
                    continue
                if not (data := os.read(0, 65_536)):
                    return
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    config, log = line.decode().split(" ")
                    if not (pid := os.fork()):
                        status = 1
                        try:
                            status = _become(config, log)
                        finally:
                            os._exit(status)
                    print("started", config, pid, flush=True)


if __name__ == "__main__":
    main()
