"""A driver of its own, for `test_cluster`: a session on argv[1], and what an executor sees of itself, as JSON."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from consumerd.spark.session import build_session


def look(_: int) -> dict[str, Any]:
    import isal
    import pyarrow
    from pyspark import BarrierTaskContext

    import consumerd.spark.source.reading as reading

    BarrierTaskContext.get().barrier()  # all tasks at one time, so that each executor has one
    daemon = Path(f"/proc/{os.getppid()}/stat").read_text()
    jvm = daemon.rpartition(")")[2].split()[1]
    command = Path(f"/proc/{jvm}/cmdline").read_text().split("\0")
    modules = [str(module.__file__) for module in (isal, pyarrow, reading)]
    return {
        "executor": command[command.index("--executor-id") + 1],
        "cwd": str(Path.cwd()),
        "modules": modules,
        "path": sys.path,
    }


def main() -> None:
    config = dict(argument.split("=", 1) for argument in sys.argv[2:])
    spark = build_session(sys.argv[1], config=config)
    seen = spark.sparkContext.parallelize(range(2), 2).barrier().mapPartitions(lambda rows: map(look, rows)).collect()
    spark.stop()
    sys.stdout.write(json.dumps(seen) + "\n")


if __name__ == "__main__":
    main()
