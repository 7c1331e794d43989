"""Jars that pyspark does not include: for Avro.

Strategy: a pipeline declares its requirements. The jar that matches the locked pyspark was tested and is listed here:
not every version of a package has a jar of that version in the public repositories. Spark downloads jars by their Maven
coordinates and caches them. If a jar of that name is present (in Spark's own directory, or in `spark.jars`), nothing is
downloaded, so machines without a network can be prepared.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.find_spark_home import _find_spark_home

if TYPE_CHECKING:
    from consumerd.spark.spec import PipelineSpec

#: Reads Avro with Spark 4.2 as well; there is no 4.2 of it.
AVRO_PACKAGE: Final = "org.apache.spark:spark-avro_2.13:4.1.1"


@dataclass(frozen=True, slots=True)
class RequiredPackages:
    """The requirements of a session for some pipelines: Maven coordinates and Spark properties."""

    packages: tuple[str, ...] = ()
    config: Mapping[str, str] = field(default_factory=dict)


def required_packages(pipelines: Iterable[PipelineSpec], config: Mapping[str, str]) -> RequiredPackages:
    """Return the requirements of these pipelines besides `config`, the Spark properties that the user has set."""
    avro = any(each.refine is not None and each.refine.parse == "avro" for each in pipelines)
    packages = [AVRO_PACKAGE] if avro else []
    there = _jars(config)
    return RequiredPackages(tuple(each for each in packages if not _is_there(each, there)))


def needs_of(pipelines: Iterable[PipelineSpec], config: Mapping[str, str]) -> RequiredPackages:
    """Deprecated name of `required_packages`."""
    warnings.warn(f"{__name__}.needs_of is deprecated: use required_packages.", DeprecationWarning, stacklevel=2)
    return required_packages(pipelines, config)


def _jars(config: Mapping[str, str]) -> list[str]:
    """Names of the jar files that Spark finds without a download."""
    named = [part.rpartition("/")[2] for part in config.get("spark.jars", "").split(",")]
    return named + [path.name for path in (Path(_find_spark_home()) / "jars").glob("*.jar")]


def _is_there(package: str, jars: Iterable[str]) -> bool:
    _, artifact, _ = package.split(":")
    return any(re.match(rf"{re.escape(artifact)}-[0-9]", name) for name in jars)
