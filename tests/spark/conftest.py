"""One SparkSession for all tests of this folder: starting one takes longer than most tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from consumerd.base.java import JavaRuntime
from tests.support.spark_jvm import QUICK_JVM

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/spark/" in item.nodeid or "spark" in getattr(item, "fixturenames", ()):
            item.add_marker("spark")


@pytest.fixture(scope="session")
def spark(java: JavaRuntime, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """local[2] with the data source registered. Leave it alive; give tables and checkpoints folders of the test."""
    from consumerd.spark.session import build_session
    from consumerd.spark.source import register

    session = build_session(
        "local[2]",
        app_name="tests",
        java=java,
        config={
            "spark.driver.extraJavaOptions": QUICK_JVM,
            "spark.driver.memory": "1g",
            "spark.log.level": "ERROR",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
            "spark.ui.showConsoleProgress": "false",
        },
    )
    register(session)
    yield session
    session.stop()
