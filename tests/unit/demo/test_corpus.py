from __future__ import annotations

import os
from pathlib import Path

import pytest

from consumerd.demo.corpus import Corpus, Measure, measure, named_corpus, standard_library
from consumerd.demo.errors import DemoInputError


def test_reads_any_bytes_as_lines(tmp_path: Path) -> None:
    lines = [
        b"plain",
        b"",
        b"\xff\xfe not text\r",
        b"x" * 300_000,
        b"",
        "\u2028 is no line end".encode(),
        b"no newline",
    ]
    (tmp_path / "input").write_bytes(b"\n".join(lines))
    corpus = named_corpus(tmp_path / "input")
    assert list(corpus.lines()) == lines
    assert list(corpus.lines()) == lines  # again and again
    assert measure(corpus) == Measure(7, sum(map(len, lines)), 300_000)


def test_reads_regular_files_of_a_folder_in_order(tmp_path: Path) -> None:
    for name in ("b/2", "a/1", "c", "b/1", ".hidden", "empty"):
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("" if name == "empty" else f"{name}\n")
    os.mkfifo(tmp_path / "in" / "fifo")
    (tmp_path / "in" / "dangling").symlink_to("nowhere")
    (tmp_path / "in" / "circle").symlink_to(tmp_path / "in")
    (tmp_path / "in" / "link").symlink_to(tmp_path / "in" / "c")
    assert list(named_corpus(tmp_path / "in").lines()) == [b".hidden", b"c", b"c", b"a/1", b"b/1", b"b/2"]


def test_reports_an_unreadable_input(tmp_path: Path) -> None:
    with pytest.raises(DemoInputError, match="does not exist"):
        named_corpus(tmp_path / "no")
    with pytest.raises(DemoInputError, match="neither a file nor a folder"):
        named_corpus(type(tmp_path)("/dev/null"))
    (tmp_path / "empty").touch()
    with pytest.raises(DemoInputError, match="holds no lines"):
        measure(named_corpus(tmp_path / "empty"))
    with pytest.raises(DemoInputError, match=r"gone cannot be read: No such file"):
        list(Corpus((tmp_path / "gone",), "x").lines())


def test_limits_lines_and_bytes(tmp_path: Path) -> None:
    (tmp_path / "input").write_bytes(b"aa\nbb\ncc\n")
    files = (tmp_path / "input", tmp_path / "input")
    assert list(Corpus(files, "x", max_lines=4).lines()) == [b"aa", b"bb", b"cc", b"aa"]
    assert list(Corpus(files, "x", max_bytes=5).lines()) == [b"aa", b"bb"]
    assert list(Corpus(files, "x", max_lines=0).lines()) == []


def test_standard_library_is_enough_for_a_demo() -> None:
    corpus = standard_library(max_lines=20_000)
    found = measure(corpus)
    assert found.lines == 20_000
    assert found.bytes > 300_000
    assert b"" in list(corpus.lines())
