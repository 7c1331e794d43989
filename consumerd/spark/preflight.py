"""Checks before Spark starts, which takes longest of all: what would stop a step right after the start.

Strategy: it calls the same functions as the step itself, so nothing is refused here that would have worked there. What
only Spark can tell (tables on other than local file systems) is left to Spark.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from consumerd.base.errors import NotFoundError
from consumerd.spark.aggregate import DeclaredWindows
from consumerd.spark.failures import FileFailedError
from consumerd.spark.source.discovery import open_origin
from consumerd.spark.source.options import STREAM_ONLY, read_options, refuse_options
from consumerd.spark.spec_check import check_pipeline

if TYPE_CHECKING:
    from consumerd.spark.spec import PipelineSpec

#: Steps that read a table, and which, if no step before them writes it.
_READS: Final = {"refine": "bronze", "aggregate": "silver", "reconcile": "bronze"}
_WRITES: Final = {"land": "bronze", "refine": "silver"}
#: Any of these may bring another file system than the local one for paths that name none.
_CONFIGURED_BY: Final = ("HADOOP_CONF_DIR", "HADOOP_HOME", "SPARK_CONF_DIR", "SPARK_HOME", "PYSPARK_GATEWAY_PORT")
_DEFAULT_SYSTEM: Final = "fs.default"


def check_steps(pipeline: PipelineSpec, steps: Sequence[str], config: Mapping[str, str]) -> None:
    """Raise the error of the first of these steps that would fail. Blocks while it reads the source's partitions.

    `config`: Spark's properties, which may say that paths are elsewhere.
    """
    check_pipeline(pipeline)
    if "refine" in steps:
        pipeline.declared_refine  # noqa: B018 - it raises
    if "aggregate" in steps:
        DeclaredWindows.of(pipeline)
    base = _local(pipeline.base, config)
    if base is not None:
        check_folder(base)
    written: set[str] = set()
    for step in steps:
        table = _READS.get(step)
        folder = None if base is None or table is None else base / table
        if folder is not None and table not in written and not folder.exists():
            before = next(name for name, made in _WRITES.items() if made == table)
            raise NotFoundError(f"table {folder} does not exist: run {before} of the pipeline {pipeline.name} first.")
        if step in _WRITES:
            written.add(_WRITES[step])
    if "land" in steps:
        resumed = base is None or (base / "_checkpoints" / "land" / "commits").exists()
        _look(pipeline.source, resumed=resumed)


def check_read(options: Mapping[str, str], target: str | None = None) -> None:
    """As `check_steps`, of one read into the folder `target`."""
    read_options(options)
    refuse_options(options, STREAM_ONLY, "a batch")
    _look(options, resumed=False)
    if target is not None and (folder := _local(target, {})) is not None:
        if folder.exists():
            raise FileFailedError(f"{folder} already exists: name a new folder, or remove it.")
        check_folder(folder)


def check_folder(folder: Path) -> None:
    """Raise FileFailedError unless the directory is writable or can be created."""
    place = folder.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    if not place.is_dir():
        raise FileFailedError(f"cannot create {folder}: {place} is not a folder.")
    if not os.access(place, os.W_OK | os.X_OK):
        raise FileFailedError(f"cannot write {folder}: permission denied for {place}; check its owner and mode.")


def _look(options: Mapping[str, str], *, resumed: bool) -> None:
    """Raise what planning would raise. `resumed`: the partitions of a stream may be gone by now."""
    read = read_options(options)
    origin = open_origin(read)
    found = origin.snapshot()
    if (missing := origin.missing(found)) is not None and not (resumed and not read.fail_on_data_loss):
        raise NotFoundError(missing)


def _local(path: str, config: Mapping[str, str]) -> Path | None:
    """The directory on this machine; None if it is remote, or only Spark can tell."""
    if path.startswith("file:/"):
        return Path("/" + path.removeprefix("file:").lstrip("/"))
    elsewhere = any(name in os.environ for name in _CONFIGURED_BY) or any(_DEFAULT_SYSTEM in name for name in config)
    return None if elsewhere or ":" in path else Path(path)
