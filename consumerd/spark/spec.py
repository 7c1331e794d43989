"""Pipelines as declared: read from the `[spark]` table of a configuration file, checked, and resolved to paths.

Strategy: the file may be the daemon's own; its other tables are ignored. Every path of a pipeline follows from `root`
and its name, so that two steps cannot use different places:

    <root>/<name>/{bronze,silver,quarantine,aggregate}      tables
    <root>/<name>/_checkpoints/<step>                       where each step continues
    <root>/<name>/report.html

Nothing here needs pyspark.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from consumerd.base.errors import ConfigError, NotFoundError
from consumerd.base.settings.setting import Section
from consumerd.service.config.problems import read_document, validated
from consumerd.spark.rebuild import Rebuild
from consumerd.spark.spec_model import (
    AggregateSpec,
    CompactSpec,
    FieldSpec,
    GoneSpec,
    PipelineSection,
    RefineSpec,
    SparkSection,
)

__all__ = [
    "AggregateSpec",
    "CompactSpec",
    "FieldSpec",
    "GoneSpec",
    "PipelineSpec",
    "RefineSpec",
    "SparkSpec",
    "load_spark",
    "parse_spark",
]

AVAILABLE_NOW: Final = "available-now"


@dataclass(frozen=True, slots=True)
class PipelineSpec:
    """One pipeline with its places. Paths are text: folders, or URLs of Hadoop's file systems."""

    name: str
    root: str
    #: Options of the data source, as Spark takes them; or `files`, a directory of the handler of that name.
    source: Mapping[str, str] = field(repr=False)
    format: str = "delta"
    trigger: str = AVAILABLE_NOW
    refine: RefineSpec | None = None
    aggregate_spec: AggregateSpec | None = None
    compact_spec: CompactSpec = field(default_factory=CompactSpec)
    #: Batches of a table that the next step takes at a time.
    batches_per_trigger: int = 64
    #: The ranges that never landed, acknowledged.
    gone: tuple[GoneSpec, ...] = ()
    #: Set for a run of `refine --again`, whose tables and checkpoint are beside those of the pipeline.
    rebuild: Rebuild | None = None

    @property
    def base(self) -> str:
        """The directory of everything that this pipeline writes."""
        return f"{self.root.rstrip('/') or ''}/{self.name}"

    @property
    def bronze(self) -> str:
        """Messages as they came, with `landed_at` and `batch`."""
        return f"{self.base}/bronze"

    @property
    def refined(self) -> str:
        """The directory of what `refine` writes: that of the pipeline, or of a rebuild."""
        return self.base if self.rebuild is None else f"{self.base}/{self.name}-again"

    @property
    def silver(self) -> str:
        """Messages that parsed, once each."""
        return f"{self.refined}/silver"

    @property
    def quarantine(self) -> str:
        """Messages that did not, with the reason."""
        return f"{self.refined}/quarantine"

    @property
    def aggregate(self) -> str:
        """Counts and sums."""
        return f"{self.base}/aggregate"

    @property
    def report(self) -> str:
        """The page of the last run."""
        return f"{self.base}/report.html"

    def checkpoint(self, step: str) -> str:
        """The checkpoint of `land`, `refine` or `aggregate`."""
        return f"{self.refined if step.startswith('refine') else self.base}/_checkpoints/{step}"

    @property
    def declared_refine(self) -> RefineSpec:
        """The `[refine]` table. Raises ConfigError where there is none."""
        if self.refine is None:
            raise ConfigError(
                f"the pipeline {self.name} has no [refine] table: add one that says how to parse its messages."
            )
        return self.refine

    @property
    def is_continuous(self) -> bool:
        """Whether `land` runs until it is stopped."""
        return self.trigger != AVAILABLE_NOW


@dataclass(frozen=True, slots=True)
class SparkSpec:
    """The whole `[spark]` table. `source` names the file in errors."""

    root: str
    format: str
    master: str | None
    config: Mapping[str, str] = field(repr=False)
    pipelines: Mapping[str, PipelineSpec]
    source: str

    def pipeline(self, name: str | None = None) -> PipelineSpec:
        """The pipeline of that name, or the only one. Raises NotFoundError naming those that there are."""
        known = ", ".join(sorted(self.pipelines)) or "none"
        if name is None:
            if len(self.pipelines) != 1:
                raise NotFoundError(f"{self.source} declares these pipelines: {known}; name one of them.")
            return next(iter(self.pipelines.values()))
        try:
            return self.pipelines[name]
        except KeyError:
            raise NotFoundError(f"{self.source} declares no pipeline {name!r}; declared pipelines: {known}.") from None


class _Document(Section):
    """The part of a file that is read here."""

    extra = True

    spark: SparkSection


def load_spark(path: Path) -> SparkSpec:
    """Read and check the `[spark]` table of a file; other tables are not looked at. Raises ConfigError."""
    return parse_spark(read_document(path), str(path))


def parse_spark(document: Mapping[str, Any], source: str) -> SparkSpec:
    """Check the `[spark]` table of a parsed document together with the environment. Raises ConfigError."""
    if "spark" not in document:
        raise ConfigError(f"{source} has no [spark] table: declare pipelines in it.")
    section = validated(_Document, document, source).spark
    pipelines = {name: _pipeline(name, each, section) for name, each in section.pipelines.items()}
    return SparkSpec(section.root, section.format, section.master, section.config, pipelines, source)


def _pipeline(name: str, section: PipelineSection, spark: SparkSection) -> PipelineSpec:
    return PipelineSpec(
        name=name,
        root=spark.root,
        source={key: _option(value) for key, value in section.source.items()},
        format=spark.format,
        trigger=section.trigger,
        refine=section.refine,
        aggregate_spec=section.aggregate,
        compact_spec=section.compact,
        batches_per_trigger=section.batches_per_trigger,
        gone=section.gone or (),
    )


def _option(value: Any) -> str:
    """A TOML value as Spark's options spell it: lists by commas, tables as JSON."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return json.dumps(value)
    if isinstance(value, list):
        return ",".join(_option(each) for each in value)
    return str(value)
