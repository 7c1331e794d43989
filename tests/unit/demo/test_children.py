from __future__ import annotations

import asyncio
import os
import signal
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from consumerd.demo.children import Child
from consumerd.demo.errors import ChildError


def python(program: str) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(program)]


async def test_captures_exit_status_and_output(tmp_path: Path) -> None:
    child = Child(
        python("import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)"), log=tmp_path / "a/log"
    )
    assert child.returncode is None
    assert not child.running
    child.start()
    assert await child.wait(20) == 7
    assert sorted(child.output().split()) == ["err", "out"]
    assert await child.stop() == 7  # at any time
    child.kill()
    child.pause()


async def test_second_run_appends_and_reads_only_its_own_output(tmp_path: Path) -> None:
    for word in ("first", "second"):
        child = Child(["echo", word], log=tmp_path / "log")
        child.start()
        assert await child.wait(20) == 0
        assert child.output() == f"{word}\n"
    assert (tmp_path / "log").read_text() == "first\nsecond\n"


async def test_standard_input_is_a_file_a_pipe_or_nothing(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"from a file")
    async with Child(["cat"], log=tmp_path / "file.log", stdin=tmp_path / "in") as child:
        assert await child.wait(20) == 0
        assert child.output() == "from a file"
    async with Child(["cat"], log=tmp_path / "none.log") as child:
        assert await child.wait(20) == 0
        assert child.output() == ""
        with pytest.raises(ChildError, match="no standard input"):
            child.stdin.write(b"x")
    async with Child(["cat"], log=tmp_path / "pipe.log", pipe=True) as child:
        child.stdin.write(b"go\nfrom a pipe\n")
        child.stdin.flush()
        assert await child.wait_for_line(lambda line: line == "from a pipe", 20)
        child.close_stdin()
        assert await child.wait(20) == 0


async def test_stop_sends_sigterm_and_then_sigkill(tmp_path: Path) -> None:
    polite = Child(["sleep", "600"], log=tmp_path / "log")
    polite.start()
    assert await polite.stop() == -signal.SIGTERM
    deaf = Child(
        python("import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"),
        log=tmp_path / "deaf.log",
    )
    deaf.start()
    await deaf.wait_for_line("deaf".__eq__, 20)
    assert await deaf.stop(grace=0.1) == -signal.SIGKILL


async def test_pauses_and_resumes_a_child(tmp_path: Path) -> None:
    child = Child(python("while True: pass"), log=tmp_path / "log")
    async with child:
        child.pause()
        assert psutil.Process(child.pid).status() == psutil.STATUS_STOPPED
        assert child.running
        child.pause()
        child.resume()
        assert psutil.Process(child.pid).status() != psutil.STATUS_STOPPED
        child.pause()
    assert child.returncode == -signal.SIGTERM


async def test_wait_has_a_deadline(tmp_path: Path) -> None:
    async with Child(["sleep", "600"], log=tmp_path / "log") as child:
        with pytest.raises(TimeoutError):
            await child.wait(0.05)
        assert child.running


async def test_reports_a_command_that_cannot_be_started(tmp_path: Path) -> None:
    child = Child(["no-such-program-of-ours"], log=tmp_path / "log")
    child.start()
    with pytest.raises(ChildError, match=r"ended early with status 127: .*not found"):
        await child.wait_for_line(lambda _: False, 20)
    with pytest.raises(ChildError, match="is already started"):
        child.start()
    with pytest.raises(ChildError, match=r"cannot be started: .*no-such-folder"):
        Child(["true"], log=tmp_path / "log", cwd=tmp_path / "no-such-folder").start()
    with pytest.raises(ChildError, match="was not started"):
        await Child(["true"], log=tmp_path / "log").wait()


