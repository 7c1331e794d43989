from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from consumerd.base.errors import ExitCode
from consumerd.cli.main import run
from consumerd.service.config.convert import _CONSUMER, _CONSUMER_V08, _OTHERS_V08
from consumerd.service.config.model import load

#: Every key that 0.7.2 reads in a consumer's file, with a value that is not its default.
CONSUMER = """\
groupid=g
consumerid=c-1
socket.timeout.ms=1500
socket.buffersize=1024
fetch.size=2048
fetcher.backoff.ms=250
autocommit.enable=false
autocommit.interval.ms=60000
queuedchunks.max=5
rebalance.retries.max=9
rebalance.backoff.ms=3000
autooffset.reset=largest
consumer.timeout.ms=100
shallowiterator.enable=true
mirror.topics.whitelist=a
mirror.topics.blacklist=b
mirror.consumer.numthreads=3
zk.connect=zk1:2181,zk2:2181/kafka
zk.sessiontimeout.ms=10000
zk.connectiontimeout.ms=20500
zk.synctime.ms=1000
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "consumer.properties"
    path.write_text(CONSUMER)
    return path


def test_converts_every_key_of_a_consumer(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "convert", str(file)]) == 0
    out, err = capsys.readouterr()
    assert tomllib.loads(out) == {
        "group": {"id": "g", "consumer_id": "c-1", "topics": {"CHANGE-ME": 1}},
        "zookeeper": {"connect": "zk1:2181,zk2:2181/kafka", "session_timeout": 10, "connection_timeout": 20.5},
        "fetch": {
            "socket_timeout": 1.5,
            "size": 2048,
            "idle_backoff": 0.25,
            "initial": "latest",
            "out_of_range": "latest",
        },
        "commit": {"interval": 60},
        "handler": {"name": "print"},
    }
    gone = [
        "socket.buffersize", "autocommit.enable", "queuedchunks.max", "rebalance.retries.max", "rebalance.backoff.ms",
        "consumer.timeout.ms", "shallowiterator.enable", "mirror.topics.whitelist", "mirror.topics.blacklist",
        "mirror.consumer.numthreads", "zk.synctime.ms",
    ]  # fmt: skip
    for key in gone:
        assert f"consumer.properties: {key} has no counterpart: " in err
        assert f"#   {key}=" in out
    assert err.count("has no counterpart") == len(gone)
    assert "topics = { CHANGE-ME = 1 } consumes nothing" in err
    path = tmp_path / "converted.toml"
    path.write_text(out)
    assert run(["check", "-c", str(path)]) == 0
    assert set(_CONSUMER) | {"autooffset.reset"} == {line.partition("=")[0] for line in CONSUMER.splitlines()}


def test_takes_topics_and_handler_from_options(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--topic", "a", "--topic", "b=3", "--handler", "null", "--group", "other"]
    assert run(["config", "convert", str(file), *arguments]) == 0
    out, err = capsys.readouterr()
    assert "CHANGE-ME" not in out + err
    path = tmp_path / "converted.toml"
    path.write_text(out)
    config = load(path)
    assert (config.group.id, config.group.topics, config.handler.name) == ("other", {"a": 1, "b": 3}, "null")
    assert run(["config", "convert", str(file), "--whitelist", "x.*"]) == 0
    assert tomllib.loads(capsys.readouterr().out)["group"]["whitelist"] == "x.*"
    assert run(["config", "convert", str(file), "--whitelist", "x", "--blacklist", "y"]) == ExitCode.CONFIG
    assert "exactly one of" in capsys.readouterr().err
    assert run(["config", "convert", str(file), "--topic", "a=b"]) == ExitCode.USAGE


@pytest.mark.parametrize(
    ("reset", "fetch"),
    [
        ("smallest", {"initial": "earliest", "out_of_range": "earliest"}),
        ("largest", {"initial": "latest", "out_of_range": "latest"}),
        ("fail", {"out_of_range": "fail"}),
    ],
)
def test_maps_autooffset_reset_to_both_keys(
    reset: str, fetch: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "c.properties"
    path.write_text(f"groupid=g\nautooffset.reset={reset}")
    assert run(["config", "convert", str(path)]) == 0
    assert tomllib.loads(capsys.readouterr().out)["fetch"] == fetch


def test_remarks_on_fixed_and_unknown_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "c.properties"
    path.write_text("groupid=g\\u00e9\nconsumer.timeout.ms=-1\nfetch.sise=5\nmy\\tkey=a\\nb\n")
    assert run(["config", "convert", str(path)]) == 0
    out, err = capsys.readouterr()
    assert tomllib.loads(out)["group"]["id"] == "g\u00e9"
    assert "consumer.timeout.ms has no counterpart: the same here" in err
    assert "fetch.sise has no counterpart: 0.7.2 does not have this key, did you mean 'fetch.size'?" in err
    assert "#   my\\tkey=a\\nb: 0.7.2 does not have this key" in out


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("groupid=g\nfetch.size=big", "fetch.size must be a positive whole number of bytes, not 'big'"),
        ("groupid=g\nfetch.size=0", "fetch.size must be a positive whole number of bytes, not '0'"),
        ("groupid=", "groupid must be a text that is not empty, not ''"),
        ("groupid=g\nzk.connect=host:port", "zk.connect: "),
        ("groupid=a/b", "cannot be the name of a znode"),
        ("consumerid=x", "no file has a groupid"),
        ("zk.connect=h:1", "give --kind"),
        ("groupid=\\u1", "four hexadecimal"),
        ("groupid=g\nzk.sessiontimeout.ms=99999999999", "session_timeout"),
    ],
)
def test_rejects_invalid_values(text: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "c.properties"
    path.write_text(text)
    assert run(["config", "convert", str(path)]) == ExitCode.CONFIG
    out, err = capsys.readouterr()
    assert out == ""
    assert sentence in err
    assert err.count("\n") == 1


PRODUCER = """\
broker.list=0:vm-1:9092
producer.type=async
compression.codec=1
batch.size=500
reconnect.interval=5
serializer.class=com.example.Encoder
quue.time=5
"""
SERVER = """\
brokerid=3
log.dir=/var/lib/kafka
zk.synctime.ms=2000
brokerids=1
zk.connect=h:1
enable.zookeeper=true
log.roll.hours=x
"""


def test_explains_producer_and_server_files(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    producer, server = tmp_path / "p.properties", tmp_path / "s.properties"
    producer.write_text(PRODUCER)
    server.write_text(SERVER)
    assert run(["config", "convert", str(file), str(producer), str(server)]) == 0
    out, err = capsys.readouterr()
    assert tomllib.loads(out)["group"]["id"] == "g"
    for line in (*PRODUCER.splitlines()[:4], *SERVER.splitlines()[:2], *SERVER.splitlines()[4:6]):
        assert f"#   {line}\n" in out
    for key, reason in {
        "reconnect.interval": "connections stay",
        "serializer.class": "Java class",
        "quue.time": "did you mean 'queue.time'",
        "zk.synctime.ms": "no part of this broker",
        "brokerids": "did you mean 'brokerid'",
        "log.roll.hours": "whole number",
    }.items():
        assert re.search(rf"properties: {re.escape(key)} has no counterpart: .*{reason}", err)
        assert re.search(rf"#   {re.escape(key)}=.*: .*{reason}", out)
    assert err.count(": p.properties: ") == 3
    assert err.count(": s.properties: ") == 3
    assert run(["config", "convert", "--kind", "server", str(server)]) == 0
    assert tomllib.loads(capsys.readouterr().out) == {}


def test_recognises_the_kind_by_the_file_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "my-producer.properties"
    path.write_text("zk.connect=h:1")
    assert run(["config", "convert", str(path)]) == 0
    assert "ProducerConfig.from_properties" in capsys.readouterr().out


PLUGIN = """
from __future__ import annotations
from typing import TYPE_CHECKING, Any
from consumerd.handlers import Secret
if TYPE_CHECKING:
    from nowhere import Unknown

