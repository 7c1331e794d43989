"""Spark starts while there is nothing to run yet: `python -m consumerd.demo.early_spark SETTINGS LOG ARGUMENT...`.

`SETTINGS`: a JSON file with the keys `master` and `config`. After a line on standard input `consumerd ARGUMENT...` runs
in this process, and finds the session. Without one, at the end of standard input, Spark stops.
"""

from __future__ import annotations

import contextlib
import json
import runpy
import sys
from pathlib import Path

from consumerd.spark.failures import declared_errors
from consumerd.spark.jvm import end_session
from consumerd.spark.session import build_session


def main(settings: Path, log: Path, arguments: list[str]) -> None:
    """See the module's text. Raises as `build_session`, and SystemExit as the command."""
    wanted = json.loads(settings.read_text(encoding="utf-8"))
    with contextlib.ExitStack() as stack:
        with declared_errors():
            sink = stack.enter_context(log.open("w+b", buffering=0))
            spark = build_session(wanted["master"], config=wanted["config"], log=sink, log_level="warn")
        stack.callback(end_session, spark)
        if sys.stdin.readline():
            sys.argv[1:] = arguments
            runpy.run_module("consumerd", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
