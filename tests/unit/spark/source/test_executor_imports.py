"""Imports of a task: of consumerd the wire format and storage, and nothing that only a daemon or a driver needs."""

from __future__ import annotations

import json
import subprocess
import sys

#: The imports of unpickling a reader, and of reading a split of a local file or a broker.
EXECUTORS = """
import json, sys
before = set(sys.modules)
import pyspark.worker
spark = set(sys.modules)
import consumerd.spark.source.datasource
import consumerd.spark.source.v07.client
print(json.dumps([sorted(set(sys.modules) - spark), sorted(spark)]))
"""
HEAVY = {
    "pydantic",
    "pydantic_settings",
    "rich",
    "click",
    "aiozk",
    "structlog",
    "uvloop",
    "fsspec",
}
ROOMS = {
    "base",
    "base.address",
    "base.errors",
    "base.files",
    "base.lazy",
    "base.native",
    "base.partition",
    "base.settings",
    "base.version",
    "wire",
    "storage",
    "storage.log",
    "spark",
}
#: The rooms that connect to brokers of 0.8 and later, on a loop.
CLIENT_ROOMS = {
    "base.clock",
    "base.ports",
    "net",
    "net.addresses",
    "net.client",
    "net.connect",
    "net.connection",
    "net.errors",
    "net.framing",
    "net.tls",
}


def test_executors_import_only_wire_and_storage() -> None:
    ours = loaded(EXECUTORS, HEAVY | {"asyncio"}, ROOMS)
    assert "consumerd.wire.v08" not in ours


def test_executors_reading_v08_import_the_client_without_packages() -> None:
    more = "import consumerd.spark.source.v08.reading\nprint("
    assert "consumerd.net.client.cluster" in loaded(EXECUTORS.replace("print(", more), HEAVY, ROOMS | CLIENT_ROOMS)


def test_tasks_that_read_and_write_tables_import_no_package_for_that() -> None:
    landing = "consumerd.spark.lake.land_tasks, consumerd.spark.tables.batch_stream"
    reading = "consumerd.spark.lake.reconcile_tasks, consumerd.spark.report.measure"
    more = f"import {landing}, {reading}\nprint("
    loaded(EXECUTORS.replace("print(", more), HEAVY | {"deltalake", "pandas"}, ROOMS)


def room_of(module: str) -> str:
    """The room; of those that tasks import parts of, the part."""
    _, room, *parts = module.split(".")
    return ".".join([room, *parts[:1]]) if room in ("base", "net", "storage") else room


def loaded(script: str, heavy: set[str], allowed: set[str]) -> set[str]:
    """Our modules and those that came with them, none of which is a driver's or a daemon's alone."""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    ours, sparks = map(set, json.loads(found.stdout))
    tops = {name.partition(".")[0] for name in ours}
    assert tops & heavy - {name.partition(".")[0] for name in sparks} == set()
    rooms = {room_of(name) for name in ours if name.startswith("consumerd.")}
    assert rooms <= allowed, sorted(rooms - allowed)
    origins = {"archive_origin", "origin"}
    in_driver = {"planning", "discovery", "commits", "session"} | origins
    assert {name.rpartition(".")[2] for name in ours if name.startswith("consumerd.spark.")} & in_driver == set()
    return ours


def test_landing_segments_imports_no_client_and_no_logger() -> None:
    """In a driver that plans segments of 0.7, and commits: each of them would take a tenth of a start."""
    script = """
import sys
import consumerd.spark.lake.delta, consumerd.spark.lake.land, consumerd.spark.source.v07.archive_origin
print(*sorted({"structlog", "rich", "consumerd.net.client", "consumerd.spark.source.v08.stored"} & set(sys.modules)))
"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout == "\n"


def test_planning_reading_and_checkpoints_need_no_spark() -> None:
    """`consumerd lake` runs where pyspark is not installed."""
    script = """
import sys
sys.modules.update(pyspark=None, py4j=None)
from consumerd.spark import beginning, checkpoints, former_logs, progress, seen, spec
from consumerd.spark.source import planning, reading
from consumerd.spark.source.files import origin
from consumerd.spark.source.v07 import archive_origin, client, commits, origin
from consumerd.spark.source.v08 import commits, origin, reading
print("imported")
"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (found.stdout, found.stderr) == ("imported\n", "")
