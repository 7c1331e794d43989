"""Which tables a step writes, and the sentence for one of them that belongs to another checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from consumerd.spark.tables.errors import TableOwnedError

if TYPE_CHECKING:
    from consumerd.spark.spec import PipelineSpec

#: The tables that a step writes.
STEP_TABLES: Final = {"land": ("bronze",), "refine": ("silver", "quarantine"), "aggregate": ("aggregate",)}


@contextmanager
def owned_tables(pipeline: PipelineSpec, step: str) -> Iterator[None]:
    """Raise the TableOwnedError of one table with the step that writes it and all its tables: they go together."""
    try:
        yield
    except TableOwnedError as error:
        found, says_restore, _ = str(error).partition(": restore ")
        if not says_restore:
            raise  # another writer appends to the table at this moment
        tables = " and ".join(str(getattr(pipeline, name)) for name in STEP_TABLES.get(step, ()))
        raise TableOwnedError(
            f"{step} of the pipeline {pipeline.name}: {found}: restore {pipeline.checkpoint(step)}, or move {tables} "
            f"away and run {step} again, which then writes all of it."
        ) from error
