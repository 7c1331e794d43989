"""`consumerd lake` on a disk that is really full, and on one whose syncs fail: one sentence, and nothing is lost.

What the tables have is read with deltalake or pyiceberg, and pyarrow.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import re
import subprocess
import sys
from collections import Counter
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from consumerd.base.errors import ExitCode
from consumerd.cli.main import run
from consumerd.wire.v07 import encode_message_set
from tests.support.slow_disk import SlowDisk, library_or_skip
from tests.support.small_disk import fill, small_disk
from tests.unit.spark.lake.test_land import InlinePool

ROOT = Path(__file__).parents[2]
STEPS = ("land", "refine")
#: Bytes that are left on the disk: for nothing, for files of a checkpoint, for some pages of a table and its catalog.
SPARES = [0, 4 << 10, 12 << 10, 24 << 10, 48 << 10, 96 << 10, 192 << 10]


class Scene:
    """A log that grows, of whose messages each tenth is not JSON, and the pipeline that lands and refines it."""

    def __init__(self, folder: Path, root: Path, form: str) -> None:
        self.root, self.form = root, form
        self.good, self.bad = list[int](), list[int]()
        self._rng = random.Random(1)
        self._segment = folder / "log" / "t-0" / f"{0:020}.kafka"
        self._segment.parent.mkdir(parents=True)
        self.config = folder / "pipeline.toml"
        self.config.write_text(f"""
[spark]
root = "{root}"
format = "{form}"
[spark.pipelines.p.source]
path = "{folder}/log"
subscribe = "t"
[spark.pipelines.p.refine]
fields = {{ id = "bigint not null", text = "string" }}
""")

    def grow(self, size: int) -> None:
        """Append messages of that many bytes together, which no codec makes smaller."""
        with self._segment.open("ab") as file:
            end = file.tell() + size
            while (offset := file.tell()) < end:
                bad = len(self.good) + 1 > 9 * (len(self.bad) + 1)
                (self.bad if bad else self.good).append(offset)
                text = self._rng.randbytes(500).hex()
                file.write(encode_message_set([b"?" if bad else json.dumps({"id": offset, "text": text}).encode()]))

    def command(self, step: str) -> list[str]:
        return ["lake", step, "-c", str(self.config)]

    def offsets(self, table: str) -> Counter[int]:
        """How often each offset is in a table, read without our code."""
        path = self.root / "p" / table
        if self.form == "delta":
            rows = DeltaTable(str(path)).to_pyarrow_dataset().to_table(columns=["offset"])
        else:
            from pyiceberg.table import StaticTable

            rows = StaticTable.from_metadata(str(max((path / "metadata").glob("*.metadata.json")))).scan().to_arrow()
        assert isinstance(rows, pa.Table)
        return Counter(rows["offset"].to_pylist())

    def must_be_whole(self) -> None:
        assert self.offsets("bronze") == Counter([*self.good, *self.bad])
        assert self.offsets("silver") == Counter(self.good)
        assert self.offsets("quarantine") == Counter(self.bad)


@pytest.fixture(params=["delta", "iceberg"])
def form(request: pytest.FixtureRequest) -> str:
    if request.param == "iceberg":
        pytest.importorskip("pyiceberg")
    return str(request.param)


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    run_inline(monkeypatch)


def run_inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run workers' code in this process: how errors leave a worker is in tests/unit/spark/lake."""
    for step in ("land", "refine_step"):
        monkeypatch.setattr(f"consumerd.spark.lake.{step}.WorkerPool", InlinePool)


@pytest.mark.usefixtures("inline")
def test_full_disk_ends_a_step_and_loses_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str) -> None:
    with small_disk(tmp_path / "disk", 8 << 20) as disk:
        scene = Scene(tmp_path, disk / "lake", form)
        failed: Counter[str] = Counter()
        for spare in SPARES:
            scene.grow(100_000)
            for step in STEPS:
                ballast = fill(disk, spare)
                code = run(scene.command(step))
                said = capsys.readouterr().err
                ballast.unlink()
                if code:
                    must_be_one_sentence(code, said, "(No space left on device|disk is full)")
                    failed[step] += 1
                assert run(scene.command(step)) == 0, capsys.readouterr().err
        assert min(failed[step] for step in STEPS) >= 4
        scene.must_be_whole()


def must_be_one_sentence(code: int, said: str, reason: str) -> None:
    assert code == ExitCode.SPARK, said
    assert re.fullmatch(rf"consumerd: [^\n]*\b{reason}[^\n]*\n", said), said


@pytest.mark.parametrize("every", [16, pytest.param(1, marks=pytest.mark.long)])
def test_a_failed_sync_ends_a_step_and_loses_nothing(tmp_path: Path, form: str, every: int) -> None:
    library, control, folder = library_or_skip(tmp_path), tmp_path / "control", tmp_path / "disk"
    folder.mkdir()
    with SlowDisk(library, control, folder) as disk:
        command = [sys.executable, "-m", __name__, str(library), str(control), str(folder), form, str(every)]
        done = subprocess.run(
            command, env={**os.environ, **disk.environment}, cwd=ROOT, capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stderr[-4000:]
    ended = json.loads(done.stdout.splitlines()[-1])
    assert len(ended) >= 20 // every
    for number, (code, said) in ended.items():
        # What is only a log of the runs, or syncs what another one committed, does not end a step.
        if code:
            must_be_one_sentence(code, said, "(Input/output|disk I/O) error")
        else:
            assert "consumerd: " not in said, number
    assert any(code for code, _ in ended.values())


def sync_by_sync(library: str, control: str, folder: str, form: str, every: str) -> dict[int, tuple[int, str]]:
    """Land and refine with one failed sync, with any of them, and again without: how the commands ended."""
    ended: dict[int, tuple[int, str]] = {}
    with pytest.MonkeyPatch.context() as patched, SlowDisk(Path(library), Path(control), Path(folder)) as disk:
        run_inline(patched)
        for number in count(int(every), int(every)):
            scene = Scene(Path(folder) / str(number), Path(folder) / str(number) / "lake", form)
            scene.grow(20_000)
            disk.failing, code, said = number, 0, io.StringIO()
            with contextlib.redirect_stderr(said):
                for step in STEPS:
                    code = code or run(scene.command(step))
            if disk.failing > 0:
                return ended
            ended[number] = code, said.getvalue()
            for step in STEPS:
                assert run(scene.command(step)) == 0
            scene.must_be_whole()
    raise AssertionError


if __name__ == "__main__":
    found = sync_by_sync(*sys.argv[1:])
    sys.stdout.write(json.dumps(found) + "\n")
