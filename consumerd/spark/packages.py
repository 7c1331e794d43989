"""Jars that pyspark does not bring along, and the settings that go with them: for Avro and for Delta tables.

Strategy: a pipeline declares what it needs; which jars go with the pyspark that is locked was tried, and stands here:
not every version of a package has a jar of that version in the public repositories. Spark fetches jars by their Maven
coordinates and keeps them. Where a jar with that name is there already (in Spark's own folder, or named in
`spark.jars`), nothing is fetched: that is the way for machines without a network.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.find_spark_home import _find_spark_home

from consumerd.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from consumerd.spark.spec import PipelineSpec

_SCALA: Final = "2.13"
#: Reads Avro with Spark 4.2 as well; there is no 4.2 of it.
AVRO_PACKAGE: Final = f"org.apache.spark:spark-avro_{_SCALA}:4.1.1"
#: What the package delta-spark 4.4.1 goes with, of which there is no jar.
DELTA_PACKAGE: Final = f"io.delta:delta-spark_4.2_{_SCALA}:4.4.0"
DELTA_SETTINGS: Final[Mapping[str, str]] = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


@dataclass(frozen=True, slots=True)
class Needs:
    """What a session has to have for some pipelines: Maven coordinates, and Spark properties."""

    packages: tuple[str, ...] = ()
    config: Mapping[str, str] = field(default_factory=dict)


def needs_of(pipelines: Iterable[PipelineSpec], config: Mapping[str, str]) -> Needs:
    """What these pipelines need besides `config`, the Spark properties that the user has set.

    Raises ConfigError where a pipeline has Delta tables and the extra is not installed.
    """
    pipelines = list(pipelines)
    packages, settings = [], {}
    if any(each.refine is not None and each.refine.parse == "avro" for each in pipelines):
        packages.append(AVRO_PACKAGE)
    if any(each.format == "delta" for each in pipelines):
        packages.append(_delta_package())
        settings = {key: value for key, value in DELTA_SETTINGS.items() if key not in config}
    there = _jars(config)
    return Needs(tuple(each for each in packages if not _is_there(each, there)), settings)


def _delta_package() -> str:
    try:
        version("delta-spark")
    except PackageNotFoundError:
        raise ConfigError(
            "format = \"delta\" needs the package delta-spark; install the extra: pip install 'consumerd[delta]'"
        ) from None
    return DELTA_PACKAGE


def _jars(config: Mapping[str, str]) -> list[str]:
    """Names of the jar files that Spark finds without fetching anything."""
    named = [part.rpartition("/")[2] for part in config.get("spark.jars", "").split(",")]
    return named + [path.name for path in (Path(_find_spark_home()) / "jars").glob("*.jar")]


def _is_there(package: str, jars: Iterable[str]) -> bool:
    _, artifact, _ = package.split(":")
    return any(re.match(rf"{re.escape(artifact)}-[0-9]", name) for name in jars)
