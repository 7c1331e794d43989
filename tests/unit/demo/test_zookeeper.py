from __future__ import annotations

from pathlib import Path

import pytest

from consumerd.base.java import JavaRuntime, MissingRuntimeError
from consumerd.demo.children import Child
from consumerd.demo.zookeeper import zookeeper_jars
from consumerd.service.config.properties import format_properties
from tests.support.zookeeper_servers import ConfiguredZooKeeper


def test_escapes_properties_for_java() -> None:
    text = format_properties({"a.b": 1, "key with:=": " lead", "path": "C:\\é\U0001f600#", "n": "a\nb"})
    assert text == (
        "a.b=1\nkey\\ with\\:\\==\\ lead\npath=C:\\\\\\u00e9\\ud83d\\ude00\\#\nn=a\\u000ab\n"
    )  # fmt: skip
    assert text.isascii()


async def test_starts_a_server_with_its_configuration_file_and_few_jars(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyspark")
    started: list[list[str]] = []
    monkeypatch.setattr(Child, "start", lambda child: started.append(child.argv))
    java = JavaRuntime(Path("/jdk/bin/java"), 17, "PATH")
    quorum = {1: "127.0.0.1:1:2", 2: "127.0.0.1:3:4"}
    server = ConfiguredZooKeeper(
        tmp_path, 2222, tick_ms=300, servers=quorum, my_id=2, config={"tickTime": 400}, jvm=["-Dx=y"], java=java
    )
    await server.launch()
    lines = (tmp_path / "zoo.cfg").read_text().splitlines()
    assert "clientPortAddress=127.0.0.1" in lines
    assert "clientPort=2222" in lines
    assert "tickTime=400" in lines  # the caller's word counts
    assert "server.2=127.0.0.1:3:4" in lines
    assert (tmp_path / "data" / "myid").read_text() == "2\n"
    (command,) = started
    assert command[0] == "/jdk/bin/java"
    assert command[-2:] == ["org.apache.zookeeper.server.quorum.QuorumPeerMain", str(tmp_path / "zoo.cfg")]
    assert "-Dx=y" in command
    assert "log4j" not in command[command.index("-cp") + 1]
    jars = zookeeper_jars()
    assert len(jars) == 5
    assert all(jar.is_file() for jar in jars)
    assert sum(jar.stat().st_size for jar in jars) < 5_000_000


def test_names_the_extra_if_pyspark_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingRuntimeError, match=r"consumerd\[embedded\]"):
        zookeeper_jars()
