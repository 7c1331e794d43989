"""The local file operations on which commits rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from consumerd.base.files import SystemFiles
from consumerd.spark.tables.errors import TableCorruptError, TableOwnedError
from consumerd.spark.tables.schema import claim


def test_creates_a_name_once(tmp_path: Path) -> None:
    files = SystemFiles()
    assert files.create(str(tmp_path / "a"), b"first")
    assert not files.create(str(tmp_path / "a"), b"second")
    assert files.read(str(tmp_path / "a")) == b"first"
    files.replace(str(tmp_path / "a"), b"third")
    assert files.read(str(tmp_path / "a")) == b"third"
    assert files.read(str(tmp_path / "b")) is None
    assert [entry.name for entry in files.entries(str(tmp_path))] == ["a"]
    assert files.entries(str(tmp_path / "nowhere"), missing_ok=True) == []


@pytest.mark.parametrize("taken_by", [[], ["x"]])
def test_never_renames_a_directory_onto_or_into_another(tmp_path: Path, taken_by: list[str]) -> None:
    files = SystemFiles()
    files.make_directory(str(tmp_path / "deep/er/from"))
    (tmp_path / "deep/er/from/x").write_text("new")
    (tmp_path / "to").mkdir()
    for name in taken_by:
        (tmp_path / "to" / name).write_text("old")
    assert not files.rename_directory(str(tmp_path / "deep/er/from"), str(tmp_path / "to"))
    assert sorted(each.name for each in (tmp_path / "to").iterdir()) == taken_by
    assert files.rename_directory(str(tmp_path / "deep/er/from"), str(tmp_path / "other"))
    assert (tmp_path / "other/x").read_text() == "new"
    with pytest.raises(FileNotFoundError):
        files.rename_directory(str(tmp_path / "nowhere"), str(tmp_path / "third"))
    files.remove_tree(str(tmp_path / "other"))
    files.remove_tree(str(tmp_path / "other"))
    assert not files.exists(str(tmp_path / "other"))


def test_table_has_one_owner(tmp_path: Path) -> None:
    files = SystemFiles()
    table = str(tmp_path / "t")
    for _ in range(2):
        claim(files, table, kind="parquet", writer="one")
    with pytest.raises(TableOwnedError, match=r"another checkpoint \(one, this one is two\)"):
        claim(files, table, kind="parquet", writer="two")
    with pytest.raises(TableCorruptError, match="kind 'parquet'"):
        claim(files, table, kind="delta", writer="one")
    for broken in (b"", b"[]", b"{", b"[" * 100_000, b'{"consumerd_table": 1, "kind": "parquet", "writer": 5}'):
        (tmp_path / "t/_table.json").write_bytes(broken)
        with pytest.raises(TableCorruptError):
            claim(files, table, kind="parquet", writer="one")
