"""What holds the event loop, or the whole process, is logged in one short event that begins with the user's code."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any

import pytest
import structlog

import consumerd
from consumerd.base.frames import is_of_python, is_ours
from consumerd.service.daemon import stalls
from consumerd.service.daemon.stacks import Place, user_place

WATCHED = """
import asyncio, re, time
from consumerd.service.daemon.logs import configure_logs
from consumerd.service.daemon import stalls

configure_logs("info", "json")
told, log = [], stalls.log

class Telling:
    def __getattr__(self, level):
        return lambda event, **fields: (getattr(log, level)(event, **fields), told.append(event))

stalls.log = Telling()

async def main():
    with stalls.LoopWatch(0.3):
        print("watched", flush=True)
        await work()
        await asyncio.sleep(0.5)
"""
STANDARD = sysconfig.get_path("stdlib")
OURS = Place(f"{consumerd.__path__[0]}/handlers/retry.py", 1, "handle")
TASK = Place(f"{STANDARD}/asyncio/events.py", 84, "Handle._run")
REQUEST = Place("/venv/lib/python3.11/site-packages/requests/api.py", 73, "get")
SOCKET = Place(f"{STANDARD}/ssl.py", 1107, "SSLSocket.read")
SCRIPT = Place("/venv/bin/consumerd", 8, "<module>")
PLUGIN = Place("/venv/lib/python3.11/site-packages/orders/plugin.py", 12, "Orders.handle")
USER = Place("/srv/app/handlers/orders.py", 42, "Orders.handle")


def watched(work: str, *, stopped: float = 0.0) -> list[dict[str, Any]]:
    """All lines of the log while `work` runs, in a process that is stopped for so many seconds."""
    script = f"{WATCHED}\nasync def work():\n    {work}\n\nasyncio.run(main())\n"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "watched\n"
        if stopped:
            process.send_signal(signal.SIGSTOP)
            time.sleep(stopped)
            process.send_signal(signal.SIGCONT)
        _, errors = process.communicate(timeout=60)
    return [json.loads(line) for line in errors.splitlines()]


def test_process_that_was_stopped_is_one_event() -> None:
    events = watched("await asyncio.sleep(0.5)", stopped=2.0)
    (event,) = [event for event in events if event["seconds"] > 1.4]  # shorter ones are those of a busy processor
    assert event["event"] == "process_paused"


def test_stall_names_the_users_line() -> None:
    events = watched("while 'loop_stalled' not in told: time.sleep(0.01)")
    assert {"loop_stalled", "loop_stall_ended"} <= {event["event"] for event in events}
    stalled = next(event for event in events if event["event"] == "loop_stalled")
    assert stalled["at"].startswith("<string>:")
    assert stalled["at"].endswith(" in work")
    assert "stack" not in stalled


def test_stall_by_c_code_that_keeps_the_gil_names_the_users_line_afterwards() -> None:
    events = watched("stalls._BUSY = -1; re.match('(a+)+$', 'a' * 25 + 'b')")  # the processor may be busy
    stalled = next(event for event in events if event["event"] == "loop_stalled")
    assert stalled["reason"] == "C code held the GIL"
    assert stalled["at"].endswith(" in work")
    assert stalled["innermost"].endswith(" in match")


@pytest.mark.parametrize(
    ("used", "expected"), [(0.0, "process_paused"), (0.5, "process_paused"), (3.0, "loop_stalled")]
)
def test_pause_in_which_the_processor_was_used_is_a_stall(used: float, expected: str) -> None:
    """Up to half a second may have been used before the pause."""
    with structlog.testing.capture_logs() as told:
        stalls.LoopWatch(2.0)._report_pause(10.0, used)
    assert [event["event"] for event in told] == [expected]


def test_place_of_the_user_is_the_innermost_frame_of_his_own_code() -> None:
    assert user_place([SCRIPT, OURS, TASK, OURS, USER, REQUEST, SOCKET]) == USER
    assert USER.short == "handlers/orders.py:42 in Orders.handle"


def test_place_of_an_installed_plugin_is_where_consumerd_calls_it() -> None:
    assert user_place([SCRIPT, OURS, TASK, OURS, PLUGIN, REQUEST, SOCKET]) == PLUGIN


def test_place_in_code_of_consumerd_is_the_innermost_frame() -> None:
    assert user_place([SCRIPT, OURS, TASK, OURS]) == OURS
    assert user_place([SCRIPT, OURS, TASK, OURS, SOCKET]) == SOCKET
    assert user_place([]) is None


def test_file_of_consumerd_in_site_packages_is_not_taken_for_a_plugin() -> None:
    assert is_ours(OURS.file)
    assert not is_of_python(OURS.file)
    assert Path(OURS.file).is_relative_to(consumerd.__path__[0])
