from __future__ import annotations

from pathlib import Path

from tests.support.kafka_storage import PreparedFolders, new_kraft_id

TOLD = "#\n#Sun Nov 22 00:10:23 UTC 2026\nnode.id=1\ndirectory.id={folder}\nversion=1\ncluster.id={cluster}\n"


def test_formats_storage_like_the_tool_under_other_names(tmp_path: Path) -> None:
    first, second, cluster = tmp_path / "first", tmp_path / "second", new_kraft_id()
    first.mkdir()
    (first / "meta.properties").write_text(TOLD.format(folder=new_kraft_id(), cluster=new_kraft_id()))
    (first / "bootstrap.checkpoint").write_bytes(b"\x00features\xff")
    prepared = PreparedFolders()
    assert not prepared.write("3.9.1", second, node_id=7, cluster_id=cluster)
    assert not second.exists()
    prepared.keep("3.9.1", first)
    assert not prepared.write("4.1.0", second, node_id=7, cluster_id=cluster)
    assert prepared.write("3.9.1", second, node_id=7, cluster_id=cluster)
    assert {path.name for path in second.iterdir()} == {"meta.properties", "bootstrap.checkpoint"}
    assert (second / "bootstrap.checkpoint").read_bytes() == b"\x00features\xff"
    (folder,) = [line for line in (second / "meta.properties").read_text().splitlines() if line.startswith("directory")]
    assert folder not in (first / "meta.properties").read_text()
    own = folder.partition("=")[2]
    assert (second / "meta.properties").read_text() == TOLD.format(folder=own, cluster=cluster).replace(
        "=1\nd", "=7\nd"
    )


def test_does_not_keep_a_folder_with_unknown_files(tmp_path: Path) -> None:
    for name in ("meta.properties", "bootstrap.checkpoint", "000-000.checkpoint"):
        (tmp_path / name).write_text("node.id=1\n")
    prepared = PreparedFolders()
    prepared.keep("4.1.0", tmp_path)
    assert not prepared.write("4.1.0", tmp_path / "other", node_id=2, cluster_id="c")
