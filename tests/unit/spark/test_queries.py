"""The words of a query's errors; tests with Spark run queries."""

from __future__ import annotations

from consumerd.spark.queries import with_tables
from consumerd.spark.spec import PipelineSpec
from consumerd.spark.tables.errors import TableOwnedError


def test_names_the_step_and_all_its_tables_if_one_has_another_owner() -> None:
    error = TableOwnedError(
        "the table /lake/p/silver was written with another checkpoint (a, this one is b): restore that checkpoint, or "
        "move the table away to land everything again."
    )
    assert str(with_tables(error, PipelineSpec("p", "/lake", {}), "refine")) == (
        "refine of the pipeline p: the table /lake/p/silver was written with another checkpoint (a, this one is b): "
        "restore /lake/p/_checkpoints/refine, or move /lake/p/silver and /lake/p/quarantine away and run refine again, "
        "which then writes all of it."
    )
