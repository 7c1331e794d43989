"""The sentence for a table of another checkpoint."""

from __future__ import annotations

import pytest

from consumerd.spark.owners import owned_tables
from consumerd.spark.spec import PipelineSpec
from consumerd.spark.tables.errors import TableOwnedError


def raised(error: TableOwnedError) -> str:
    with pytest.raises(TableOwnedError) as caught, owned_tables(PipelineSpec("p", "/lake", {}), "refine"):
        raise error
    return str(caught.value)


def test_names_the_step_and_all_its_tables_if_one_has_another_owner() -> None:
    error = TableOwnedError(
        "the table /lake/p/silver was written with another checkpoint (a, this one is b): restore that checkpoint, or "
        "move the table away to land everything again."
    )
    assert raised(error) == (
        "refine of the pipeline p: the table /lake/p/silver was written with another checkpoint (a, this one is b): "
        "restore /lake/p/_checkpoints/refine, or move /lake/p/silver and /lake/p/quarantine away and run refine again, "
        "which then writes all of it."
    )


def test_leaves_the_advice_where_another_program_appends_at_this_moment() -> None:
    sentence = "the daemon has appended to /lake/p/bronze since this step began: let one of them append at a time."
    assert raised(TableOwnedError(sentence)) == sentence
