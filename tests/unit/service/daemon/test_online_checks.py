"""What `consumerd check --online` finds, line by line, and its exit code."""

from __future__ import annotations

import asyncio
import random
import resource
import socket
from pathlib import Path
from typing import Any, ClassVar

import pytest

from consumerd.base.clock import SystemClock
from consumerd.base.errors import BrokerError, ConfigError, ExitCode
from consumerd.base.settings.group import GroupSection
from consumerd.cli.main import run
from consumerd.demo.ports import free_port
from consumerd.handlers import Message
from consumerd.net.client.factory import make_client
from consumerd.net.connection import ConnectionSettings
from consumerd.net.zk.errors import MultiFailed, NoAuth
from consumerd.service.config import build_dead_letters
from consumerd.service.config.model import parse
from consumerd.service.daemon import online_checks
from consumerd.service.daemon.memory import memory_limit
from consumerd.service.daemon.online_checks import Finding, look_online
from consumerd.service.daemon.permission_checks import require_nodes
from consumerd.testing.memory_zookeeper import MemorySession, MemoryZooKeeper
from consumerd.wire.v08 import apis
from tests.faults.hostile_kafka import TOPIC, HostileKafka
from tests.unit.conftest import Cluster

UNKNOWN_MEMBER_ID, TOPIC_AUTHORIZATION_FAILED, GROUP_AUTHORIZATION_FAILED = 25, 29, 30


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


async def test_looks_at_brokers_and_topics(on_memory: MemoryZooKeeper, cluster: Cluster) -> None:
    broker = await cluster.start(0)
    on_memory.put("/brokers/ids/0", f"vm-1:127.0.0.1:{broker.port}".encode())
    on_memory.put("/brokers/topics/t/0", b"2")
    before = on_memory.dump()
    found = await looked_at()
    assert found["brokers"] == Finding("brokers", "1 of 1 can be reached (ids 0)")
    assert found["topics"] == Finding("topics", "partitions: t 2")
    assert found["handler"].said == "print: it loads; nothing else is checked"
    assert found["permissions"] == Finding("permissions", "the group g: its nodes can be written")
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


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"t": 1000, "u": 500}, None),
        ({"t": 1000, "u": 1001}, "max.message.bytes of u is 1001, and fetch.max_size 1000: larger messages are"),
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


