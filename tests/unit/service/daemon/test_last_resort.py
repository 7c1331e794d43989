"""A process whose C code keeps the GIL for ever ends all the same: at a second signal, or after the deadline."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from consumerd.base.errors import ExitCode

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a zeroed mutex can be locked on Linux, not everywhere")

#: Locks a mutex of the C library twice. No signal interrupts that, and `PyDLL` keeps the GIL.
KEEPING = """
import asyncio, ctypes, faulthandler, os, signal, sys, time
from consumerd.service.daemon import signals
from consumerd.service.daemon.signals import StopForcedError, process_signals

mutex = ctypes.create_string_buffer(256)
lock = ctypes.PyDLL(None).pthread_mutex_lock

def keep_the_gil():
    print("keeps the GIL", flush=True)
    lock(mutex)
    lock(mutex)

class Receiver:
    stop_timeout = 2.0
    def request(self, request):
        print(request.reason, flush=True)
        stopping(request)
    def held_for(self):
        return 0.0
    def outcome(self, reason):
        return StopForcedError(reason)

async def listen():
    loop = asyncio.get_running_loop()
    with process_signals() as taken, taken.sent_to(Receiver(), loop):
        await running()
"""


def start(script: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", KEEPING + script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def until_asleep(process: subprocess.Popen[str]) -> None:
    """Until the main thread waits: after it has said that it keeps the GIL, it waits for the mutex only."""
    found = 0
    while found < 5:
        state = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]
        found = found + 1 if state == "S" else 0
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_second_signal_ends_a_process_whose_gil_is_kept(number: signal.Signals) -> None:
    with start("async def running(): keep_the_gil()\nasyncio.run(listen())") as process:
        try:
            assert line(process) == "keeps the GIL\n"
            until_asleep(process)
            sent = 0
            while process.poll() is None and sent < 100:
                process.send_signal(number)
                sent += 1
                time.sleep(0.1)
        finally:
            process.kill()
    assert process.returncode == -number
    assert sent > 1, "the first signal has to leave the process time to stop in order"


def said_at_the_deadline(before: str, *lines: str) -> str:
    """Return the standard error of a process that keeps the GIL from SIGTERM on, runs `before`, and prints `lines`."""
    script = f"""
signals.FORCE_SECONDS = signals._MARGIN = signals._LOCKED_OUT = 0.1
{before}
def stopping(request): keep_the_gil()
async def running():
    print("runs", flush=True)
    await asyncio.sleep(1000)
asyncio.run(listen())
"""
    with start(script) as process:
        try:
            assert line(process) == "runs\n"
            process.send_signal(signal.SIGTERM)
            assert [line(process) for _ in lines] == [*lines]
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == ExitCode.INTERNAL
    return errors


def test_deadline_ends_a_process_whose_gil_is_kept_while_it_stops() -> None:
    errors = said_at_the_deadline("", "SIGTERM\n", "keeps the GIL\n")
    assert errors.startswith("Timeout (0:00:0")
    assert "in keep_the_gil\n" in errors


def test_deadline_does_not_wait_for_a_reader_of_the_log() -> None:
    said_at_the_deadline("""
reader, writer = os.pipe()
os.dup2(writer, 2)
os.set_blocking(2, False)
try:
    while os.write(2, b"x" * 4096): pass
except BlockingIOError:
    os.set_blocking(2, True)
""")


def test_stop_in_order_cancels_the_deadline_and_every_signal_is_noticed() -> None:
    """Handlers stay in place: the second and third signals are noticed, too."""
    script = """
signals.FORCE_SECONDS, signals._MARGIN, signals._LOCKED_OUT = 0.8, 0.1, 0.1
Receiver.stop_timeout = 60
ended = None
def stopping(request):
    if request.times == 2:
        ended.set()
async def running():
    global ended
    ended = asyncio.Event()
    print("runs", flush=True)
    await ended.wait()
asyncio.run(listen())
time.sleep(1.5)
print("goes on", flush=True)
"""
    with start(script) as process:
        try:
            assert line(process) == "runs\n"
            for _ in range(2):
                process.send_signal(signal.SIGTERM)
                assert line(process) == "SIGTERM\n"
            assert process.communicate(timeout=60) == ("goes on\n", "")
        finally:
            process.kill()
    assert process.returncode == 0


def test_leaves_a_handler_that_something_else_has_put_in_place() -> None:
    script = """
signal.signal(signal.SIGUSR2, lambda *_: None)
once = signals._OneTime(signal.SIGUSR2)
signal.signal(signal.SIGUSR2, lambda number, _: print("taken", flush=True))
once.again()
for _ in range(2):
    os.kill(os.getpid(), signal.SIGUSR2)
"""
    with start(script) as process:
        assert process.communicate(timeout=60) == ("taken\ntaken\n", "")
    assert process.returncode == 0
