"""`make torture`, or `python -m tests.torture [--minutes N] [--partitions N] [--members N] [--seed N] [--json]`."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

import structlog

from tests.support.kafka import RELEASES
from tests.torture.run import Options, choose_coordination, torture
from tests.torture.schedule import KINDS
from tests.torture.sinks import DATABASE, FILES


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.torture",
        description="Random faults on real processes. Exit code 1: a promise is broken; the logs are then kept.",
    )
    parser.add_argument("--minutes", type=float, default=2.0, help="minutes of faults (default: 2)")
    parser.add_argument("--partitions", type=int, default=8, help="1 to 1000 (default: 8)")
    parser.add_argument("--members", type=int, default=3, help="daemons at the beginning and at most (default: 3)")
    parser.add_argument(
        "--brokers", choices=RELEASES, metavar="RELEASE",
        help=f"a real Kafka broker: {', '.join(RELEASES)} (default: consumerd's own of 0.7)",
    )  # fmt: skip
    parser.add_argument(
        "--coordination", choices=("zookeeper", "kafka"),
        help="of the group, by its members in ZooKeeper or by the broker (default: in ZooKeeper up to 2.8)",
    )  # fmt: skip
    parser.add_argument(
        "--cluster", type=int, choices=(1, 3), default=1, help="how many real brokers; three replicate (default: 1)"
    )
    parser.add_argument("--servers", type=int, choices=(1, 3), help="of ZooKeeper (default: 3 from one minute on)")
    parser.add_argument("--seed", type=int, help="repeat the schedule of a former run (default: a random one)")
    parser.add_argument("--kinds", nargs="+", choices=sorted(KINDS), default=(), help="only these faults")
    parser.add_argument(
        "--sinks", nargs="*", choices=(FILES, DATABASE),
        help="exactly-once sinks beside the members (default: both, the table where PostgreSQL is installed)",
    )  # fmt: skip
    parser.add_argument("--no-full-disk", action="store_true", help="do without the small file system (needs root)")
    parser.add_argument("--json", action="store_true", help="print the figures as one line of JSON")
    parser.add_argument("--directory", type=Path, help="keep all files there (default: a temporary directory)")
    given = parser.parse_args(arguments)
    if not (given.minutes > 0 and 1 <= given.partitions <= 1000 and 1 <= given.members <= 20):
        parser.error("MINUTES must be positive, PARTITIONS from 1 to 1000, MEMBERS from 1 to 20")
    try:
        choose_coordination(given.brokers, given.coordination)
        if given.brokers is None and given.cluster > 1:
            raise ValueError("consumerd's own broker does not replicate: give --brokers a release of Kafka")
    except ValueError as error:
        parser.error(str(error))
    return given


class Progress:
    """One line that is written over on a terminal, lines of their own in a pipe; on standard error."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._terminal = sys.stderr.isatty()

    def __call__(self, text: str) -> None:
        line = f"{time.monotonic() - self._started:6.1f} s  {text}"
        if self._terminal:
            width = shutil.get_terminal_size().columns - 1
            print(f"\r{line[:width]:<{width}}", end="", file=sys.stderr, flush=True)
        else:
            print(line, file=sys.stderr, flush=True)

    def end(self) -> None:
        """Leave the line."""
        if self._terminal:
            print(file=sys.stderr)


def main(arguments: list[str] | None = None) -> int:
    """Run once; 1 if a promise is broken."""
    given = _arguments(arguments)
    # What the producer cannot send is counted; its errors would stand between the lines of the progress.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    seed = random.SystemRandom().randrange(1 << 32) if given.seed is None else given.seed
    servers = given.servers or (3 if given.minutes >= 1 else 1)
    options = Options(
        seed, given.minutes * 60, given.partitions, given.members, servers, tuple(given.kinds), not given.no_full_disk,
        brokers=given.brokers, coordination=given.coordination, cluster=given.cluster,
        sinks=None if given.sinks is None else tuple(given.sinks),
    )  # fmt: skip
    directory = Path(given.directory or tempfile.mkdtemp(prefix="torture-"))
    directory.mkdir(parents=True, exist_ok=True)
    print(f"seed {seed}, files in {directory}", file=sys.stderr, flush=True)
    progress = Progress()
    try:
        report = asyncio.run(torture(options, directory, progress))
    finally:
        progress.end()
    print(json.dumps(report.as_json()) if given.json else report.as_table())
    if report.violations:
        print(f"the logs are in {directory}; SEED={seed} repeats the schedule", file=sys.stderr)
        return 1
    if given.directory is None:
        shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
