"""One SparkSession for all tests of this folder: starting one takes longer than most tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

from consumerd.base.java import JavaRuntime, MissingRuntimeError
from tests.support.kafka import RELEASES, KafkaBroker, kafka_jars
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


@pytest.fixture
def broker(java: JavaRuntime, tmp_path: Path, missing: Callable[[str], NoReturn]) -> Iterator[KafkaBroker]:
    """Kafka 3.9.1 alone, with transactions, and a cleaner that looks often."""
    release = RELEASES["3.9.1"]
    try:
        jars = kafka_jars(release)
    except MissingRuntimeError as error:
        missing(str(error))
    config: dict[str, str | int] = {
        "log.cleaner.backoff.ms": 100,
        **{f"transaction.state.log.{name}": 1 for name in ("replication.factor", "min.isr", "num.partitions")},
    }
    made = KafkaBroker(tmp_path / "broker", release, None, java=java, jars=jars, broker_id=1, config=config)
    asyncio.run(made.start())
    yield made
    made.kill()
