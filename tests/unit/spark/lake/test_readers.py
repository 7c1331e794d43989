"""The readers of docs/spark.md see every row once: before and after a compaction, and after a new field."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from consumerd.spark.lake.data_file import DataFileWriter
from consumerd.spark.tables import open_table

PAGE = (Path(__file__).parents[4] / "docs" / "spark.md").read_text("utf-8")
READERS = dict(re.findall(r"```python\n# (\w+)_reader\.py\n(.*?)```", PAGE, re.DOTALL))
COLUMNS = pa.schema([("page", pa.string()), ("batch", pa.int64())])


def add(table: Any, batch: int, schema: pa.Schema = COLUMNS) -> None:
    row = {"page": f"p{batch}", "batch": batch, "agent": "curl"}
    with DataFileWriter(table.path, schema) as writer:
        writer.write(pa.RecordBatch.from_pylist([row], schema=schema))
        file = writer.close()
    assert file is not None
    assert table.commit([file], writer="c0ffee", batch=batch, schema=schema)


def rows(reader: str, path: Path) -> list[tuple[str, int]]:
    """What the page's program finds."""
    assert READERS[reader].count("/lake/clicks/silver") == 1
    found: dict[str, Any] = {}
    exec(compile(READERS[reader].replace("/lake/clicks/silver", str(path)), reader, "exec"), found)
    match found["rows"]:
        case list() as read:
            return sorted(map(tuple, read))
        case pa.Table() as read:
            return sorted((row["page"], row["batch"]) for row in read.to_pylist())
        case read if "polars" in type(read).__module__:
            return sorted(read.rows())
        case read:
            return sorted(read.itertuples(index=False, name=None))


def test_page_has_a_program_for_each_reader() -> None:
    assert READERS.keys() == {"lake", "pandas", "pyarrow", "polars", "duckdb", "spark"}


@pytest.mark.parametrize("reader", ["lake", "pandas", "pyarrow", "polars", "duckdb"])
def test_reader_sees_every_row_once(reader: str, tmp_path: Path) -> None:
    pytest.importorskip("pandas" if reader == "lake" else reader, reason=f"{reader} is not installed")
    table = open_table(None, str(tmp_path / "silver"))
    for batch in range(3):
        add(table, batch)
    before = [(f"p{batch}", batch) for batch in range(3)]
    assert rows(reader, tmp_path / "silver") == before
    assert table.optimize(1 << 20).merged == 1
    assert rows(reader, tmp_path / "silver") == before
    add(table, 3, COLUMNS.insert(0, pa.field("agent", pa.string())))
    assert rows(reader, tmp_path / "silver") == [*before, ("p3", 3)]
    assert len(table.vacuum(0)) == 3
    assert rows(reader, tmp_path / "silver") == [*before, ("p3", 3)]


def test_open_table_needs_no_spark_without_a_session(tmp_path: Path) -> None:
    import subprocess

    code = (
        "import sys\nsys.modules['pyspark'] = sys.modules['py4j'] = None\n"
        f"from consumerd.spark.tables import open_table\nassert not open_table(None, {str(tmp_path)!r}).exists"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
