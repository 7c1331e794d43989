import subprocess
import sys
from pathlib import Path

import pytest

from consumerd import __version__
from consumerd.base import native
from consumerd.base.errors import BrokerError, ConfigError, ConsumerdError, ExitCode
from consumerd.cli.main import COMMANDS, explain, run


def test_prints_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"consumerd {__version__} ({native.describe()})\n"


def test_help_lists_every_command_and_real_invocations(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in COMMANDS)
    assert "consumerd run -c /etc/consumerd/events.toml" in out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_can_be_imported_and_shows_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([name, "--help"]) == 0
    assert "Usage: consumerd " + name in capsys.readouterr().out


def test_rejects_an_unknown_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["no-such-command"]) == ExitCode.USAGE
    assert "no-such-command" in capsys.readouterr().err


def test_suggests_the_nearest_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["chek"]) == ExitCode.USAGE
    assert "No such command 'chek', did you mean 'check'?" in capsys.readouterr().err


def test_reports_a_declared_error_of_a_group() -> None:
    group = ExceptionGroup("g", [ExceptionGroup("h", [ConfigError("the key is wrong")])])
    assert explain(group) == (ExitCode.CONFIG, "the key is wrong")


def test_shows_a_defect_among_declared_errors() -> None:
    assert explain(ExceptionGroup("g", [BrokerError("gone"), KeyError("x")])) == (ExitCode.INTERNAL, None)


def test_interrupts_take_precedence_over_other_errors() -> None:
    assert explain(BaseExceptionGroup("g", [BrokerError("gone"), KeyboardInterrupt()]))[0] == ExitCode.INTERRUPTED


def test_exhausted_memory_is_named_whatever_else_failed_with_it() -> None:
    code, sentence = explain(
        ExceptionGroup("g", [BrokerError("gone"), ExceptionGroup("h", [MemoryError()]), KeyError()])
    )
    assert code == ExitCode.INTERNAL
    assert sentence is not None
    assert sentence.startswith("no memory is left: raise the memory limit")


def test_every_error_class_has_a_documented_code() -> None:
    def below(cls: type[ConsumerdError]) -> list[type[ConsumerdError]]:
        return [cls, *(c for sub in cls.__subclasses__() for c in below(sub))]

    classes = below(ConsumerdError)[1:]
    assert len(classes) > 10
    for cls in classes:
        assert cls.exit_code in ExitCode
        assert cls.exit_code is not ExitCode.INTERNAL, cls


def test_help_imports_no_command() -> None:
    code = (
        "import sys; from consumerd.cli.main import run; run(['--help']);"
        "bad = {'aiozk', 'pydantic', 'rich', 'asyncio', 'pyspark'} & set(sys.modules); sys.exit(str(bad) if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("busy", [0.0, 0.2])
def test_repeats_a_ctrl_c_that_a_callback_dropped(busy: float) -> None:
    """As when the lock of an imported module is freed: what a weak reference's callback raises goes nowhere.

    `busy`: seconds for which the main thread gets no processor when it has started the one that sends the signal.
    """
    code = (
        "import signal, sys, threading, time, weakref\n"
        "from consumerd.cli.main import repeat_lost_interrupt\n"
        "start = threading.Thread.start\n"
        f"threading.Thread.start = lambda thread: (start(thread), time.sleep({busy}))\n"
        "sys.unraisablehook = repeat_lost_interrupt\n"
        "class Lock: pass\n"
        "lock = Lock()\n"
        "freed = weakref.ref(lock, lambda _: signal.raise_signal(signal.SIGINT))\n"
        "try:\n"
        "    del lock\n"
        "    time.sleep(60)\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=True)
    assert (ended.stdout, ended.stderr) == ("interrupted\n", "")


def test_ignores_a_closed_standard_error() -> None:
    """Whichever task writes to it first: what comes out of a task group is a group."""
    code = (
        "import asyncio, os, sys\n"
        "from consumerd.cli import main\n"
        "reader, writer = os.pipe()\n"
        "os.close(reader)\n"
        "os.dup2(writer, 2)\n"
        "async def log():\n"
        "    print('one line', file=sys.stderr, flush=True)\n"
        "async def work():\n"
        "    async with asyncio.TaskGroup() as group:\n"
        "        group.create_task(log())\n"
        "main.cli.main = lambda **_: asyncio.run(work())\n"
        "sys.argv = ['consumerd', 'mirror']\n"
        "main.main()\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=False)
    assert ended.returncode == ExitCode.PIPE


@pytest.mark.parametrize("option", [["-c", "{}"], ["--config={}"]])
def test_a_name_with_a_line_end_stays_in_the_line_of_its_error(
    option: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = f"{tmp_path}/a\nb.toml"
    assert run(["check", *(each.format(path) for each in option)]) == ExitCode.CONFIG
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{tmp_path}/a\\nb.toml" in line


@pytest.mark.parametrize("arguments", [["config", "example"], ["handlers", "list"], ["log", "--help"]])
def test_a_full_disk_of_the_output_is_one_sentence(arguments: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-m", "consumerd", *arguments]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    assert done.stderr == (
        "consumerd: the output cannot be written ([Errno 28] No space left on device): make room, or write it to "
        "another disk\n"
    )
    assert done.returncode == ExitCode.INTERNAL
