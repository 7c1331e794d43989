"""Signals to a daemon: none ends it without drain and commit, and none is kept waiting by what holds the event loop."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from consumerd.base.errors import ExitCode
from consumerd.base.partition import TopicPartition
from consumerd.demo.processes import clean_environment, consumerd_command, format_toml

pytestmark = [pytest.mark.zookeeper]

TP = TopicPartition("t", 0, 0)


async def in_hand(world: Any, daemon: Any) -> None:
    await world.until(lambda: "in hand" in daemon.stdout_path.read_text())


def last_line(daemon: Any) -> str:
    text: str = daemon.child.output().splitlines()[-1]
    return text


@pytest.mark.parametrize(
    ("by", "loop"), [("computing", "uvloop"), ("sleeping", "asyncio"), ("deadlock_in_c", "uvloop")]
)
async def test_logs_the_stack_of_a_blocked_loop(world: Any, by: str, loop: str) -> None:
    await world.broker()
    await world.append(TP, b"one")
    daemon = await world.daemon(
        handler={"name": "bad_handlers:Holding", "options": {"by": by}},
        daemon={"stop_timeout": 1000.0, "stall_warning": 0.5, "loop": loop},
    )
    stalled = await daemon.wait_for_event("loop_stalled", 15)
    assert stalled["seconds"] >= 0.5
    assert re.fullmatch(rf"modules/bad_handlers\.py:\d+ in Holding\.{by}", stalled["at"])
    daemon.terminate()
    daemon.child.signal(signal.SIGUSR1)  # read after the first signal, so nothing sends the second too early
    await daemon.wait_for_event("thread_stack", 15, thread="MainThread")
    daemon.terminate()
    assert await daemon.wait(30) == ExitCode.FORCED
    reason = "consumerd: the stop was forced (second signal, SIGTERM, with the event loop held at "
    assert last_line(daemon).startswith(reason)
    assert last_line(daemon).endswith(f" in Holding.{by}); unfinished messages are delivered again.")
    assert not await world.offset(TP)


async def test_second_signal_forces_the_exit_while_c_code_holds_the_gil(world: Any) -> None:
    await world.broker()
    await world.append(TP, b"one")
    daemon = await world.daemon(
        handler={"name": "bad_handlers:Holding", "options": {"by": "matching"}},
        daemon={"stop_timeout": 1000.0, "stall_warning": 0.3},
    )
    await in_hand(world, daemon)
    await asyncio.sleep(2)  # so long that the loop counts as held
    daemon.terminate()
    await asyncio.sleep(0.1)  # one of two equal pending signals may be dropped, without any notification
    daemon.terminate()
    assert await daemon.wait(30) == ExitCode.FORCED
    assert "second signal, SIGTERM, with the event loop held at" in last_line(daemon)


async def test_second_signal_kills_a_daemon_whose_gil_is_kept_for_ever(world: Any) -> None:
    await world.broker()
    await world.append(TP, b"one")
    daemon = await world.daemon(handler={"name": "bad_handlers:Holding", "options": {"by": "deadlock_with_gil"}})
    await in_hand(world, daemon)
    await asyncio.sleep(0.5)  # from its line to the lock
    daemon.terminate()
    await asyncio.sleep(0.1)
    daemon.terminate()
    assert await daemon.wait(30) == -signal.SIGTERM
    assert not await world.offset(TP)


async def test_stop_deadline_holds_for_a_blocked_loop(world: Any) -> None:
    await world.broker()
    await world.append(TP, b"one")
    daemon = await world.daemon(
        handler={"name": "bad_handlers:Holding", "options": {"by": "sleeping"}}, daemon={"stop_timeout": 0.5}
    )
    await in_hand(world, daemon)
    assert await daemon.stop(30) == ExitCode.FORCED
    assert "(no end within 0.5 s, with the event loop held at" in last_line(daemon)


async def test_stops_in_order_on_sigquit(world: Any) -> None:
    await world.broker()
    end = await world.append(TP, b"one")
    slow = {"name": "bad_handlers:Slow", "options": {"seconds": 0.5}}
    daemon = await world.daemon(handler=slow, daemon={"loop": "asyncio"})
    await in_hand(world, daemon)
    daemon.child.signal(signal.SIGQUIT)
    await daemon.wait_for_event("stop_requested", 15, signal="SIGQUIT")
    daemon.child.signal(signal.SIGHUP)  # while it stops, there is nothing to reload
    await daemon.wait_for_event("signal_ignored", 15, signal="SIGHUP")
    assert await daemon.wait(30) == ExitCode.OK
    assert "finished" in daemon.stdout_path.read_text()
    assert await world.offset(TP) == end
    assert await world.zk.children("/consumers/g/owners/t") == []


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
async def test_shows_stacks_on_sigusr1_and_ignores_sigusr2(world: Any, loop: str) -> None:
    await world.broker()
    await world.append(TP, b"one")
    daemon = await world.daemon(daemon={"loop": loop})
    await world.until_printed(daemon, "one")
    daemon.child.signal(signal.SIGUSR2)
    await daemon.wait_for_event("signal_ignored", 15, signal="SIGUSR2")
    daemon.child.signal(signal.SIGUSR1)
    await world.until(lambda: any("consume t/0-0" in stack.get("names", []) for stack in daemon.events()))
    (flow,) = [event for event in daemon.events() if "consume t/0-0" in event.get("names", [])]
    assert flow["event"] == "task_stack"
    assert "in OwnedPartitions._flow\n" in flow["stack"]
    assert flow["stack"].endswith("in Lane.get")  # where it waits, not only where it was begun
    await world.append(TP, b"two")
    await world.until_printed(daemon, "one", "two")
    assert await daemon.stop() == ExitCode.OK


@pytest.mark.parametrize(("name", "called"), [("Leaving", "sys.exit(0)"), ("Stopping", "stop() of the event loop")])
async def test_stops_in_order_after_a_handler_ended_the_event_loop(world: Any, name: str, called: str) -> None:
    await world.broker()
    end = await world.append(TP, b"one")
    outcome = await world.run(handler={"name": f"bad_handlers:{name}"})
    assert outcome.code == ExitCode.HANDLER_FAILED
    assert f"\nconsumerd: something called {called} in a task or a callback of its own" in outcome.stderr
    assert outcome.stdout == "in hand\nfinished\n"
    assert await world.offset(TP) == end


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGQUIT])
async def test_signal_before_joining_exits_cleanly(world: Any, number: signal.Signals) -> None:
    path = world.write(format_toml(world.config(handler={"name": "bad_handlers:Building"})))
    process = await asyncio.create_subprocess_exec(
        *consumerd_command("run", "-c", path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=clean_environment(),
    )
    assert process.stdout is not None
    async with asyncio.timeout(60):
        assert await process.stdout.readline() == b"building\n"
        process.send_signal(signal.SIGUSR1)
        process.send_signal(number)
        _, errors = await process.communicate()
    assert process.returncode == ExitCode.OK
    assert errors.decode().splitlines()[-1] == (
        f"consumerd: stopped by {number.name} before it had started; nothing was joined."
    )
    assert await world.zk.exists("/consumers") is None


async def test_handles_signals_early_in_startup(tmp_path: Path) -> None:
    """Slow imports (configuration, ZooKeeper, the handler) happen after that."""
    script = (
        "import importlib, os, signal, sys\n"
        "from consumerd.cli.main import run\n"
        "def hear(module, *rest):\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "class First:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name in {'structlog', 'asyncio', 'consumerd.service.config.model'}:\n"
        "            os.kill(os.getpid(), signal.SIGTERM)\n"
        "sys.meta_path.insert(0, First())\n"
        "sys.exit(run(['run', '-c', 'none.toml']))\n"
    )
    ended = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert ended.stderr == "consumerd: stopped by SIGTERM before it had started; nothing was joined.\n"
    assert ended.returncode == ExitCode.OK


async def test_ignores_signals_sent_to_a_forked_process_of_a_handler(tmp_path: Path) -> None:
    """Signals that end a pool of processes: these share the pipe that reports signals."""
    script = (
        "import os, signal, sys, time\n"
        "from consumerd.service.daemon.signals import process_signals\n"
        "with process_signals():\n"
        "    child = os.fork()\n"
        "    if not child:\n"
        "        time.sleep(1000)\n"
        "    os.kill(child, signal.SIGTERM)\n"
        "    _, status = os.waitpid(child, 0)\n"
        "    assert os.WTERMSIG(status) == signal.SIGTERM, status\n"
        "    time.sleep(0.2)  # a byte in the pipe would have been read by now\n"
        "print('goes on')\n"
    )
    ended = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert (ended.stdout, ended.stderr) == ("goes on\n", "")


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
async def test_ends_a_forked_process_of_a_handler_that_comes_back_to_the_event_loop(world: Any, loop: str) -> None:
    await world.broker()
    end = await world.append(TP, b"one")
    daemon = await world.daemon(handler={"name": "bad_handlers:Forking"}, daemon={"loop": loop})
    await world.until(lambda: daemon.stdout_path.read_text() == f"child ended with {ExitCode.HANDLER_FAILED:d}\n")
    assert await daemon.stop() == ExitCode.OK
    assert await world.offset(TP) == end
    assert daemon.log_path.read_text().count("consumerd: a process that a handler forked came back") == 1


@pytest.mark.parametrize("closed", [False, True])
async def test_sighup_reloads_unless_the_terminal_was_closed(closed: bool) -> None:
    """A terminal that closes sends SIGHUP, too, and then no output can be written to it."""
    script = (
        "import signal\n"
        "from consumerd.service.daemon.signals import process_signals\n"
        "with process_signals(reloads=True):\n"
        "    print('listens', flush=True)\n"
        "    signal.sigtimedwait([], 0.5)\n"
        "print('goes on', flush=True)\n"
    )
    ours, theirs = os.openpty()
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    os.close(theirs)
    assert child.stdout is not None
    assert await asyncio.wait_for(child.stdout.readline(), 60) == b"listens\n"
    if closed:
        os.close(ours)
    child.send_signal(signal.SIGHUP)
    output, errors = await asyncio.wait_for(child.communicate(), 60)
    if closed:
        assert errors == b"consumerd: stopped by SIGHUP before it had started; nothing was joined.\n"
        assert output == b""
    else:
        os.close(ours)
        assert (output, errors) == (b"goes on\n", b"")
    assert child.returncode == ExitCode.OK