async def test_wait_for_line_reads_whole_lines_in_order(tmp_path: Path) -> None:
    program = """
        import sys, time
        for part in ("rea", "dy 1\\nre", "ady 2\\n"):
            sys.stdout.write(part); sys.stdout.flush(); time.sleep(0.05)
    """
    child = Child(python(program), log=tmp_path / "log")
    child.start()
    assert await child.wait_for_line(lambda line: line.startswith("ready"), 20) == "ready 1"
    assert await child.wait_for_line(lambda line: line.endswith("2"), 20) == "ready 2"
    with pytest.raises(ChildError, match=r"ended early with status 0: ready 1 \| ready 2"):
        await child.wait_for_line(lambda line: False, 20)
    assert await child.wait() == 0
    async with Child(["sleep", "600"], log=tmp_path / "log") as quiet:
        with pytest.raises(ChildError, match=r"was not ready within 0\.05 s: no output"):
            await quiet.wait_for_line(lambda line: True, 0.05)


async def test_ends_the_process_group_of_a_child(tmp_path: Path) -> None:
    child = Child(["sh", "-c", "sleep 600 & echo $!"], log=tmp_path / "log")
    child.start()
    assert await child.wait(20) == 0
    orphan = int(child.output())
    await asyncio.to_thread(_gone, orphan)


def _gone(pid: int) -> None:
    try:
        process = psutil.Process(pid)
        if process.status() != psutil.STATUS_ZOMBIE:  # killed, and waiting for an init that reaps
            process.wait(10)
    except psutil.NoSuchProcess:
        pass


async def test_cancelled_stop_kills(tmp_path: Path) -> None:
    child = Child(
        python("import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"),
        log=tmp_path / "log",
    )
    child.start()
    await child.wait_for_line("deaf".__eq__, 20)
    stopping = asyncio.create_task(child.stop(grace=600))
    await asyncio.sleep(0)
    stopping.cancel()
    await asyncio.wait([stopping])
    assert stopping.cancelled()
    assert child.returncode == -signal.SIGKILL


async def test_leaves_no_guard_and_no_descriptor(tmp_path: Path) -> None:
    before = set(psutil.Process().children()), len(os.listdir("/proc/self/fd"))
    async with Child(["sleep", "600"], log=tmp_path / "log"):
        assert len(psutil.Process().children()) == len(before[0]) + 2
    assert (set(psutil.Process().children()), len(os.listdir("/proc/self/fd"))) == before


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
async def test_children_and_grandchildren_die_with_the_parent(tmp_path: Path, number: signal.Signals) -> None:
    program = """
        import pathlib, sys, time
        from consumerd.demo.children import Child
        child = Child(["sh", "-c", "echo $$; sleep 600 & echo $!; wait"], log=pathlib.Path(sys.argv[1]))
        child.start()
        print("started", flush=True)
        time.sleep(600)
    """
    parent = Child([*python(program), tmp_path / "child.log"], log=tmp_path / "parent.log")
    async with parent:
        await parent.wait_for_line("started".__eq__, 30)
        lines: list[str] = []
        async with asyncio.timeout(60):
            while len(lines) < 2:
                await asyncio.sleep(0.01)
                lines = (tmp_path / "child.log").read_text().split()
        parent.signal(number)
        await parent.wait(20)
        for pid in map(int, lines):
            await asyncio.to_thread(_gone, pid)


async def test_never_runs_a_child_whose_parent_has_gone(tmp_path: Path) -> None:
    # The parent dies after the process exists and before its guard knows of it: the gate must stay shut.
    program = """
        import os, pathlib, sys
        from consumerd.demo.children import Child
        Child._tell = staticmethod(lambda process, text: os._exit(0))
        Child(["touch", sys.argv[1] + "/ran"], log=pathlib.Path(sys.argv[1]) / "child.log").start()
    """
    parent = Child([*python(program), tmp_path], log=tmp_path / "parent.log")
    parent.start()
    assert await parent.wait(20) == 0
    left = [p for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in " ".join(p.info["cmdline"] or ())]
    await asyncio.to_thread(psutil.wait_procs, left, 10)
    assert not (tmp_path / "ran").exists()
