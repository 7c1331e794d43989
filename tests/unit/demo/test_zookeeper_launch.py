from __future__ import annotations

from pathlib import Path

import pytest

from consumerd.base.java import JavaRuntime, MissingRuntimeError
from consumerd.demo.zookeeper_launch import write_zookeeper_config, zookeeper_command, zookeeper_jars
from consumerd.service.config.properties import format_properties


def test_escapes_properties_for_java() -> None:
    text = format_properties({"a.b": 1, "key with:=": " lead", "path": "C:\\é\U0001f600#", "n": "a\nb"})
    assert text == (
        "a.b=1\nkey\\ with\\:\\==\\ lead\npath=C:\\\\\\u00e9\\ud83d\\ude00\\#\nn=a\\u000ab\n"
    )  # fmt: skip
    assert text.isascii()


def test_writes_the_configuration_file(tmp_path: Path) -> None:
    path = write_zookeeper_config(
        tmp_path, 2222, tick_ms=300, servers={1: "127.0.0.1:1:2", 2: "127.0.0.1:3:4"}, my_id=2, extra={"tickTime": 400}
    )
    lines = path.read_text().splitlines()
    assert "clientPortAddress=127.0.0.1" in lines
    assert "clientPort=2222" in lines
    assert "tickTime=400" in lines  # the caller's word counts
    assert "server.2=127.0.0.1:3:4" in lines
    assert (tmp_path / "data" / "myid").read_text() == "2\n"


def test_selects_few_jars() -> None:
    pytest.importorskip("pyspark")
    jars = zookeeper_jars()
    assert len(jars) == 5
    assert all(jar.is_file() for jar in jars)
    assert sum(jar.stat().st_size for jar in jars) < 5_000_000
    command = zookeeper_command(JavaRuntime(Path("/jdk/bin/java"), 17, "PATH"), Path("/d/zoo.cfg"), jvm=["-Dx=y"])
    assert command[0] == "/jdk/bin/java"
    assert command[-2:] == ["org.apache.zookeeper.server.quorum.QuorumPeerMain", "/d/zoo.cfg"]
    assert "-Dx=y" in command
    assert "log4j" not in command[command.index("-cp") + 1]


def test_names_the_extra_if_pyspark_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingRuntimeError, match=r"consumerd\[embedded\]"):
        zookeeper_jars()
