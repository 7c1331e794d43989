"""The module by which Spark finds the data source, with and without what it needs."""

from __future__ import annotations

import importlib
import sys

import pytest

import pyspark_consumerd
from consumerd.spark.source.datasource import ConsumerdDataSource


def test_spark_finds_the_source() -> None:
    assert pyspark_consumerd.DefaultSource is ConsumerdDataSource
    assert pyspark_consumerd.DefaultSource.name() == "consumerd"


def test_missing_extra_does_not_hide_other_sources(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delitem(sys.modules, "pyspark_consumerd")
    monkeypatch.setitem(sys.modules, "consumerd.spark.source.datasource", None)
    module = importlib.import_module("pyspark_consumerd")
    assert not hasattr(module, "DefaultSource")
    assert "install consumerd with its extra, consumerd[spark]" in caplog.text
