"""The driver of a pipeline killed, JVM, workers and all, at random moments: every message once, wherever it ends up.

What is in the tables is read with deltalake and pyarrow; the corpus is known by identity
from how it was made. Moments are drawn from a seed, as waits for the next change of the tables or checkpoints and for
a while after it.
"""

from __future__ import annotations

import contextlib
import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from consumerd.wire.compression import Codec
from consumerd.wire.v07 import encode_message_set
from tests.support.lake_tables import rows_of
from tests.support.spark_jvm import QUICK_JVM

pytestmark = [pytest.mark.kill, pytest.mark.spark]

TOPIC = "events"
STEPS = ("land", "refine", "compact")
DEADLINE = 600.0
DRIVER = Path(__file__).with_name("spark_driver.py")
Identity = tuple[int, int, int]


class Corpus:
    """Logs of two partitions with plain and compressed messages, some of them no JSON, some with a wrong CRC.

    `everything`: identities (partition, offset, index) of all messages; `good`: those that have to end up in silver.
    """

    def __init__(self, root: Path, rng: random.Random) -> None:
        self.everything: Counter[Identity] = Counter()
        self.good: set[Identity] = set()
        self._rng = rng
        self._folders = [root / f"{TOPIC}-{partition}" for partition in range(2)]
        self._ends = [0, 0]
        for folder in self._folders:
            folder.mkdir(parents=True)

    def grow(self, segments: int, size: int) -> None:
        """Add segments of about so many bytes to each partition."""
        for _ in range(segments):
            for partition, folder in enumerate(self._folders):
                start = self._ends[partition]
                data = bytearray()
                while len(data) < size:
                    data += self._message(partition, start + len(data))
                (folder / f".{start}").write_bytes(data)
                (folder / f".{start}").rename(folder / f"{start:020d}.kafka")
                self._ends[partition] += len(data)

    def _message(self, partition: int, offset: int) -> bytes:
        rng = self._rng
        codec = rng.choice([Codec.NONE, Codec.NONE, Codec.GZIP, Codec.SNAPPY])
        fits = [rng.random() < 0.9 for _ in range(1 if codec is Codec.NONE else rng.randrange(1, 60))]
        lines = [
            json.dumps({"id": rng.randrange(1 << 40), "text": "x" * rng.randrange(60)}).encode() if fit
            else rng.randbytes(rng.randrange(30))
            for fit in fits
        ]  # fmt: skip
        message = bytearray(encode_message_set(lines, codec=codec))
        if codec is Codec.NONE and lines[0] and rng.random() < 0.02:
            message[-1] ^= 1  # of the payload, which the CRC is over
            fits = [False]
        for index, fit in enumerate(fits):
            identity = (partition, offset, index)
            self.everything[identity] += 1
            if fit:
                self.good.add(identity)
        return bytes(message)


def configure(root: Path, per_trigger: int) -> Path:
    """A configuration whose runs take many small batches, on a JVM tuned for short runs."""
    path = root / "pipeline.toml"
    path.write_text(
        f"""
[spark]
root = "{root}/lake"
[spark.config]
"spark.sql.shuffle.partitions" = "2"
"spark.log.level" = "ERROR"
"spark.driver.extraJavaOptions" = "{QUICK_JVM}"
[spark.pipelines.p]
batches_per_trigger = 2
[spark.pipelines.p.source]
path = "{root}/log"
broker = 0
subscribe = "{TOPIC}"
maxBytesPerTrigger = {per_trigger}
[spark.pipelines.p.refine]
fields = {{ id = "bigint not null", text = "string" }}
[spark.pipelines.p.compact]
target = "40k"
keep = "1 second"
"""
    )
    return path


