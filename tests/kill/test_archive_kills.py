"""`log export` as a process with workers, killed and interrupted while it works: the next run makes the same files."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import psutil
import pytest

from consumerd.base.errors import ExitCode
from consumerd.wire.v07 import encode_message_set

pytestmark = pytest.mark.kill

SEGMENTS = 24
DEADLINE = 120.0


def command(source: Path, out: Path, *options: str) -> list[str]:
    arguments = ["log", "export", "--workers", "2", "--broker-id", "0", "-o", str(out), *options, str(source)]
    return [sys.executable, "-m", "consumerd", *arguments]


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Segments of half a megabyte and more, and some of them again, as another topic, in a tar."""
    root = tmp_path_factory.mktemp("archive")
    rng = random.Random(7)
    for partition in range(2):
        folder = root / "log" / f"events-{partition}"
        folder.mkdir(parents=True)
        start = 0
        for _ in range(SEGMENTS // 2):
            data = encode_message_set([rng.randbytes(rng.randrange(200)) for _ in range(6000)])
            (folder / f"{start:020d}.kafka").write_bytes(data)
            start += len(data)
    with tarfile.open(root / "log" / "more.tar.gz", "w:gz", compresslevel=1) as tar:
        tar.add(root / "log" / "events-0", "more-0")
    return root


def files(out: Path) -> dict[str, bytes]:
    return {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def expected(archive: Path) -> dict[str, bytes]:
    """The output of an export that is not interrupted."""
    subprocess.run(command(archive / "log", archive / "clean"), check=True, capture_output=True, timeout=DEADLINE)
    return files(archive / "clean")


def started(arguments: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def finished(out: Path) -> int:
    """The number of segments in the manifest."""
    try:
        return len(json.loads((out / "_manifest.json").read_bytes())["segments"])
    except FileNotFoundError:
        return 0


def at_work(process: subprocess.Popen[bytes], out: Path, more_than: int) -> None:
    """Return when more segments are finished, or the process has ended. There is no event for it, so this polls."""
    end = time.monotonic() + DEADLINE
    while process.poll() is None and finished(out) <= more_than:
        assert time.monotonic() < end
        time.sleep(0.005)


def said(errors: bytes) -> list[bytes]:
    """The lines of standard error, but for the progress that a slow machine has time to show."""
    return [line for line in errors.splitlines() if not line.startswith(b"consumerd: exporting: ")]


def gone(children: list[psutil.Process]) -> None:
    """Workers do not outlive their parent."""
    _, alive = psutil.wait_procs(children, timeout=DEADLINE)
    assert not alive


def test_export_resumes_after_repeated_sigkill(archive: Path, expected: dict[str, bytes], tmp_path: Path) -> None:
    out = tmp_path / "out"
    kills = 0
    for _ in range(3):
        process = started(command(archive / "log", out))
        at_work(process, out, finished(out))
        children = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.kill()
        process.communicate(timeout=DEADLINE)
        kills += process.returncode == -signal.SIGKILL
        gone(children)
    assert kills >= 2
    done = subprocess.run(command(archive / "log", out, "--json"), check=True, capture_output=True, timeout=DEADLINE)
    report = json.loads(done.stdout)
    assert report["exported"] + report["kept"] == SEGMENTS * 3 // 2
    assert report["kept"] > 0
    assert files(out) == expected


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_export_resumes_after_sigint(
    archive: Path, expected: dict[str, bytes], tmp_path: Path, number: signal.Signals
) -> None:
    out = tmp_path / "out"
    process = started(command(archive / "log", out))
    at_work(process, out, 0)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    _, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == ExitCode.INTERRUPTED
    assert b"segments done; run the same command to resume\n" in errors
    assert b"Traceback" not in errors
    gone(children)
    assert not list((out / ".partial").iterdir())
    kept = finished(out)
    assert kept >= 1
    done = subprocess.run(command(archive / "log", out, "--json"), check=True, capture_output=True, timeout=DEADLINE)
    assert json.loads(done.stdout)["kept"] == kept
    assert files(out) == expected


def test_ctrl_c_ends_the_whole_process_group(archive: Path, tmp_path: Path) -> None:
    """As a terminal sends it: the workers are not to fill the screen with tracebacks."""
    out = tmp_path / "out"
    process = subprocess.Popen(
        command(archive / "log", out), stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    at_work(process, out, 0)
    for child in [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]:
        child.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == ExitCode.INTERRUPTED
    assert len(said(errors)) == 1


def test_reports_a_killed_worker(archive: Path, expected: dict[str, bytes], tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = started(command(archive / "log", out))
    at_work(process, out, 0)
    for child in psutil.Process(process.pid).children(recursive=True):
        if "spawn_main" in " ".join(child.cmdline()):
            child.kill()
            break
    _, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == ExitCode.FORCED
    (sentence,) = said(errors)
    assert sentence.startswith(b"consumerd: a worker process died")
    subprocess.run(command(archive / "log", out), check=True, capture_output=True, timeout=DEADLINE)
    assert files(out) == expected
