"""`make soak MINUTES=n`, or `python -m tests.soak [--minutes N] [--speed PART | --rate N] [--fault-every SECONDS]`.

With `--full-speed`, one daemon reads as fast as it can, without faults (`tests.soak.full_speed`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import random
import shutil
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import structlog

from tests.soak.full_speed import full_speed
from tests.soak.record import as_table, picture
from tests.soak.run import Options, soak
from tests.support.postgres import PostgresServer
from tests.support.small_disk import small_disk
from tests.torture.__main__ import Progress
from tests.torture.schedule import KINDS

_DISK_BYTES = 64 << 20


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak",
        description="A long run under load, with faults. Exit code 1: a promise is broken; the logs are then kept.",
    )
    parser.add_argument("--minutes", type=float, default=60.0, help="minutes of load (default: 60)")
    parser.add_argument("--speed", type=float, default=0.5, help="part of full speed, which is measured (default: 0.5)")
    parser.add_argument("--rate", type=float, help="messages per second, in place of --speed")
    parser.add_argument(
        "--full-speed",
        action="store_true",
        help="one daemon reads endless logs of all kinds of messages, no faults",
    )
    parser.add_argument("--fault-every", type=float, default=10.0, help="seconds; 0 for no faults (default: 10)")
    parser.add_argument("--partitions", type=int, default=8, help="1 to 1000 (default: 8)")
    parser.add_argument("--members", type=int, default=3, help="daemons at the beginning and at most (default: 3)")
    parser.add_argument("--servers", type=int, choices=(1, 3), default=3, help="of ZooKeeper (default: 3)")
    parser.add_argument("--seed", type=int, help="repeat the schedule of a former run (default: a random one)")
    parser.add_argument("--kinds", nargs="+", choices=sorted(KINDS), default=(), help="only these faults")
    parser.add_argument("--record", type=Path, help="write the whole record there, as JSON")
    parser.add_argument("--plot", type=Path, help="write the picture there, as SVG")
    parser.add_argument("--draw", type=Path, metavar="RECORD", help="no run: only the picture of a record")
    parser.add_argument("--directory", type=Path, help="keep all files there (default: a temporary directory)")
    given = parser.parse_args(arguments)
    if not (given.minutes > 0 and given.fault_every >= 0 and 0 < given.speed <= 1 and (given.rate or 1) > 0):
        parser.error("MINUTES and RATE must be positive, SPEED above 0 and at most 1")
    if not (1 <= given.partitions <= 1000 and 1 <= given.members <= 20):
        parser.error("PARTITIONS must be from 1 to 1000, MEMBERS from 1 to 20")
    if given.draw is not None and given.plot is None:
        parser.error("--draw needs --plot")
    return given


def main(arguments: list[str] | None = None) -> int:
    """Run once; 1 if a promise is broken."""
    given = _arguments(arguments)
    if given.draw is not None:
        given.plot.write_text(picture(json.loads(given.draw.read_text("utf-8"))), "utf-8")
        return 0
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    seed = random.SystemRandom().randrange(1 << 32) if given.seed is None else given.seed
    full_disks = os.geteuid() == 0
    options = Options(
        seed, given.minutes * 60, given.rate, given.speed, given.fault_every or None, given.partitions, given.members,
        given.servers, tuple(given.kinds), full_disks,
    )  # fmt: skip
    directory = Path(given.directory or tempfile.mkdtemp(prefix="soak-"))
    directory.mkdir(parents=True, exist_ok=True)
    print(
        f"files in {directory}" if given.full_speed else f"seed {seed}, files in {directory}",
        file=sys.stderr,
        flush=True,
    )
    progress = Progress()
    with ExitStack() as stack:
        stack.callback(progress.end)
        if given.full_speed:
            return _reported(given, asyncio.run(full_speed(options.seconds, directory, progress)), directory)
        disk = directory / "disk"
        if full_disks:
            stack.enter_context(small_disk(disk, _DISK_BYTES))
        else:
            disk.mkdir()
        server = stack.enter_context(PostgresServer())
        record = asyncio.run(soak(options, directory, disk, server.dsn, progress))
    return _reported(given, record, directory)


def _reported(given: argparse.Namespace, record: dict[str, Any], directory: Path) -> int:
    """Print and keep the record; the exit code."""
    if given.record is not None:
        given.record.write_text(json.dumps(record), "utf-8")
    if given.plot is not None:
        given.plot.write_text(picture(record), "utf-8")
    print(as_table(record))
    if record["violations"]:
        seed = f"; SEED={record['seed']} repeats the schedule" if "seed" in record else ""
        print(f"the logs are in {directory}{seed}", file=sys.stderr)
        return 1
    if given.directory is None:
        shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