class Driver:
    """One process of the driver, in a session of its own, with all that it starts."""

    def __init__(self, config: Path, log: Path) -> None:
        self.log = log
        self._output = log.open("wb")
        self.process = subprocess.Popen(
            [sys.executable, DRIVER, config, *STEPS],
            stdout=subprocess.PIPE,
            stderr=self._output,
            start_new_session=True,
        )

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Return when it holds, or the process has ended. There is no event for it, so this polls."""
        end = time.monotonic() + DEADLINE
        while self.process.poll() is None and not condition():
            assert time.monotonic() < end, self.log.read_text()[-3000:]
            time.sleep(0.005)

    def kill(self) -> bool:
        """Kill everything at once; whether the process was still at work."""
        tree = []
        if self.process.poll() is None:
            tree = psutil.Process(self.process.pid).children(recursive=True)
            self.process.kill()
            for each in tree:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
        self.process.communicate(timeout=30)
        self._output.close()
        _, alive = psutil.wait_procs(tree, timeout=30)
        assert not alive
        return self.process.returncode == -signal.SIGKILL

    def result(self) -> dict[str, dict[str, object]]:
        """The result that a driver prints if it is not killed."""
        output, _ = self.process.communicate(timeout=DEADLINE)
        self._output.close()
        assert self.process.returncode == 0, self.log.read_text()[-3000:]
        return json.loads(output.splitlines()[-1])  # type: ignore[no-any-return]


def traces(root: Path) -> set[str]:
    """Names by which one sees how far a run is."""
    base = root / "lake/p"
    patterns = ["*/_delta_log/*.json", "*/part-*", "_checkpoints/*/offsets/[0-9]*", "_checkpoints/*/commits/[0-9]*"]
    return {str(path) for pattern in patterns for path in base.glob(pattern)}


def moments(root: Path, rng: random.Random) -> Iterator[Callable[[], bool]]:
    """Conditions that hold at a random moment each: some changes from now, and a while."""
    while True:
        known = traces(root)
        changes = rng.randrange(1, 12)
        pause = rng.choice([0.0, rng.random() * 0.2, rng.random() * 2])
        seen: list[float] = []

        def reached(
            known: set[str] = known, changes: int = changes, pause: float = pause, seen: list[float] = seen
        ) -> bool:
            if not seen and len(traces(root) - known) >= changes:
                seen.append(time.monotonic())
            return bool(seen) and time.monotonic() - seen[0] >= pause

        yield reached


def between_silver_and_quarantine(root: Path) -> Callable[[], bool]:
    """The moment when a batch is in silver and not in quarantine."""
    base = root / "lake/p"

    def count(table: str) -> int:
        return sum(1 for _ in (base / table).glob("_delta_log/*.json"))

    return lambda: count("silver") > count("quarantine")


def while_compacting(root: Path) -> Callable[[], bool]:
    """The moment when a merged file is written and not committed, after two batches were refined."""
    base = root / "lake/p"

    def is_orphaned(file: Path) -> bool:
        return not any(file.name in log.read_text() for log in file.parent.glob("_delta_log/*.json"))

    return lambda: (base / "_checkpoints/refine/commits/1").exists() and any(map(is_orphaned, base.glob("*/part-*")))


def identities(table: Path) -> Counter[Identity]:
    """The number of rows of each identity in a table."""
    return Counter(rows_of(table, ["partition", "offset", "index"]))  # type: ignore[arg-type]


def check(root: Path, corpus: Corpus) -> None:
    """Everything once in bronze, and once in silver or quarantine, each where it belongs."""
    base = root / "lake/p"
    assert identities(base / "bronze") == corpus.everything
    silver, quarantine = identities(base / "silver"), identities(base / "quarantine")
    assert silver + quarantine == corpus.everything
    assert set(silver) == corpus.good


def kill_at(moment: Callable[[], bool], config: Path, corpus: Corpus, log: Path) -> None:
    """Kill a driver at that moment. One that was over before it was seen gets more to do, and another follows."""
    for _ in range(3):
        driver = Driver(config, log)
        driver.wait_for(moment)
        if driver.kill():
            return
        corpus.grow(3, 8_000)
    pytest.fail(f"no driver was killed in time: {log.read_text()[-3000:]}")


# A compaction is killed anywhere every day, in tests/spark/test_tables.py and tests/simulation/test_tables.py.
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "condition", [between_silver_and_quarantine, pytest.param(while_compacting, marks=pytest.mark.long)]
)
def test_survives_sigkill_between_two_tables_and_during_compaction(
    tmp_path: Path, condition: Callable[[Path], Callable[[], bool]]
) -> None:
    corpus = Corpus(tmp_path / "log", random.Random(7))
    corpus.grow(3, 8_000)
    config = configure(tmp_path, per_trigger=16_000)  # three batches to land, and two to refine
    kill_at(condition(tmp_path), config, corpus, tmp_path / f"{condition.__name__}.log")
    result = Driver(config, tmp_path / "driver.log").result()
    check(tmp_path, corpus)
    assert result["compact"]["tables"]


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [1])
def test_survives_sigkill_at_ten_random_moments(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    corpus = Corpus(tmp_path / "log", rng)
    corpus.grow(8, 20_000)
    config = configure(tmp_path, per_trigger=40_000)
    kills = 0
    for number, condition in enumerate(moments(tmp_path, rng)):
        driver = Driver(config, tmp_path / f"driver-{number}.log")
        driver.wait_for(condition)
        if driver.kill():
            kills += 1
            if kills == 10:
                break
        else:  # it had nothing more to do
            assert driver.process.returncode == 0, driver.log.read_text()[-3000:]
            corpus.grow(4, 20_000)
    Driver(config, tmp_path / "driver.log").result()
    check(tmp_path, corpus)
