"""Jars that pyspark does not include, and their settings: for Avro and for Delta tables.

Strategy: a pipeline declares its requirements. The jars that match the locked pyspark were tested and are listed here:
not every version of a package has a jar of that version in the public repositories. Spark downloads jars by their Maven
coordinates and caches them. If a jar of that name is present (in Spark's own directory, or in `spark.jars`), nothing is
downloaded, so machines without a network can be prepared.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.find_spark_home import _find_spark_home

from consumerd.base.errors import ConfigError
from consumerd.spark.tables.delta import DELTA_PACKAGE, DELTA_SETTINGS

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
    """Return the requirements of these pipelines besides `config`, the Spark properties that the user has set.

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
    return RequiredPackages(tuple(each for each in packages if not _is_there(each, there)), settings)


def needs_of(pipelines: Iterable[PipelineSpec], config: Mapping[str, str]) -> RequiredPackages:
    """Deprecated name of `required_packages`."""
    warnings.warn(f"{__name__}.needs_of is deprecated: use required_packages.", DeprecationWarning, stacklevel=2)
    return required_packages(pipelines, config)


def _delta_package() -> str:
    try:
        version("delta-spark")
    except PackageNotFoundError:
        raise ConfigError(
            "format = \"delta\" needs the package delta-spark; install the extra: pip install 'consumerd[delta]'"
        ) from None
    return DELTA_PACKAGE


def _jars(config: Mapping[str, str]) -> list[str]:
    """Names of the jar files that Spark finds without a download."""
    named = [part.rpartition("/")[2] for part in config.get("spark.jars", "").split(",")]
    return named + [path.name for path in (Path(_find_spark_home()) / "jars").glob("*.jar")]


def _is_there(package: str, jars: Iterable[str]) -> bool:
    _, artifact, _ = package.split(":")
    return any(re.match(rf"{re.escape(artifact)}-[0-9]", name) for name in jars)
