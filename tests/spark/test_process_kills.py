"""Processes of the pipeline killed: each message once, wherever it ends up, and the same command continues.

Victims are the driver with its JVM and workers, executors of a cluster, Python workers of a session, and `consumerd
lake` with its workers. Moments and victims are drawn from a seed: a moment is some changes of the tables or checkpoints
from now, and a while after them. What is in the tables is read with deltalake and pyarrow; the corpus is known by
identity from how it was made. Steps that die at each of their calls are in tests/unit/spark/lake.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import repeat
from pathlib import Path
from typing import Self

import psutil
import pyspark
import pytest
from pyspark.sql import SparkSession

from consumerd.base.errors import ConsumerdError, ExitCode
from consumerd.demo.processes import clean_environment
from consumerd.spark.land import land
from consumerd.spark.refine import refine
from consumerd.spark.spec import load_spark
from consumerd.wire.compression import Codec
from consumerd.wire.v07 import encode_message_set
from tests.support.lake_tables import rows_of
from tests.support.spark_jvm import QUICK_JVM

pytestmark = [pytest.mark.kill, pytest.mark.long, pytest.mark.timeout(1800)]

TOPIC = "events"
STEPS = ("land", "refine", "compact")
DEADLINE = 600.0
DRIVER = Path(__file__).with_name("killed_driver.py")
Identity = tuple[int, int, int]
Moment = Callable[[], bool]


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


def configure(root: Path, per_trigger: int, master: str = "local[2]") -> Path:
    """A configuration whose runs take many small batches, on a JVM tuned for short runs."""
    path = root / "pipeline.toml"
    path.write_text(
        f"""
