"""What `consumerd check --online` finds, line by line, and its exit code."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any

import pytest

from consumerd.cli.main import run
from consumerd.config import build_dead_letters
from consumerd.config.model import parse
from consumerd.daemon import online_checks
from consumerd.daemon.online_checks import Finding, look_online
from consumerd.embedded import free_port
from consumerd.errors import BrokerError, ExitCode
from consumerd.testing.memory_zookeeper import MemoryZooKeeper

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.conftest import Cluster


async def looked_at(**tables: Any) -> dict[str, Finding]:
    document = {"group": {"id": "g", "topics": {"t": 1}}, **tables}
    config = parse(document, "test.toml", environment=False)
    return {found.subject: found async for found in look_online(config, 5.0)}


@pytest.fixture
def on_memory(monkeypatch: pytest.MonkeyPatch) -> MemoryZooKeeper:
    """A ZooKeeper in memory in place of the configured one."""
    memory = MemoryZooKeeper()

    async def start(session: Any, *_: Any, **__: Any) -> None:
        await session.start()

    monkeypatch.setattr(online_checks, "build_session", lambda *_, **__: memory.session())
    monkeypatch.setattr(online_checks, "start_session", start)
    return memory


@pytest.mark.asyncio
async def test_looks_at_brokers_and_topics(on_memory: MemoryZooKeeper, cluster: Cluster) -> None:
    broker = await cluster.start(0)
    on_memory.put("/brokers/ids/0", f"vm-1:127.0.0.1:{broker.port}".encode())
    on_memory.put("/brokers/topics/t/0", b"2")
    before = on_memory.dump()
    found = await looked_at()
    assert found["brokers"] == Finding("brokers", "1 of 1 can be reached (ids 0)")
    assert found["topics"] == Finding("topics", "partitions: t 2")
    assert found["handler"].said == "print: it loads; nothing else is checked"
    assert on_memory.dump() == before

    on_memory.put("/brokers/ids/1", f"vm-1:127.0.0.1:{free_port()}".encode())
    found = await looked_at()
    assert "1 of 2 can be reached: cannot connect to broker 127.0.0.1" in str(found["brokers"].error)
    assert "topics" not in found
    on_memory.remove("/brokers/ids/1")
    missing = (await looked_at(group={"id": "g", "topics": {"t": 1, "nope": 1}}))["topics"].error
    assert missing is not None
    assert (missing.exit_code, str(missing)[:34]) == (ExitCode.NOT_FOUND, "no broker has registered nope; see")
    assert (await looked_at(group={"id": "g", "whitelist": "x.*"}))["topics"].error is not None
    assert (await looked_at(group={"id": "g", "whitelist": "t.*"}))["topics"].said.endswith("matches 1, such as t")
    on_memory.remove("/brokers/ids/0")
    assert "no broker is registered" in str((await looked_at())["brokers"].error)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("told", "said"),
    [
        (None, "partitions: dead 1"),
        ("messages of t may be larger", "partitions: dead 1; messages of t may be larger"),
        (BrokerError("denied"), "partitions: dead 1; its limit is unknown: denied"),
    ],
)
async def test_compares_the_limit_of_the_topic_for_dead_letters(
    monkeypatch: pytest.MonkeyPatch, told: str | BrokerError | None, said: str
) -> None:
    class Brokers(online_checks._V08Cluster):
        async def require(self, topics: Any) -> str:
            return f"partitions: {', '.join(topics)} 1"

    async def compare(client: Any, config: Any, topic: str) -> str | None:
        assert (client, topic) == ("a client", "dead")
        if isinstance(told, BrokerError):
            raise told
        return told

    monkeypatch.setattr(build_dead_letters, "compare_limits", compare)
    config = parse({"group": {"id": "g", "topics": {"t": 1}}}, "test.toml", environment=False)
    brokers: Any = Brokers("a client")  # type: ignore[arg-type]
    assert await brokers.letters(config, "dead") == said


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"t": 1000, "u": 500}, None),
        ({"t": 1000, "u": 1001}, "max.message.bytes of u is 1001, and fetch.max_size 1000: raise it, or larger"),
        ({}, None),
        (BrokerError("denied"), None),
    ],
)
async def test_compares_the_limits_of_topics_with_that_of_fetching(
    monkeypatch: pytest.MonkeyPatch, limits: dict[str, int] | BrokerError, said: str | None
) -> None:
    async def told(client: Any, topics: Any) -> dict[str, int]:
        assert list(topics) == ["t", "u"]
        if isinstance(limits, BrokerError):
            raise limits
        return limits

    monkeypatch.setattr(online_checks, "message_limits", told)
    found = await online_checks._V08Cluster("a client").larger_than(1000, ["t", "u"])  # type: ignore[arg-type]
    assert (found is None) if said is None else (found or "").startswith(said)


@pytest.mark.asyncio
async def test_each_look_has_its_time(on_memory: MemoryZooKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    async def hangs(*_: Any, **__: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(online_checks, "start_session", hangs)
    config = parse({"group": {"id": "g", "topics": {"t": 1}}}, "test.toml", environment=False)
    monkeypatch.setattr(online_checks, "_limits", hangs)
    found = {each.subject: each async for each in look_online(config, 0.01)}
    assert [subject for subject, each in found.items() if each.error is not None] == ["zookeeper", "limits"]
    assert str(found["zookeeper"].error) == "no answer in time (1.01 s)"


@pytest.mark.asyncio
async def test_looks_at_what_the_handler_needs(on_memory: MemoryZooKeeper, tmp_path: Path) -> None:
    async def handler(name: str, **options: Any) -> Finding:
        return (await looked_at(handler={"name": name, "options": options}))["handler"]

    program = tmp_path / "program"
    program.write_text("")
    assert "cannot start './program'" in str((await handler("exec", command=["./program"], cwd=str(tmp_path))).error)
    program.chmod(0o755)
    found = await handler("exec", command=["./program"], cwd=str(tmp_path))
    assert (found.error, found.said) == (None, f"exec: {program} can be executed")
    assert "is not a directory" in str((await handler("exec", command=["cat"], cwd=str(program))).error)
    for name in ("files", "parquet"):
        assert f"{program} is not a directory" in str((await handler(name, directory=str(program / "x"))).error)
        found = await handler(name, directory=str(tmp_path / "new" / "folder"))
        assert found.error is None
        assert f"will be made in {tmp_path}" in found.said
    assert not (tmp_path / "new").exists()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        assert (await handler("http", url=f"http://127.0.0.1:{port}/in")).said.endswith("accepts connections")
    refused = (await handler("http", url=f"http://127.0.0.1:{port}/in?token=secret")).error
    assert refused is not None
    assert str(refused) == f"cannot connect to http://127.0.0.1:{port}/in: Connection refused; check options.url."
    assert refused.exit_code == ExitCode.HANDLER_FAILED


def test_prints_a_line_for_each_and_ends_with_the_code_of_the_first_that_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "c.toml"
    path.write_text(
        '[group]\nid = "g"\ntopics = { t = 1 }\n[zookeeper]\nconnect = "127.0.0.1:1/kafka"\n'
        '[handler]\nname = "exec"\noptions = { command = ["/nonexistent/program"] }\n'
    )
    with pytest.raises(SystemExit) as ended:
        run(["check", "-c", str(path), "--online", "--timeout", "0.2"])
    assert ended.value.code == ExitCode.ZOOKEEPER
    valid, *lines = capsys.readouterr().out.splitlines()
    assert valid.startswith(f"{path} is valid")
    assert [line.split()[:2] for line in lines] == [["failed", "zookeeper:"], ["ok", "limits:"], ["failed", "handler:"]]
    assert "Connection refused" in lines[0]
