"""As the first process of a container, `consumerd` waits for orphans, and passes signals and exit codes on."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

#: Runs `work` in place of a command.
COMMAND = """
import asyncio, os, signal, subprocess, sys, time
from consumerd.cli import main

def work(arguments):
    assert (os.getppid(), os.path.realpath("/proc/self")) == (1, f"/proc/{os.getpid()}")
    return command()

main.run = work
"""
NAMESPACE = ["--pid", "--fork", "--kill-child", "--mount-proc"]


@functools.cache
def namespace() -> list[str]:
    """The command that runs another one as the first process of a PID namespace."""
    reason = f"there are no PID namespaces on {sys.platform}"
    for options in (NAMESPACE, ["--user", "--map-root-user", *NAMESPACE]) if sys.platform == "linux" else ():
        try:
            tried = subprocess.run(["unshare", *options, "true"], capture_output=True, text=True, check=False)
        except FileNotFoundError:
            reason = "unshare is missing"
            break
        if tried.returncode == 0:
            return ["unshare", *options]
        reason = f"the kernel does not allow a PID namespace: {tried.stderr.strip()}"
    pytest.skip(reason)


def start(command: str, *before: str, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
    script = f"{COMMAND}\ndef command():\n{command}\nmain.main()\n"
    return subprocess.Popen(
        [*before, *namespace(), sys.executable, "-c", script],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def first_process(process: subprocess.Popen[str]) -> int:
    """The process that is the first one of its namespace, as it is seen from here."""
    return int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())


def test_reaps_orphans_and_leaves_the_exit_codes_of_other_children() -> None:
    command = """
    def gone(number):
        return not os.path.exists(f"/proc/{number}")

    async def started():
        process = await asyncio.create_subprocess_exec("sh", "-c", "sleep 0.01 & echo $!; exit 7", stdout=-1)
        orphan, _ = await process.communicate()
        assert process.returncode == 7
        return int(orphan)

    async def orphans():
        return await asyncio.gather(*(started() for _ in range(20)))

    early = subprocess.Popen(["sh", "-c", "exit 5"])
    numbers = asyncio.run(orphans())
    while not all(map(gone, numbers)):
        time.sleep(0.01)
    assert not gone(early.pid)
    assert early.wait() == 5
    print(len(numbers), flush=True)
    return 3
"""
    with start(command) as process:
        try:
            assert process.communicate(timeout=60) == ("20\n", "")
        finally:
            process.kill()
    assert process.returncode == 3


def test_passes_signals_on() -> None:
    command = """
    signal.signal(signal.SIGHUP, lambda *_: print("SIGHUP", flush=True))
    print("runs", flush=True)
    while True:
        time.sleep(1)
"""
    with start(command) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "runs\n"
            os.kill(first_process(process), signal.SIGHUP)
            assert process.stdout.readline() == "SIGHUP\n"
            os.kill(first_process(process), signal.SIGTERM)
            assert process.communicate(timeout=60) == ("", "")
        finally:
            process.kill()
    assert process.returncode == 128 + signal.SIGTERM


def test_interrupt_at_a_terminal_comes_once() -> None:
    command = """
    numbers = []
    signal.signal(signal.SIGINT, lambda number, _: numbers.append(number))
    print("runs", flush=True)
    while not numbers:
        time.sleep(0.01)
    time.sleep(0.3)
    return len(numbers)
"""
    namespace()
    ours, theirs = os.openpty()
    with start(command, "setsid", "--ctty", "--wait", stdin=theirs) as process:
        os.close(theirs)
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "runs\n"
            os.write(ours, b"\x03")
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
            os.close(ours)
    assert (process.returncode, errors) == (1, "")