@pytest.mark.parametrize("denied", ["/ids", "/owners/t/check", "/offsets/t/check", "/offsets/t/0-0"])
async def test_names_the_node_that_may_not_be_written_and_leaves_nothing_behind(
    denied: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    multi = MemorySession.multi

    async def guarded(session: MemorySession, operations: Any, *, session_id: int | None = None) -> None:
        for index, each in enumerate(operations):
            if denied in each.path:
                raise MultiFailed(index, NoAuth(each.path))
        await multi(session, operations, session_id=session_id)

    memory = MemoryZooKeeper()
    memory.put("/consumers/g/offsets/t/0-0", b"5")
    memory.put("/consumers/g/owners", None)
    before = memory.dump()
    async with memory.session() as session:
        assert await require_nodes(session, "g", ["t"], member=True, offsets=True) == "its nodes can be written"
        monkeypatch.setattr(MemorySession, "multi", guarded)
        with pytest.raises(NoAuth, match=f"/consumers/g{denied}") as refused:
            await require_nodes(session, "g", ["t"], member=True, offsets=True)
        assert refused.value.exit_code == ExitCode.ZOOKEEPER
        if "ids" in denied:
            await require_nodes(session, "g", ["t"], member=False, offsets=True)
    assert memory.dump() == before


async def test_says_that_permissions_in_an_old_zookeeper_cannot_be_known() -> None:
    memory = MemoryZooKeeper()
    async with memory.session() as session:
        session._lifecycle.has_multi = False
        said = await require_nodes(session, "g", ["t"], member=True, offsets=True)
    assert said == "whether its nodes can be written is unknown, because ZooKeeper before 3.4 has no multi"


class GuardedKafka(HostileKafka):
    """A broker that refuses to be read, or the group, with an error code."""

    fetch_error = heartbeat_error = 0

    async def _fetch(self, body: dict[str, Any]) -> dict[str, Any]:
        answer = await super()._fetch(body)
        if self.fetch_error:
            answer["responses"][0]["partitions"][0]["error_code"] = self.fetch_error
        return answer

    def _heartbeat(self, body: dict[str, Any]) -> dict[str, Any]:
        return {"error_code": self.heartbeat_error}

    _answers: ClassVar[Any] = HostileKafka._answers | {apis.HEARTBEAT.key: _heartbeat}


async def test_requires_read_on_topics_and_group_and_brokers_with_the_groups_protocol() -> None:
    async with GuardedKafka(random.Random(1)) as broker:
        address = ("127.0.0.1", broker.port)
        client = make_client(
            [address], ConnectionSettings(), client_id="c", tls=None, sasl=None, clock=SystemClock(),
            rng=random.Random(1),
        )  # fmt: skip
        async with client:
            brokers = online_checks._V08Cluster(client)
            broker.heartbeat_error = UNKNOWN_MEMBER_ID
            assert await brokers.permissions([TOPIC], "g") == ["Read on 1 topic", "Read on the group g"]
            broker.heartbeat_error = GROUP_AUTHORIZATION_FAILED
            assert await brokers.permissions([TOPIC], None) == ["Read on 1 topic"]
            with pytest.raises(BrokerError, match="permission Read on the group 'g'"):
                await brokers.permissions([TOPIC], "g")
            consumer = GroupSection(id="g", coordination="kafka", topics={TOPIC: 1}, protocol="consumer")
            with pytest.raises(BrokerError, match=r'ConsumerGroupHeartbeat; set group\.protocol = "classic"'):
                await brokers.group(consumer)
            broker.fetch_error = TOPIC_AUTHORIZATION_FAILED
            with pytest.raises(BrokerError, match=f"permission Read on the topic '{TOPIC}'") as refused:
                await brokers.permissions([TOPIC], "g")
            assert refused.value.exit_code == ExitCode.BROKER


async def test_compares_the_budget_and_worker_processes_with_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    handler = {"name": "tests.unit.service.daemon.test_online_checks:count", "processes": 3}
    tables = {"group": {"id": "g", "topics": {"t": 1}}, "fetch": {"budget": 100 << 20}, "handler": handler}
    config = parse(tables, "test.toml", environment=False)
    monkeypatch.setattr(online_checks, "memory_limit", lambda: (512 << 20, "the limit"))
    parts = "fetch.budget 100 MiB, 128 MiB for the process, 192 MiB for 3 worker processes"
    assert (
        await online_checks._memory(config) == f"{parts}, of 512 MiB (the limit); what the handler keeps comes on top"
    )
    monkeypatch.setattr(online_checks, "memory_limit", lambda: (419 << 20, "the limit"))
    with pytest.raises(ConfigError, match="are more than the limit, 419 MiB: raise it"):
        await online_checks._memory(config)
    monkeypatch.setattr(online_checks, "memory_limit", lambda: None)
    assert await online_checks._memory(config) == f"{parts}; this system's limit is unknown"


def count(messages: list[Message]) -> None:
    """A handler for worker processes."""


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({}, None),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}, None),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "1048576\n"}, "sys/fs/cgroup/memory.max"),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/memory.max": "1048576\n",
                "sys/fs/cgroup/a/b/memory.max": "2097152\n",
            },
            "sys/fs/cgroup/a/memory.max",
        ),
        (  # of a host, in a container
            {"proc/self/cgroup": "0::/kubepods/pod1\n", "sys/fs/cgroup/memory.max": "1048576\n"},
            "sys/fs/cgroup/memory.max",
        ),
        (
            {
                "proc/self/cgroup": "5:cpu:/\n4:memory,x:/docker/1\n",
                "sys/fs/cgroup/memory/docker/1/memory.limit_in_bytes": "1048576\n",
            },
            "sys/fs/cgroup/memory/docker/1/memory.limit_in_bytes",
        ),
    ],
)
def test_limit_of_memory_is_that_of_the_cgroup_or_of_the_machine(
    files: dict[str, str], limit: str | None, tmp_path: Path
) -> None:
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = memory_limit(tmp_path)
    if limit is None:
        assert found is None or found[1] == "the memory of the machine"
    else:
        assert found == (1 << 20, f"the limit of the cgroup, {tmp_path / limit}")


async def test_each_look_has_its_time(on_memory: MemoryZooKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    async def hangs(*_: Any, **__: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(online_checks, "start_session", hangs)
    config = parse({"group": {"id": "g", "topics": {"t": 1}}}, "test.toml", environment=False)
    monkeypatch.setattr(online_checks, "_limits", hangs)
    found = {each.subject: each async for each in look_online(config, 0.01)}
    assert [subject for subject, each in found.items() if each.error is not None] == ["zookeeper", "limits"]
    assert str(found["zookeeper"].error) == "no answer in time (1.01 s)"


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
    assert [line.split()[:2] for line in lines] == [
        ["failed", "zookeeper:"], ["ok", "memory:"], ["ok", "limits:"], ["failed", "handler:"]
    ]  # fmt: skip
    assert "Connection refused" in lines[0]


async def test_names_the_handlers_of_retry_topics(on_memory: MemoryZooKeeper, tmp_path: Path) -> None:
    handler = {"on_failure": "retry_topic", "retry_topic": "later", "dead_letter": str(tmp_path / "letters")}
    found = await looked_at(handler=handler)
    assert [subject for subject in found if subject.startswith("handler")] == [
        f"handler of {name}" for name in ("main", "retry-30s", "retry-5m", "retry-1h")
    ]


@pytest.mark.parametrize("limit", [255, 256])
async def test_wants_the_open_files_that_its_error_names(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    found = (await looked_at())["limits"]
    few = ConfigError("only 255 open files are allowed (ulimit -n, LimitNOFILE): raise it to 256")
    assert (found.said, str(found.error)) == (("256 open files", "None") if limit == 256 else ("", str(few)))
