"""The local file operations on which commits rest."""

from __future__ import annotations

from pathlib import Path

from consumerd.base.files import SystemFiles


def test_creates_a_name_once_and_removes_a_tree(tmp_path: Path) -> None:
    files = SystemFiles()
    assert files.create(str(tmp_path / "a"), b"first")
    assert not files.create(str(tmp_path / "a"), b"second")
    assert files.read(str(tmp_path / "a")) == b"first"
    files.replace(str(tmp_path / "a"), b"third")
    assert files.read(str(tmp_path / "a")) == b"third"
    assert files.read(str(tmp_path / "b")) is None
    assert [entry.name for entry in files.entries(str(tmp_path))] == ["a"]
    assert files.entries(str(tmp_path / "nowhere"), missing_ok=True) == []
    files.make_directory(str(tmp_path / "deep/er"))
    (tmp_path / "deep/er/x").write_text("text")
    files.remove_tree(str(tmp_path / "deep"))
    files.remove_tree(str(tmp_path / "deep"))
    assert not files.exists(str(tmp_path / "deep"))
