"""A pipeline whose clock is set back and ahead, between runs and during them: events decide, and not the clock."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest
from deltalake import DeltaTable

from consumerd.wire.v07 import encode_message_set

#: Performs the steps once for each line that it reads.
DRIVER = """
import sys
from pathlib import Path
from consumerd.spark.run import run_pipeline
from consumerd.spark.session import build_session
from consumerd.spark.spec import load_spark
spec = load_spark(Path(sys.argv[1]))
session = build_session(spec.master, config=spec.config)
for _ in sys.stdin:
    run_pipeline(session, spec.pipeline(), ["land", "refine", "aggregate"])
    print("done", flush=True)
session.stop()
"""
SOURCE = Path(__file__).parents[1] / "support" / "shifted_clock.c"
START = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOUR, DAY = 3_600, 86_400
SECONDS = 60
WINDOW = 10 * SECONDS
WATERMARK = 10 * SECONDS


class Clock:
    """The clock of processes that have `environment`."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "shift"
        library = folder / "shifted_clock.so"
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("there is no C compiler")
        subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", library, SOURCE, "-ldl"], check=True, timeout=60)
        self.set(0)
        self.environment = os.environ | {"LD_PRELOAD": str(library), "SHIFTED_CLOCK": str(self._file)}

    def set(self, seconds: int) -> None:
        """So far from the right time."""
        with self._file.open("r+b" if self._file.exists() else "wb") as file:
            file.write(struct.pack("=q", seconds))

    @contextmanager
    def jumping(self) -> Iterator[None]:
        """Several times per second, until the end of the block."""
        ended = threading.Event()
        rng = random.Random(1)

        def jump() -> None:
            while not ended.wait(rng.uniform(0.05, 0.3)):
                self.set(rng.choice([0, -HOUR, DAY]))

        thread = threading.Thread(target=jump)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


class Pipeline:
    """Segments to which messages are added, and the tables that steps make of them."""

    def __init__(self, folder: Path, trigger: str = "available-now") -> None:
        self._logs = folder / "logs" / "t-0"
        self._logs.mkdir(parents=True)
        self._end = self._minute = 0
        self._root = folder / "lake"
        self.sent: list[dict[str, Any]] = []
        self.file = folder / "pipeline.toml"
        self.file.write_text(
            f'[spark]\nroot = "{self._root}"\nmaster = "local[2]"\n'
            '[spark.config]\n"spark.ui.showConsoleProgress" = "false"\n'
            f'[spark.pipelines.p]\ntrigger = "{trigger}"\n'
            f'[spark.pipelines.p.source]\npath = "{self._logs.parent}"\nsubscribe = "t"\nbroker = "0"\n'
            '[spark.pipelines.p.refine]\nparse = "json"\nevent_time = "at"\n'
            'fields = { at = "timestamp_ms", user = "string", number = "bigint" }\n'
            '[spark.pipelines.p.aggregate]\nwindow = "10 minutes"\nwatermark = "10 minutes"\ngroup_by = ["user"]\n'
        )

    def add_events(self) -> None:
        """Nine minutes of them."""
        events = [
            {
                "at": round((START + timedelta(minutes=self._minute, seconds=6 * place)).timestamp() * 1000),
                "user": f"u{place % 3}",
                "number": len(self.sent) + place,
            }
            for place in range(90)
        ]
        self.sent += events
        self._minute += 9
        data = encode_message_set([json.dumps(event).encode() for event in events])
        (self._logs / f"{self._end:020}.kafka").write_bytes(data)
        self._end += len(data)

    def rows(self, table: str, query: str) -> list[Any]:
        """By readers that are not ours."""
        files = [uri.removeprefix("file://") for uri in DeltaTable(str(self._root / "p" / table)).file_uris()]
        return duckdb.execute(query.format(f"read_parquet({files!r})")).fetchall()

    def wait_for_batch(self, number: int) -> None:
        """Until it is landed, for 60 s at most."""
        end = time.monotonic() + 60
        while not (self._root / f"p/_checkpoints/land/commits/{number}").exists():
            assert time.monotonic() < end, f"batch {number} has not landed"
            threading.Event().wait(0.05)

    def must_have_landed(self) -> None:
        """Each message is once in bronze."""
        values = self.rows("bronze", 'SELECT value FROM {} ORDER BY "offset", "index"')
        assert [json.loads(value) for (value,) in values] == self.sent

    def must_be_complete(self) -> None:
        """Each message is once in bronze and once in silver."""
        self.must_have_landed()
        assert self.rows("silver", "SELECT number FROM {} ORDER BY number") == [
            (event["number"],) for event in self.sent
        ]


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    return Clock(tmp_path)


