"""The demo's last step: the stored messages become tables, and the tables are compared with the messages.

Strategy: as an operator would do it. A configuration declares the pipeline, `consumerd spark run` runs it as a process
of its own, and its JSON is the result. Its Spark starts earlier (`early_spark`), while there are no files yet. The
input are the files of the daemons' `files` handler, written under kills and
handovers. The lines are any text, so the declared pattern requires a word in front: lines with one go to silver and
are counted by it, all else (empty lines, brackets, bytes that are not text) to quarantine with the reason.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from consumerd.demo.children import Child
from consumerd.demo.errors import ChildError, DemoInputError
from consumerd.demo.processes import clean_environment, format_toml

#: The default path of the report.
REPORT: Final = Path("consumerd-demo-report.html")
#: Packages of the extra `spark`.
_PACKAGES: Final = ("pyspark", "pyarrow", "jinja2", "matplotlib")
_PATTERN: Final = r"(?s)\s*(?<word>[A-Za-z]+).*"
#: The greatest part of the logs that one batch of landing takes: two batches, so that there is something to see in the
#: report. With half, partitions that are longer than the mean need a third one, which costs each step as much.
_BATCH_PART: Final = 0.75
_LOOK_EVERY: Final = 0.3
_SESSION: Final[dict[str, Any]] = {
    "master": "local[2]",
    "config": {
        "spark.driver.memory": "1g",
        # Over before the second compiler of the JVM would pay off.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.adaptive.enabled": "false",  # the tables are too small to plan again
        "spark.sql.shuffle.partitions": "2",
    },
}


@dataclass(frozen=True, slots=True)
class PipelineResult:
    """The result of the pipeline: rows of bronze, of quarantine, and what `reconcile` found."""

    rows_landed: int
    rows_quarantined: int
    gaps: int
    duplicates: int
    report: Path
    #: Step, rows, seconds and a remark, for a table.
    steps: tuple[tuple[str, int, float, str], ...] = ()


def missing_package() -> str | None:
    """A package of the extra that is not installed; None where all are."""
    return next((name for name in _PACKAGES if find_spec(name) is None), None)


def configuration(directory: Path, files: Path, topic: str, log_bytes: int) -> dict[str, dict[str, Any]]:
    """The tables of the configuration file. `log_bytes`: how long the brokers' logs are together."""
    return {
        "spark": {"root": str(directory / "lake"), **_SESSION},
        f"spark.pipelines.{topic}": {
            "source": {"files": str(files), "subscribe": topic, "maxBytesPerTrigger": int(log_bytes * _BATCH_PART) + 1},
            "refine": {
                "parse": "regex",
                "pattern": _PATTERN,
                "fields": {"word": "string not null"},
                "event_time": "landed_at",
            },
            "aggregate": {"window": "1 second", "watermark": "1 second", "group_by": ["word"]},
        },
    }


class Pipeline:
    """One run on the output of the daemons in `files` of `topic`. `directory` takes its own files.

    `report`: the path of the report; None for `REPORT`, or a temporary file where that cannot be written.
    """

    def __init__(self, directory: Path, files: Path, topic: str, report: Path | None) -> None:
        self._directory = directory
        self._files = files
        self._topic = topic
        self._report = report
        self._stdout = directory / "pipeline.json"
        self._config = directory / "pipeline.toml"

    def prepare(self) -> Child:
        """The process, not started yet, which starts Spark and then waits for `run`. Blocks."""
        self._directory.mkdir(parents=True, exist_ok=True)
        settings, log = self._directory / "session.json", self._directory / "spark.log"
        settings.write_text(json.dumps(_SESSION), encoding="utf-8")
        command = ["spark", "run", "-c", str(self._config), "--json"]
        return Child(
            [sys.executable, "-P", "-m", "consumerd.demo.early_spark", settings, log, *command],
            log=self._directory / "pipeline.log", stdout=self._stdout, env=clean_environment(), pipe=True,
            name="the pipeline",
        )  # fmt: skip

    def declare(self, log_bytes: int) -> None:
        """Write the configuration. `log_bytes`: the size of all brokers' logs. Blocks."""
        tables = configuration(self._directory, self._files, self._topic, log_bytes)
        self._config.write_text(format_toml(tables), encoding="utf-8")

    async def run(self, child: Child, tell: Callable[[str], None]) -> None:
        """Let the started process run the pipeline to its end, or end it with this task.

        `tell` gets a line for each step.
        """
        shown = 0
        try:
            if child.running:
                with suppress(BrokenPipeError):  # it ended, and its result says why
                    child.stdin.write(b"run\n")
                    child.stdin.flush()
            while child.running or shown < len(_steps(child)):
                for step in _steps(child)[shown:]:
                    tell(f"Spark: {step}")
                    shown += 1
                with suppress(TimeoutError):
                    await child.wait(_LOOK_EVERY)
        finally:
            await child.stop()

    def result(self, child: Child) -> PipelineResult:
        """Return the result of `child`, and copy the report to its final path. Blocks.

        Raises ChildError when the pipeline failed, DemoInputError when the report cannot be written.
        """
        try:
            found = json.loads(self._stdout.read_text(encoding="utf-8"))
            report = Path(found["report"]["page"])
            return _result(found, _keep(report, self._report))
        except (ValueError, KeyError, TypeError) as error:
            raise ChildError(f"the pipeline ended with status {child.returncode}: {child.tail(2)}") from error


def _steps(child: Child) -> list[str]:
    """Return the steps that it has reported so far."""
    lines = child.output().splitlines()
    return [line.removeprefix("consumerd: ") for line in lines if line.startswith("consumerd: ")]


def _result(found: Mapping[str, Any], report: Path) -> PipelineResult:
    land, refine, aggregate, check = (found[step] for step in ("land", "refine", "aggregate", "reconcile"))
    steps = (
        ("land", check["rows_landed"], land["seconds"], f"{land['batches']} batches"),
        ("refine", refine["rows_silver"], refine["seconds"], f"{refine['rows_quarantined']:,} rows in quarantine"),
        (
            "aggregate",
            aggregate["rows"],
            aggregate["seconds"],
            _counts(aggregate["windows"], aggregate.get("open_windows") or 0),
        ),
    )
    return PipelineResult(
        check["rows_landed"], check["rows_quarantined"], check["gaps"], check["duplicates"], report, steps
    )


def _counts(written: int, waiting: int) -> str:
    """The windows that are written, and those that wait: without later messages the newest are never complete."""
    if not written:
        return f"{waiting:,} counts of a word in a second, complete once later messages come"
    more = f", and {waiting:,} that are complete once later messages come" if waiting else ""
    return f"{written:,} counts of a word in a second{more}"


def _keep(made: Path, wanted: Path | None) -> Path:
    """Copy the report out of the folder that goes."""
    target = (wanted or REPORT).absolute()
    try:
        shutil.copyfile(made, target)
    except OSError as error:
        if wanted is not None:
            raise DemoInputError(f"the report cannot be written to {target}: {error.strerror}") from error
        with tempfile.NamedTemporaryFile(prefix=f"{REPORT.stem}-", suffix=REPORT.suffix, delete=False) as file:
            target = Path(file.name)
        shutil.copyfile(made, target)
    return target