[spark]
root = "{root}/lake"
master = "{master}"
[spark.config]
"spark.sql.shuffle.partitions" = "2"
"spark.log.level" = "ERROR"
"spark.local.dir" = "{root}/spill"
"spark.executor.memory" = "512m"
"spark.driver.extraJavaOptions" = "{QUICK_JVM}"
"spark.executor.extraJavaOptions" = "{QUICK_JVM}"
[spark.pipelines.p]
batches_per_trigger = 2
[spark.pipelines.p.source]
path = "{root}/log"
broker = 0
subscribe = "{TOPIC}"
maxBytesPerTrigger = {per_trigger}
maxSplitBytes = {per_trigger // 4}
[spark.pipelines.p.refine]
fields = {{ id = "bigint not null", text = "string" }}
[spark.pipelines.p.compact]
target = "40k"
keep = "1 second"
"""
    )
    return path


class Program:
    """One process, in a session of its own, with all that it starts."""

    def __init__(self, command: list[str | Path], log: Path, env: dict[str, str] | None = None) -> None:
        self._log = log
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, env=env, cwd=log.parent, start_new_session=True
            )

    def tree(self) -> list[psutil.Process]:
        """The process and those that it started; none once it has ended."""
        try:
            top = psutil.Process(self.process.pid)
            return [top, *top.children(recursive=True)] if top.status() != psutil.STATUS_ZOMBIE else []
        except psutil.NoSuchProcess:
            return []

    def wait(self) -> int:
        """The exit code."""
        self.output, _ = self.process.communicate(timeout=DEADLINE)
        return self.process.returncode

    def log(self) -> str:
        """The end of its standard error."""
        return self._log.read_text()[-3000:]


def traces(root: Path) -> set[str]:
    """Names by which one sees how far a run is."""
    base = root / "lake/p"
    patterns = ["*/_delta_log/*.json", "*/part-*", "_checkpoints/*/offsets/[0-9]*", "_checkpoints/*/commits/[0-9]*"]
    return {str(path) for pattern in patterns for path in base.glob(pattern)}


def random_moments(root: Path, rng: random.Random) -> Iterator[Moment]:
    """Conditions that hold at a random moment each: some changes from now, and a while."""
    while True:
        known, changes, seen = traces(root), rng.randrange(1, 12), list[float]()
        pause = rng.choice([0.0, rng.random() * 0.2, rng.random() * 2])

        def reached(
            known: set[str] = known, changes: int = changes, pause: float = pause, seen: list[float] = seen
        ) -> bool:
            if not seen and len(traces(root) - known) >= changes:
                seen.append(time.monotonic())
            return bool(seen) and time.monotonic() - seen[0] >= pause

        yield reached


def between_silver_and_quarantine(root: Path) -> Moment:
    """The moment when a batch is in silver and not in quarantine."""
    base = root / "lake/p"

    def count(table: str) -> int:
        return sum(1 for _ in (base / table).glob("_delta_log/*.json"))

    return lambda: count("silver") > count("quarantine")


def while_compacting(root: Path) -> Moment:
    """The moment when a merged file is written and not committed, after two batches were refined."""
    base = root / "lake/p"

    def is_orphaned(file: Path) -> bool:
        return not any(file.name in log.read_text() for log in file.parent.glob("_delta_log/*.json"))

    return lambda: (base / "_checkpoints/refine/commits/1").exists() and any(map(is_orphaned, base.glob("*/part-*")))


class Killer(threading.Thread):
    """Kills the processes that `victims` finds at each of the moments. A context manager: at its end it stops."""

    def __init__(self, moments: Iterator[Moment], victims: Callable[[], list[psutil.Process]]) -> None:
        super().__init__()
        self._moments, self._victims = moments, victims
        self._end = threading.Event()
        self._killed: list[psutil.Process] = []
        #: How many times it killed.
        self.kills = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self.join()

    def run(self) -> None:
        for moment in self._moments:
            holds = False
            while not holds:  # there is no event for it
                if self._end.wait(0.005):
                    return
                holds = moment()
            victims = self._victims()
            self._killed += victims
            for each in victims:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
            self.kills += bool(victims)

    def wait_until_all_are_gone(self) -> None:
        """Wait for those that it killed, since they may hold locks. Those that this process started must be gone."""
        gone, alive = psutil.wait_procs(self._killed, timeout=30)
        assert not alive
        self._killed = [each for each in self._killed if each not in gone]


def one_of(rng: random.Random, found: list[psutil.Process]) -> list[psutil.Process]:
    return [rng.choice(found)] if found else []


def running(program: list[Program]) -> list[psutil.Process]:
    """The processes of the newest one."""
    return program[-1].tree() if program else []


def until_killed(program: Callable[[], int], killer: Killer, kills: int, corpus: Corpus) -> None:
    """Run it again and again, with more to do whenever it had nothing left, until that many times was killed."""
    while killer.kills < kills:
        assert killer.is_alive()
        if program() == 0:
            corpus.grow(4, 20_000)
        killer.wait_until_all_are_gone()


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


class Scene:
    """A corpus, and the programs that work on it."""

    def __init__(self, root: Path, seed: int, master: str = "local[2]") -> None:
        self.root = root
        self.rng = random.Random(seed)
        self.corpus = Corpus(root / "log", self.rng)
        self.corpus.grow(8, 20_000)
        self.config = configure(root, 40_000, master)
        #: All that ran, the newest last.
        self.programs: list[Program] = []

    def start(self, *command: str | Path, env: dict[str, str] | None = None) -> Program:
        self.programs.append(Program([*command], self.root / "program.log", env))
        return self.programs[-1]

    def drive(self, env: dict[str, str] | None = None) -> int:
        """The exit code of a driver that does all steps."""
        return self.start(sys.executable, DRIVER, self.config, *STEPS, env=env).wait()

    def random(self, victims: Callable[[], list[psutil.Process]]) -> Killer:
        return Killer(random_moments(self.root, self.rng), victims)

    def must_be_whole(self, env: dict[str, str] | None = None) -> None:
        """A last run, which nothing kills, completes the tables."""
        assert self.drive(env) == 0, self.programs[-1].log()
        check(self.root, self.corpus)


def test_driver_is_killed_at_ten_random_moments(tmp_path: Path) -> None:
    scene = Scene(tmp_path, 1)

    def drive() -> int:
        code = scene.drive()
        assert code in (0, -signal.SIGKILL), scene.programs[-1].log()
        return code

    with scene.random(lambda: running(scene.programs)) as killer:
        until_killed(drive, killer, 10, scene.corpus)
    scene.must_be_whole()


@pytest.mark.parametrize("condition", [between_silver_and_quarantine, while_compacting])
def test_driver_is_killed_between_two_tables_and_during_compaction(
    tmp_path: Path, condition: Callable[[Path], Moment]
) -> None:
    scene = Scene(tmp_path, 7)
    moment = condition(tmp_path)
    with Killer(repeat(moment), lambda: running(scene.programs)) as killer:
        until_killed(scene.drive, killer, 1, scene.corpus)
    scene.must_be_whole()


def test_executors_are_killed_at_random_moments(tmp_path: Path) -> None:
    scene = Scene(tmp_path, 2, "local-cluster[2,1,1024]")
    home = tmp_path / "spark"  # where executors work
    home.mkdir()
    for path in Path(pyspark.__file__).parent.iterdir():
        if path.name != "work":
            (home / path.name).symlink_to(path)
    env = {**clean_environment(), "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"}

    def executors() -> list[psutil.Process]:
        found = [each for each in running(scene.programs) if "CoarseGrainedExecutorBackend" in " ".join(words(each))]
        return one_of(scene.rng, found)

    def drive() -> int:
        assert scene.drive(env) == 0, scene.programs[-1].log()  # another executor repeats the tasks
        return 0

    with scene.random(executors) as killer:
        until_killed(drive, killer, 5, scene.corpus)
    scene.must_be_whole(env)


def words(process: psutil.Process) -> list[str]:
    """The command line; none of a process that has ended."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


def test_python_workers_are_killed_at_random_moments(spark: SparkSession, tmp_path: Path) -> None:
    scene = Scene(tmp_path, 3)
    pipeline = load_spark(scene.config).pipeline()
    me = psutil.Process(os.getpid())
    #: Those of daemons that were killed, too: they are nobody's children then, and Spark goes on with them.
    known: set[psutil.Process] = set()

    def workers() -> list[psutil.Process]:
        (jvm,) = (each for each in me.children() if "org.apache.spark.deploy.SparkSubmit" in words(each))
        known.update(jvm.children(recursive=True))
        return one_of(scene.rng, sorted((each for each in known if each.is_running()), key=lambda each: each.pid))

    def steps() -> int:
        try:
            land(spark, pipeline)
            refine(spark, pipeline)
        except ConsumerdError:
            return 1
        return 0

    with scene.random(workers) as killer:
        until_killed(steps, killer, 10, scene.corpus)
    assert steps() == 0
    check(tmp_path, scene.corpus)


def test_lake_and_its_workers_are_killed_at_random_moments(tmp_path: Path) -> None:
    scene = Scene(tmp_path, 4)
    ended: Counter[int] = Counter()

    def victims() -> list[psutil.Process]:
        tree = running(scene.programs)
        return tree if scene.rng.random() < 0.5 else one_of(scene.rng, tree[1:])

    def steps() -> int:
        for step in STEPS:
            workers = [] if step == "compact" else ["--workers", "2"]
            program = scene.start(sys.executable, "-m", "consumerd", "lake", step, "-c", scene.config, *workers)
            code = program.wait()
            ended[code] += 1
            assert code in (0, ExitCode.SPARK, -signal.SIGKILL), program.log()
            if code:
                return code
        return 0

    with scene.random(victims) as killer:
        until_killed(steps, killer, 20, scene.corpus)
    assert steps() == 0
    assert min(ended[ExitCode.SPARK], ended[-signal.SIGKILL]) > 0
    check(tmp_path, scene.corpus)