def run_at_all_times(clock: Clock, pipeline: Pipeline, run: Callable[[], None]) -> None:
    for shift in (0, -HOUR, None, DAY, 0):
        pipeline.add_events()
        if shift is None:
            with clock.jumping():
                run()
        else:
            clock.set(shift)
            run()


@pytest.mark.slow
def test_lake_loses_and_doubles_nothing_when_the_clock_jumps(clock: Clock, tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path)

    def run() -> None:
        for step in ("land", "refine"):
            command = [sys.executable, "-m", "consumerd", "lake", step, "-c", str(pipeline.file), "--workers", "1"]
            subprocess.run(command, check=True, env=clock.environment, capture_output=True, timeout=120)

    run_at_all_times(clock, pipeline, run)
    pipeline.must_be_complete()
    days = pipeline.rows("bronze", "SELECT DISTINCT date_trunc('hour', landed_at) FROM {}")
    assert len(days) >= 3, "the clock did not jump"


@pytest.mark.parametrize(
    "command", [pytest.param("lake", marks=pytest.mark.slow), pytest.param("spark", marks=pytest.mark.long)]
)
def test_a_continuous_landing_goes_on_when_the_clock_is_set_back(clock: Clock, tmp_path: Path, command: str) -> None:
    pipeline = Pipeline(tmp_path, trigger="1 second")
    pipeline.add_events()
    step = [sys.executable, "-m", "consumerd", command, "land", "-c", str(pipeline.file), "--continuous"]
    with subprocess.Popen(step, env=clock.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        try:
            pipeline.wait_for_batch(0)
            clock.set(-DAY)
            pipeline.add_events()
            pipeline.wait_for_batch(1)
            clock.set(DAY)
            pipeline.add_events()
            pipeline.wait_for_batch(2)
        finally:
            running.send_signal(signal.SIGTERM)
            _, said = running.communicate(timeout=120)
    assert running.returncode == 0, said
    pipeline.must_have_landed()


@pytest.mark.long  # every day: the same steps without Spark
@pytest.mark.timeout(1500)
def test_spark_closes_windows_by_events_when_the_clock_jumps(clock: Clock, tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path)
    command = [sys.executable, "-c", DRIVER, str(pipeline.file)]
    with subprocess.Popen(
        command, env=clock.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as driver:
        assert driver.stdin is not None
        assert driver.stdout is not None
        requests, answers = driver.stdin, driver.stdout

        def run() -> None:
            print("run", file=requests, flush=True)
            assert answers.readline() == "done\n"

        run_at_all_times(clock, pipeline, run)
        requests.close()
        assert driver.wait() == 0
    pipeline.must_be_complete()
    events: Counter[tuple[float, str]] = Counter()
    for event in pipeline.sent:
        events[event["at"] // 1000 // WINDOW * WINDOW, event["user"]] += 1
    found = pipeline.rows("aggregate", 'SELECT epoch(window_start), "user", count FROM {}')
    windows = {(start, user): count for start, user, count in found}
    assert len(windows) == len(found)
    # Spark writes windows with the watermark of the batch before, so that of the last events is not in force yet.
    reached = [pipeline.sent[number]["at"] / 1000 - WATERMARK for number in (-1, -91)]
    assert windows == {each: events[each] for each in windows}, "a window was closed too early"
    assert {each for each in events if each[0] + WINDOW <= reached[1]} <= windows.keys()
    assert all(start + WINDOW <= reached[0] for start, _ in windows)
