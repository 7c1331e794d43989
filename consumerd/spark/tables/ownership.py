"""Whose table it is: the id of the one checkpoint whose batch numbers the table's batches have.

Strategy: `_table.json` is made once, whole or not at all, by the first write and never changed. Batch numbers say which
rows were written only together with the checkpoint that counted them: with another one, batch 0 would be taken for
written and its rows lost without a word. Therefore a table without batches is not taken over either, since its owner
may be about to commit the first.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from consumerd.spark.tables.errors import TableCorruptError, TableOwnedError

if TYPE_CHECKING:
    from consumerd.spark.tables.files import Files

FILE: Final = "_table.json"
_VERSION: Final = 1


def claim(files: Files, table: str, *, kind: str, writer: str) -> None:
    """Make `writer` the owner of the table, or see that it is. Raises TableOwnedError, TableCorruptError."""
    path = f"{table}/{FILE}"
    data = files.read(path)
    if data is None:
        files.make_folder(table)
        text = json.dumps({"consumerd_table": _VERSION, "kind": kind, "writer": writer}) + "\n"
        if files.create(path, text.encode()):
            return
        data = files.read(path) or b""
    owner = owner_of(data, path, kind)
    if owner != writer:
        raise TableOwnedError(
            f"the table {table} was written with another checkpoint ({owner}, this one is {writer}): restore that "
            "checkpoint, or move the table away to land everything again."
        )


def owner_of(data: bytes, path: str, kind: str) -> str:
    """The owner that the file names. Raises TableCorruptError."""
    try:
        found = json.loads(data)
        version, found_kind, writer = found["consumerd_table"], found["kind"], found["writer"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise TableCorruptError(f"{path} does not describe a table ({error}): restore it from a backup.") from None
    if version != _VERSION or found_kind != kind or not isinstance(writer, str):
        raise TableCorruptError(
            f"{path} describes a table of kind {found_kind!r}, version {version!r}, not {kind!r}, version {_VERSION}: "
            "read it with the release and the format that wrote it."
        )
    return writer
