"""Looking at frames neither stops the process nor changes the state of the garbage collector."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from pathlib import Path

import consumerd
from consumerd.base.frames import current_frames

#: In each round a `threading.local` is garbage, and a collection is due one allocation later than in the round before.
SWEEP = """
import gc, threading
from consumerd.service.daemon.stacks import main_thread_frames

class Cycle:
    def __init__(self):
        self.local = threading.local()
        self.local.set = True
        self.itself = self

for allocations in range(1, 60):
    gc.disable()
    gc.collect()
    Cycle()
    gc.set_threshold(allocations, 10, 10)
    gc.enable()
    assert main_thread_frames()
print("ended")
"""


def test_collection_of_a_thread_local_does_not_stop_the_process() -> None:
    ended = subprocess.run([sys.executable, "-c", SWEEP], capture_output=True, text=True, check=False, timeout=60)
    assert (ended.stdout, ended.stderr) == ("ended\n", "")


def test_other_threads_do_not_see_the_collector_off() -> None:
    """One that saves and restores the state would leave it off for ever."""
    before, enabled = gc.get_threshold(), gc.isenabled()
    seen = set()
    begun, done = threading.Event(), threading.Event()

    def look() -> None:
        while not done.is_set():
            seen.add((gc.get_threshold(), gc.isenabled()))
            begun.set()

    thread = threading.Thread(target=look)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        thread.start()
        begun.wait(60)
        for _ in range(3000):
            assert threading.get_ident() in current_frames()
    finally:
        done.set()
        thread.join()
        sys.setswitchinterval(interval)
    assert seen == {(before, enabled)}
    assert (gc.get_threshold(), gc.isenabled()) == (before, enabled)


def test_nothing_else_calls_the_functions_that_may_stop_the_process() -> None:
    (folder,) = consumerd.__path__
    calls = ("sys._current_frames", "sys._current_exceptions")
    callers = {
        path.relative_to(folder).as_posix()
        for path in Path(folder).rglob("*.py")
        if any(call in path.read_text() for call in calls)
    }
    assert callers == {"base/frames.py"}
