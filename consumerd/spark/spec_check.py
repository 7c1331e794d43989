"""The checks of `consumerd check` for pipelines beyond their tables: options of the source, and files.

Strategy: everything that can be checked without a JVM and without a connection, with the same functions that the steps
use later, so that the check covers what will be read.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from consumerd.base.errors import ConfigError
from consumerd.spark.source.options import BATCH_ONLY, read_options, refuse_options

if TYPE_CHECKING:
    from consumerd.spark.spec import PipelineSpec, RefineSpec, SparkSpec


def check_spark(spec: SparkSpec) -> None:
    """Raise ConfigError for the first invalid pipeline."""
    for pipeline in spec.pipelines.values():
        try:
            check_pipeline(pipeline)
        except ConfigError as error:
            raise ConfigError(f"{spec.source}: pipeline {pipeline.name}: {error}") from error


def check_pipeline(pipeline: PipelineSpec) -> None:
    """As `check_spark`, of one pipeline."""
    read_options(pipeline.source)
    refuse_options(pipeline.source, BATCH_ONLY, "a stream")
    if pipeline.refine is not None and pipeline.refine.avro_schema is not None:
        _check_avro(pipeline.refine, pipeline.refine.avro_schema)


def _check_avro(spec: RefineSpec, path: Path) -> None:
    """Raise ConfigError unless the file is the schema of a record with the declared fields."""
    try:
        schema = json.loads(avro_text(path))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the Avro schema {path} is not JSON: {error}.") from error
    if not isinstance(schema, dict) or schema.get("type") != "record" or not isinstance(schema.get("fields"), list):
        raise ConfigError(f"the Avro schema {path} is not a record with fields.")
    names = [field.get("name") for field in schema["fields"] if isinstance(field, dict)]
    for name, field in spec.columns.items():
        source = field.source or name
        if source not in names:
            raise ConfigError(
                f"the Avro schema {path} has no field {source!r}; its fields: {', '.join(map(str, names))}."
            )


def avro_text(path: Path) -> str:
    """The text of a schema file. Raises ConfigError."""
    try:
        return path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the Avro schema {path}: {error}.") from error