class Sink:
    def __init__(self, dsn: Secret[str], cookie: Secret[str | None] = None, table: str = "t") -> None: ...
    async def handle(self, batch: Any) -> None: ...

def make(*, login: Secret[dict[str, str]], other: Unknown = None) -> Sink: ...
"""


def test_show_hides_secrets_of_handlers_and_passwords_in_texts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "show_plugin.py").write_text(PLUGIN)

    def options(name: str, text: str) -> Any:
        path = tmp_path / "c.toml"
        path.write_text(
            f'[group]\nid = "g"\ntopics = {{ t = 1 }}\n[handler]\nname = "{name}"\noptions = {{ {text} }}\n'
        )
        assert run(["config", "show", "-c", str(path), "--json"]) == 0
        out = capsys.readouterr().out
        assert "s3cr3t" not in out
        return json.loads(out)["handler"]["options"]

    hidden = "(not shown)"
    assert options("show_plugin:Sink", 'dsn = "s3cr3t", cookie = "s3cr3t", table = "x"') == {
        "dsn": hidden,
        "cookie": hidden,
        "table": "x",
    }
    assert options("show_plugin:make", 'login = { any = "s3cr3t" }') == {"login": hidden}
    assert options("forward", 'bootstrap = ["h:1"], sasl = { user = "u", anything = "s3cr3t" }')["sasl"] == hidden
    assert options("null", 'dsn = "postgresql://u:s3cr3t@h/db"') == {"dsn": f"postgresql://u:{hidden}@h/db"}
    assert options("null", 'dsn = "host=h password=s3cr3t dbname=d"') == {"dsn": f"host=h password={hidden} dbname=d"}
    assert options("null", 'inner = [{ api_key = "s3cr3t", port = 1 }]') == {"inner": [{"api_key": hidden, "port": 1}]}
    assert options("not_installed:Sink", 'dsn = "s3cr3t", port = 1') == {"dsn": hidden, "port": hidden}


def test_shows_values_and_origins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "c.toml"
    path.write_text('[group]\nid = "g"\ntopics = { t = 1 }\n[zookeeper]\nauth = ["digest:u:secret"]\n')
    with path.open("a") as file:
        file.write('[spark.pipelines.p.source]\n"kafka.sasl.username" = "u"\n"kafka.sasl.password" = "secret"\n')
    monkeypatch.setenv("CONSUMERD_FETCH__SIZE", "77")
    monkeypatch.setenv("consumerd_log", '{"level": "debug"}')
    assert run(["config", "show", "-c", str(path), "--origin"]) == 0
    out = capsys.readouterr().out
    assert 'group.topics\t{"t": 1}\tfile\n' in out
    assert "fetch.size\t77\tenvironment\n" in out
    assert 'log.level\t"debug"\tenvironment\n' in out
    assert "fetch.max_size\t67108864\tdefault\n" in out
    assert "group.whitelist\t\tdefault\n" in out
    assert "secret" not in out
    assert run(["config", "show", "-c", str(path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["fetch"]["size"], shown["zookeeper"]["auth"]) == (77, "(not shown)")
    source = {"kafka.sasl.username": "u", "kafka.sasl.password": "(not shown)"}
    assert shown["spark"]["pipelines"]["p"]["source"] == source
    assert run(["config", "show", "-c", str(path), "--json", "--origin"]) == 0
    assert json.loads(capsys.readouterr().out)["fetch"]["size"] == {"value": 77, "origin": "environment"}
    assert run(["config", "show", "-c", str(tmp_path / "none")]) == ExitCode.CONFIG


CONSUMER_V08 = """\
group.id=g
consumer.id=c-1
zookeeper.connect=zk1:2181,zk2:2181/kafka
zookeeper.session.timeout.ms=10000
zookeeper.connection.timeout.ms=20500
zookeeper.sync.time.ms=1000
client.id=app
socket.timeout.ms=1500
socket.receive.buffer.bytes=65536
fetch.message.max.bytes=2048
fetch.min.bytes=10
fetch.wait.max.ms=250
num.consumer.fetchers=2
queued.max.message.chunks=5
refresh.leader.backoff.ms=200
auto.commit.enable=false
auto.commit.interval.ms=60000
auto.offset.reset=smallest
offsets.storage=kafka
dual.commit.enabled=false
offsets.channel.backoff.ms=1000
offsets.channel.socket.timeout.ms=10000
offsets.commit.max.retries=5
partition.assignment.strategy=roundrobin
rebalance.max.retries=9
rebalance.backoff.ms=3000
consumer.timeout.ms=100
exclude.internal.topics=false
"""


def test_converts_every_key_of_an_old_consumer_since_0_8(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "consumer.properties"
    file.write_text(CONSUMER_V08)
    assert run(["config", "convert", str(file), "--topic", "t"]) == 0
    out, err = capsys.readouterr()
    assert tomllib.loads(out) == {
        "group": {"id": "g", "consumer_id": "c-1", "assignor": "roundrobin", "offsets": "kafka", "topics": {"t": 1}},
        "zookeeper": {"connect": "zk1:2181,zk2:2181/kafka", "session_timeout": 10, "connection_timeout": 20.5},
        "kafka": {"client_id": "app"},
        "fetch": {
            "socket_timeout": 1.5,
            "size": 2048,
            "min_bytes": 10,
            "max_wait": 0.25,
            "initial": "earliest",
            "out_of_range": "earliest",
        },
        "commit": {"interval": 60},
        "handler": {"name": "print"},
    }
    gone = [
        "zookeeper.sync.time.ms", "socket.receive.buffer.bytes", "num.consumer.fetchers", "queued.max.message.chunks",
        "refresh.leader.backoff.ms", "auto.commit.enable", "offsets.channel.backoff.ms",
        "offsets.channel.socket.timeout.ms", "offsets.commit.max.retries", "rebalance.max.retries",
        "rebalance.backoff.ms", "consumer.timeout.ms", "exclude.internal.topics",
    ]  # fmt: skip
    for key in gone:
        assert f"consumer.properties: {key} has no counterpart: " in err
        assert f"#   {key}=" in out
    assert err.count("has no counterpart") == len(gone)
    path = tmp_path / "converted.toml"
    path.write_text(out)
    assert run(["check", "-c", str(path)]) == 0
    assert {*_CONSUMER_V08, *_OTHERS_V08} == {line.partition("=")[0] for line in CONSUMER_V08.splitlines()}


@pytest.mark.parametrize(
    ("text", "group", "remark"),
    [
        ("offsets.storage=kafka", {"offsets": "both"}, ""),
        ("offsets.storage=kafka\ndual.commit.enabled=true", {"offsets": "both"}, ""),
        ("offsets.storage=zookeeper\ndual.commit.enabled=true", {"offsets": "zookeeper"}, "dual.commit.enabled has no"),
        ("dual.commit.enabled=false", {}, "it has no effect without offsets.storage=kafka"),
        ("exclude.internal.topics=true", {}, "exclude.internal.topics has no counterpart: the same here"),
        ("fetch.size=1", {}, "fetch.size has no counterpart: old consumers of 0.8 to 1.1 do not have this key"),
    ],
)
def test_reads_two_keys_as_one_and_remarks_on_others(
    text: str, group: dict[str, str], remark: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "c.properties"
    path.write_text(f"group.id=g\nauto.offset.reset=largest\n{text}")
    assert run(["config", "convert", str(path), "--topic", "t"]) == 0
    out, err = capsys.readouterr()
    assert tomllib.loads(out)["group"] == {"id": "g", "topics": {"t": 1}, **group}
    assert tomllib.loads(out)["fetch"] == {"initial": "latest", "out_of_range": "latest"}
    assert remark in err


def test_starts_where_an_old_consumer_starts_without_auto_offset_reset(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "c.properties"
    path.write_text("group.id=g\nzookeeper.connect=zk1:2181")
    assert run(["config", "convert", str(path), "--topic", "t"]) == 0
    out = capsys.readouterr().out
    assert tomllib.loads(out)["fetch"] == {"initial": "latest", "out_of_range": "latest"}
    assert "# auto.offset.reset=largest, the default since 0.8" in out


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("auto.offset.reset=earliest", "auto.offset.reset must be smallest or largest, not 'earliest'"),
        ("offsets.storage=disk", "offsets.storage must be zookeeper or kafka, not 'disk'"),
        ("dual.commit.enabled=yes", "dual.commit.enabled must be true or false, not 'yes'"),
        ("partition.assignment.strategy=sticky", "partition.assignment.strategy must be range or roundrobin"),
        ("zookeeper.session.timeout.ms=soon", "timeout.ms must be a positive whole number of milliseconds, not 'soon'"),
    ],
)
def test_rejects_invalid_values_of_an_old_consumer_since_0_8(
    text: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "c.properties"
    path.write_text(f"group.id=g\n{text}")
    assert run(["config", "convert", str(path)]) == ExitCode.CONFIG
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert sentence in err
