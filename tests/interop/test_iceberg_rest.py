"""Tables in the REST catalog of Iceberg's own reference server: each message once, read by pyiceberg through it."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator, Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import pytest
from pyiceberg.catalog.rest import RestCatalog

from consumerd.base.java import JavaRuntime, MissingRuntimeError
from consumerd.demo.children import Child
from consumerd.demo.ports import free_port
from consumerd.demo.processes import clean_environment, consumerd_command
from consumerd.wire.v07 import encode_message_set
from tests.support.maven import fetch_jars
from tests.support.waiting import until

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.timeout(300)]

SERVER = (
    "org.apache.iceberg:iceberg-open-api:1.10.0:test-fixtures",
    "org.apache.iceberg:iceberg-core:1.10.0",
    "org.apache.iceberg:iceberg-core:1.10.0:tests",
    "org.eclipse.jetty:jetty-server:11.0.26",
    "org.eclipse.jetty:jetty-servlet:11.0.26",
    "org.xerial:sqlite-jdbc:3.50.3.0",
)
MESSAGES = [b'{"user":%d}' % number for number in range(1000)]


@pytest.fixture
async def catalog(java: JavaRuntime, tmp_path: Path, missing: Callable[[str], NoReturn]) -> AsyncIterator[str]:
    """The address of a running server."""
    try:
        jars = fetch_jars(SERVER)
    except MissingRuntimeError as error:
        missing(str(error))
    spark = find_spec("pyspark")
    assert spark is not None
    assert spark.origin is not None
    jars += sorted((Path(spark.origin).parent / "jars").glob("hadoop-client-*.jar"))
    port = free_port()
    settings = {
        "CATALOG_WAREHOUSE": str(tmp_path / "warehouse"),
        "CATALOG_CATALOG__IMPL": "org.apache.iceberg.jdbc.JdbcCatalog",
        "CATALOG_URI": f"jdbc:sqlite:{tmp_path}/catalog.db",
        "CATALOG_JDBC_SCHEMA__VERSION": "V1",
        "CATALOG_REST_PORT": str(port),
    }
    command = [str(java.executable), "-cp", ":".join(map(str, jars)), "org.apache.iceberg.rest.RESTCatalogServer"]
    child = Child(command, log=tmp_path / "server.log", env=clean_environment() | settings, name="the catalog")

    async def serves() -> bool:
        assert child.running, child.tail()
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return False
        writer.close()
        return True

    async with child:
        await until(serves)
        yield f"http://127.0.0.1:{port}"


async def test_lands_and_refines_each_message_once_through_a_rest_catalog(catalog: str, tmp_path: Path) -> None:
    log = tmp_path / "log" / "clicks-0"
    log.mkdir(parents=True)
    config = tmp_path / "lake.toml"
    config.write_text(
        f"""
        [spark]
        root = "{tmp_path}/lake"
        format = "iceberg"
        [spark.pipelines.clicks]
        source = {{ path = "{tmp_path}/log", broker = 0, subscribe = "clicks", startingOffsets = "earliest" }}
        refine = {{ parse = "json", event_time = "landed_at", fields = {{ user = "bigint not null" }} }}
        """
    )
    named = {"PYICEBERG_CATALOG__CONSUMERD__TYPE": "rest", "PYICEBERG_CATALOG__CONSUMERD__URI": catalog}

    def lake(step: str) -> dict[str, Any]:
        command = consumerd_command("lake", step, "-c", str(config), "--workers", "1", "--json")
        done = subprocess.run(command, capture_output=True, env=clean_environment() | named, check=False, timeout=120)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    with (log / f"{0:020d}.kafka").open("ab") as file:
        for count in (1, 2):
            file.write(encode_message_set([*MESSAGES, b"bad"]))
            file.flush()
            lake("land")
            lake("refine")
            tables = RestCatalog("test", uri=catalog)
            rows = {name: tables.load_table(("clicks", name)).scan().to_arrow() for name in ("bronze", "silver")}
            assert len(set(rows["bronze"]["offset"].to_pylist())) == rows["bronze"].num_rows == count * 1001
            assert sorted(rows["silver"]["user"].to_pylist()) == sorted([*range(1000)] * count)
    assert lake("reconcile")["clean"]
