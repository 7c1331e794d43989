"""Everything that has brokers of Kafka at its other end, with a real broker that has SASL_SSL alone: as users run it.

Strategy: the real command line and configuration files, passwords in a file or in the environment. One broker sees a
whole life: topics, messages, groups, the move from a 0.7 log of ours, a daemon that forwards. Then everything that can
be wrong with the authentication is wrong once. Whatever is printed, logged or stored is searched for the password.
"""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest
import structlog
from kazoo.client import KazooClient

from consumerd import ConsumerConfig, ConsumerConnector, Plain, ProducerConfig, Scram, open_producer
from consumerd.base.errors import BrokerError, ExitCode
from consumerd.base.java import JavaRuntime, MissingRuntimeError
from consumerd.base.ports import SaslMechanism
from consumerd.cli.main import run
from consumerd.demo.ports import free_port
from consumerd.demo.processes import (
    BrokerProcess,
    DaemonProcess,
    clean_environment,
    consumerd_command,
    format_toml,
)
from consumerd.spark.source.errors import BrokerRejectedError
from consumerd.spark.source.filters import Pruning
from consumerd.spark.source.options import read_options
from consumerd.spark.source.planning import plan_batch
from consumerd.spark.source.request import ReadRequest
from consumerd.spark.source.v08.reading import read_v08_split
from tests.interop.secure_brokers import MECHANISMS, PASSWORD, USER, SecureBroker, make_certificates
from tests.support.commands import Done
from tests.support.kafka import RELEASES, KafkaRelease, kafka_jars

pytestmark = [pytest.mark.interop, pytest.mark.zookeeper, pytest.mark.timeout(900)]
EVERYDAY = "3.9.1"
OLD, LIBRARY = "events", "library"
LINES = [b"line %d" % number for number in range(60)]
WRONG_PASSWORD = "wr0ng-s3cr3t"
BY_ENVIRONMENT = {"CONSUMERD_KAFKA__SASL__PASSWORD": PASSWORD}


class Site:
    """The broker, the files of its users, and the commands that are run on them in `directory`."""

    def __init__(self, directory: Path, broker: SecureBroker, capsys: pytest.CaptureFixture[str]) -> None:
        self.directory = directory
        self.broker = broker
        self._capsys = capsys
        for name, text in (("password", PASSWORD), ("wrong", WRONG_PASSWORD)):
            (directory / name).write_text(f"{text}\n")

    def kafka(
        self,
        mechanism: str = "SCRAM-SHA-512",
        *,
        password: str | None = "password",
        authority: Path | None = None,
        tls: bool = True,
        address: str | None = None,
    ) -> dict[str, Any]:
        """A table `[kafka]`; `password`: the name of its file, None where the environment has it."""
        sasl = {"mechanism": mechanism, "user": USER}
        if password is not None:
            sasl["password_file"] = str(self.directory / password)
        ca = {"ca": str(authority or self.broker.certificates.authority)}
        address = address or self.broker.address
        return {"bootstrap": [address], "connection_timeout": 30, "sasl": sasl} | ({"tls": ca} if tls else {})

    def daemon(self, name: str, kafka: dict[str, Any], handler: dict[str, Any]) -> DaemonProcess:
        """A daemon of the group `name`, coordinated by the broker, on the topic that was moved."""
        group = {"id": name, "coordination": "kafka", "topics": {OLD: 1}}
        return DaemonProcess(self.directory / name, {"group": group, "kafka": kafka, "handler": handler}, name=name)

    def config(
        self, name: str, kafka: dict[str, Any], *, group: str = "tools", topic: str = OLD, **tables: dict[str, Any]
    ) -> tuple[str, str]:
        """A file, as `-c FILE`."""
        path = self.directory / f"{name}.toml"
        tables |= {"group": {"id": group, "coordination": "kafka", "topics": {topic: 1}}, "kafka": kafka}
        path.write_text(format_toml(tables))
        return "-c", str(path)

    async def tool(self, *arguments: str, environ: dict[str, str] | None = None) -> Done:
        """A command in this process."""
        self._capsys.readouterr()
        with pytest.MonkeyPatch.context() as patch:
            for name, value in (environ or {}).items():
                patch.setenv(name, value)
            patch.chdir(self.directory)
            code = await asyncio.to_thread(run, arguments)
        structlog.reset_defaults()
        return self._seen(arguments, Done(code, *self._capsys.readouterr()))

    async def process(self, *arguments: str, stdin: bytes = b"", environ: dict[str, str] | None = None) -> Done:
        """A command of its own, which reads lines or handles signals."""
        done = await asyncio.to_thread(
            subprocess.run, consumerd_command(*arguments), input=stdin, capture_output=True, timeout=120, check=False,
            env=clean_environment() | (environ or {}), cwd=self.directory,
        )  # fmt: skip
        return self._seen(arguments, Done(done.returncode, done.stdout.decode(), done.stderr.decode()))

    async def well(self, *arguments: str, environ: dict[str, str] | None = None, stdin: bytes | None = None) -> Done:
        """A command that goes well: in this process, or with `stdin` in one of its own."""
        if stdin is None:
            done = await self.tool(*arguments, environ=environ)
        else:
            done = await self.process(*arguments, environ=environ, stdin=stdin)
        assert done.code == 0, (arguments, done)
        return done

    def _seen(self, arguments: tuple[str, ...], done: Done) -> Done:
        assert "Traceback" not in done.err, done
        for secret in (PASSWORD, WRONG_PASSWORD):
            assert secret not in done.out + done.err, arguments
            assert secret not in "".join(arguments)
        return done


@pytest.fixture
def site(
    broker_java: Callable[[KafkaRelease], JavaRuntime],
    zk: KazooClient,
    zk_root: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    missing: Callable[[str], NoReturn],
) -> Iterator[Any]:
    """Starts a broker of a version, and is its site."""
    brokers: list[SecureBroker] = []

    async def start(version: str) -> Site:
        release = RELEASES[version]
        try:
            jars = kafka_jars(release)
        except MissingRuntimeError as error:
            missing(str(error))
        certificates = make_certificates(tmp_path / "tls")
        zk.ensure_path("/new")
        zookeeper = None if release.kraft else f"{zk_root}/new"
        broker = SecureBroker(
            tmp_path / "kafka", release, zookeeper, java=broker_java(release), jars=jars, broker_id=1,
            certificates=certificates,
        )  # fmt: skip
        brokers.append(broker)
        await broker.start()
        return Site(tmp_path, broker, capsys)

    yield start
    for broker in brokers:
        broker.kill()


@pytest.mark.parametrize(
    "version",
    [EVERYDAY, *(pytest.param(name, marks=pytest.mark.long) for name in ("0.10.2.2", "1.1.1", "2.8.2", "4.1.0"))],
)
async def test_all_commands_work_over_sasl_ssl(version: str, site: Any, zk_root: str, tmp_path: Path) -> None:
    old_at = f"{zk_root}/old"
    async with BrokerProcess(tmp_path / "old", old_at, partitions=2) as old:
        here, _ = await asyncio.gather(site(version), fill(old))
        number = RELEASES[version].number
        async with asyncio.TaskGroup() as group:
            if version == EVERYDAY:
                group.create_task(_targets_that_do_not_let_us_in(here))
            await _life(here, old_at, headers=number >= (0, 11), deletes=number >= (1, 1))
            if version == EVERYDAY:
                await _what_is_wrong(here, old_at)
    here.broker.kill()
    written = [
        path
        for path in tmp_path.rglob("*")
        if path.is_file() and path.parent.name != "kafka" and path.name != "password"
    ]
    assert written
    for path in written:
        assert PASSWORD.encode() not in path.read_bytes(), path


async def fill(old: BrokerProcess) -> None:
    """`LINES` to the old topic, of which the group `app` gets twenty."""
    at = ("--zookeeper", str(old.zookeeper), "--topic", OLD)
    lines = b"".join(line + b"\n" for line in LINES)
    for command in (("produce", *at, "--verify"), ("consume", *at, "--group", "app", "--max-messages", "20")):
        await asyncio.to_thread(
            subprocess.run, consumerd_command(*command), input=lines, capture_output=True, timeout=120, check=True,
            env=clean_environment(),
        )  # fmt: skip


async def _life(site: Site, old_at: str, *, headers: bool, deletes: bool) -> None:
    """From the first topic to the last, with each mechanism, by file and by environment."""
    scram = site.config("scram", site.kafka())
    other = site.config("other", site.kafka("SCRAM-SHA-256"))
    plain = site.config("plain", site.kafka("PLAIN", password=None))
    environ = BY_ENVIRONMENT
    bootstrap = ("--bootstrap-server", site.broker.address)

    # Topics.
    shape = ("--partitions", "3", "--replication-factor", "1")
    for topic, place in ((OLD, scram), ("lines", other), (LIBRARY, other)):
        await site.well("topics", "create", *place, "--topic", topic, *shape, "--timeout", "30")
    listed = (await site.well("topics", "list", *plain, environ=environ)).out.splitlines()
    assert {f"{OLD}\t3\t1\t0", "lines\t3\t1\t0"} <= set(listed)

    # Lines in and out: without a group, with one, and what the tools say of it.
    await site.well("produce", *scram, "--topic", "lines", stdin=b"".join(line + b"\n" for line in LINES))
    read = ("--topic", "lines", "--exit-at-end", "--timeout", "30")
    at_once = await asyncio.gather(
        site.well("consume", *plain, *read, stdin=b"", environ=environ),
        site.well("consume", *other, *bootstrap, *read, "--group", "look", stdin=b""),
    )
    for done in at_once:
        assert sorted(done.out.encode().splitlines()) == sorted(LINES)
    described = (await site.well("topics", "describe", *other, "--topic", "lines", "--json")).json
    assert sum(each["messages"] for each in described["topics"]["lines"]["partitions"].values()) == len(LINES)
    assert [*described["brokers"].values()] == [site.broker.address]
    look = ("--group", "look")
    lag = (await site.well("group", "lag", *scram, *look, "--json")).json
    assert (lag["total"], len(lag["partitions"])) == (0, 3)
    found = (await site.well("group", "doctor", *plain, *look, "--interval", "0", environ=environ)).out
    assert [line.split("\t")[1] for line in found.splitlines()] == ["no-members"]
    await site.well("offsets", "reset", *scram, *look, "--to", "earliest", "--execute")
    got = (await site.well("offsets", "get", *other, *look)).out.splitlines()
    assert [line.split("\t")[1] for line in got] == ["0"] * 3
    if deletes:
        await site.well("group", "delete", *scram, *look, "--execute")

    # Spark's tasks read the same, here without Spark.
    for mechanism in MECHANISMS:
        assert sorted(await asyncio.to_thread(_read_by_spark, site, mechanism)) == sorted(LINES)

    await _by_the_library(site)

    # If the command reads ZooKeeper, the error names the listener.
    if site.broker.zookeeper is not None:
        by = (
            "--zookeeper",
            site.broker.zookeeper,
            *site.config("found", site.kafka("SCRAM-SHA-256") | {"bootstrap": None}),
        )
        described = (await site.well("topics", "describe", *by, "--topic", "lines", "--json")).json
        assert sum(each["messages"] for each in described["topics"]["lines"]["partitions"].values()) == len(LINES)
        await site.well("produce", *by, "--topic", OLD, stdin=b"")
        there = await site.well("consume", *by, "--group", "old", "--topic", "lines", "--exit-at-end", stdin=b"")
        assert sorted(there.out.encode().splitlines()) == sorted(LINES)

    # The messages of the old cluster arrive, and the old group continues after those that it got.
    target = ("--to-bootstrap-server", site.broker.address, "--to-config", plain[1])
    to = (*target, "--from-zookeeper", old_at)
    without = () if headers else ("--no-headers",)
    await site.well(
        "mirror", *to, "--group", "leave", "--topic", OLD, "--exit-at-end", *without, stdin=b"", environ=environ
    )
    if headers:
        verified = (await site.well("migrate", "verify", *to, "--topic", OLD, "--json", environ=environ)).json
        assert (verified["clean"], verified["totals"]["there"]) == (True, len(LINES))
        moved = ("migrate", "offsets", *to, "--group", "app", "--to-group", "app", "--execute", "--json")
        move = (await site.well(*moved, environ=environ)).json
        assert move["executed"]
        assert sum(each["lag"] for each in move["moves"]) == len(LINES) - 20
        assert (await site.well("group", "lag", *scram, "--group", "app", "--json")).json["total"] == len(LINES) - 20

    # A daemon whose handler forwards to the same brokers under another name.
    sasl = {"mechanism": "SCRAM-SHA-256", "user": USER, "password_file": str(site.directory / "password")}
    tls = {"ca": str(site.broker.certificates.authority)}
    options = {"bootstrap": [site.broker.address], "topic": "copy.{topic}", "partitions": 3, "replication_factor": 1,
               "headers": headers, "sasl": sasl, "tls": tls}  # fmt: skip
    daemon = site.daemon("daemon", site.kafka(), {"name": "forward", "options": options})
    async with daemon:
        group = ("--group", "daemon")
        async with asyncio.timeout(90):
            while not await _copied(site, scram):
                await asyncio.sleep(0.2)
        described = (await site.well("group", "describe", *scram, *group, "--json")).json
        assert len(described["members"]) == 1
        assert (await site.well("group", "doctor", *other, *group, "--interval", "0")).out == ""
        checked = await site.well("--debug", "check", "-c", str(daemon.config_path))
        assert "handler forward" in checked.out
        shown = (await site.well("config", "show", "-c", str(daemon.config_path), "--json")).json
        assert shown["kafka"]["sasl"]["password"] in (None, "(not shown)")
        daemon.terminate()
        assert await daemon.wait(60) == 0
    assert {group for (group,) in map(str.split, (await site.well("group", "list", *scram)).out.splitlines())} >= {
        "daemon"
    }

    # The mirror, from these brokers to themselves, and what it made is as it was. The environment is for all files.
    source = site.config("source", site.kafka(), group="again", topic="lines")
    target = (*target[:2], "--to-config", site.config("plain-file", site.kafka("PLAIN"))[1])
    again = ("mirror", *source, *target, "--rename", "lines=again", "--partitions", "3", "--replication-factor", "1")
    await site.well(*again, "--exit-at-end", *without, stdin=b"")
    if headers:
        sides = ("--from-bootstrap-server", site.broker.address, "--from-config", scram[1], *target)
        same = ("--topic", "lines", "--rename", "lines=again", "--json")
        verified = (await site.well("migrate", "verify", *sides, *same)).json
        assert (verified["clean"], verified["totals"]["there"]) == (True, len(LINES))
    await site.well("topics", "delete", *scram, "--topic", "again", "--execute", "--timeout", "60")


async def _by_the_library(site: Site) -> None:
    """Producers and consumers of the library by TLS, with each mechanism, and led to the listener by ZooKeeper."""
    bootstrap: dict[str, Any] = {"bootstrap": [site.broker.address]}
    trusting = await asyncio.to_thread(ssl.create_default_context, cafile=site.broker.certificates.authority)
    ways: list[tuple[dict[str, Any], Callable[[], SaslMechanism]]] = [(bootstrap, partial(Plain, USER, PASSWORD))]
    ways += [(bootstrap, partial(Scram, mechanism, USER, PASSWORD)) for mechanism in MECHANISMS[1:]]
    if site.broker.zookeeper is not None:
        ways.append(({"zookeeper": site.broker.zookeeper}, ways[0][1]))
    for number, (where, sasl) in enumerate(ways):
        known: dict[str, Any] = {**where, "broker_tls": trusting, "sasl": sasl}
        async with open_producer(ProducerConfig(**known)) as producer:
            await producer.send(LIBRARY, [b"%d" % number], key=b"%d" % number)
        found: list[Any] = []
        config = ConsumerConfig(group=f"library-{number}", connection_timeout=30.0, **known)
        async with ConsumerConnector(config) as connector, asyncio.timeout(60):
            (stream,) = (await connector.create_message_streams({LIBRARY: 1}))[LIBRARY]
            while len(found) <= number:
                found.append((await anext(stream)).payload)
                stream.ack()
            await connector.commit_offsets()
            assert sum((await connector.committed()).values()) == number + 1
        assert sorted(found) == [b"%d" % each for each in range(number + 1)]

    # An untrusted server, and a client or server without TLS, is reported in one sentence.
    strange = await asyncio.to_thread(ssl.create_default_context, cafile=site.broker.certificates.stranger)
    for tls, words in ((strange, "certificate is not accepted"), (None, "answered with TLS on a plaintext connection")):
        known = {**bootstrap, "broker_tls": tls, "sasl": ways[0][1]}
        with pytest.raises(BrokerError, match=words):
            async with open_producer(ProducerConfig(**known, session_wait=1.0)):
                pass
        with pytest.raises(BrokerError, match=words):
            async with ConsumerConnector(ConsumerConfig(group="nobody", connection_timeout=1.0, **known)) as connector:
                await connector.create_message_streams({LIBRARY: 1})


def _read_by_spark(site: Site, mechanism: str, **others: str) -> list[bytes]:
    options = {
        "bootstrap": site.broker.address,
        "subscribe": "lines",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.ssl.ca.location": str(site.broker.certificates.authority),
        "kafka.sasl.mechanism": mechanism,
        "kafka.sasl.username": USER,
        "kafka.sasl.password.file": str(site.directory / "password"),
    }
    wanted = ReadRequest(("value",), timeout=20)
    splits: list[Any] = plan_batch(read_options(options | others), Pruning())
    assert PASSWORD not in repr(splits)
    rows = [batch.column(0).to_pylist() for split in splits for batch in read_v08_split(split, wanted)]
    return [value for part in rows for value in part]


async def _copied(site: Site, place: tuple[str, str]) -> bool:
    """Whether all that was moved is in the copy, too."""
    done = await site.tool("topics", "describe", *place, "--topic", f"copy.{OLD}", "--json")
    if done.code != 0:
        return False
    partitions = done.json["topics"][f"copy.{OLD}"]["partitions"].values()
    return sum(each["messages"] or 0 for each in partitions) == len(LINES)


def said(done: Done, words: str, code: ExitCode = ExitCode.BROKER) -> None:
    """A command ended with `code` and one sentence that has these words, behind events of the log."""
    assert (done.code, done.out) == (code, ""), done
    *logged, sentence = done.err.splitlines()
    assert sentence.startswith("consumerd: "), done
    assert words in sentence, done
    assert all(line.startswith("{") for line in logged), done


async def _targets_that_do_not_let_us_in(site: Site) -> None:
    """They are tried for half a minute, beside all the rest."""
    section = site.kafka("PLAIN", password="wrong")
    options = {name: section[name] for name in ("bootstrap", "sasl", "tls")}
    handler = {"name": "forward", "options": options}
    source = site.config("to-nobody", site.kafka(), group="to-nobody", handler=handler)
    target = ("--to-bootstrap-server", site.broker.address, "--to-config", site.config("nobody", section)[1])
    forwarding, mirroring = await asyncio.gather(
        site.process("run", *source), site.process("mirror", *source, *target, "--rename", f"{OLD}=y")
    )
    said(forwarding, "refuses the authentication", ExitCode.HANDLER_FAILED)
    said(mirroring, "refuses the authentication")


async def _what_is_wrong(site: Site, old_at: str) -> None:
    """Each error is one sentence, with the exit code for an unreachable broker."""
    address = site.broker.address
    wrong = {
        "password": (site.kafka(password="wrong"), "refuses the authentication"),
        "plain": (site.kafka("PLAIN", password="wrong"), "refuses the authentication"),
        "mechanism": (site.kafka("SCRAM-SHA-256", tls=False), "answered with TLS on a plaintext connection"),
        "authority": (site.kafka(authority=site.broker.certificates.stranger), "certificate is not accepted"),
        "host": (site.kafka(address=address.replace("127.0.0.1", "localhost")), "not valid for 'localhost'"),
        "listener": (site.kafka(address=f"127.0.0.1:{site.broker.plaintext_port}"), "the port of its TLS listener?"),
        "unknown": (site.kafka() | {"sasl": None}, "is this a SASL listener?"),
        "nobody": (site.kafka(address=f"127.0.0.1:{free_port()}"), "is it running"),
    }

    kinds = {}
    for name, (kafka, words) in wrong.items():
        kafka["connection_timeout"] = 0.5
        kinds[name] = site.config(f"wrong-{name}", kafka)
        said(await site.tool("topics", "list", *kinds[name], "--timeout", "0.3"), words)
    refused = "refuses the authentication"
    bad = (*kinds["password"], "--timeout", "0.3")
    target = ("--to-bootstrap-server", address, "--to-config", kinds["password"][1])
    for command in (
        ("topics", "create", *bad, "--topic", "x", "--partitions", "1", "--replication-factor", "1"),
        ("group", "list", *bad),
        ("group", "describe", *bad, "--group", "g", "--json"),
        ("group", "doctor", *bad, "--group", "g", "--interval", "0"),
        ("offsets", "get", *bad, "--group", "g"),
        ("migrate", "offsets", "--group", "app", "--from-zookeeper", old_at, *target, "--timeout", "0.3"),
    ):
        said(await site.tool(*command), refused)
    for mechanism in MECHANISMS:
        wrong_file = {"kafka.sasl.password.file": str(site.directory / "wrong")}
        with pytest.raises(BrokerRejectedError, match=r"refuses the authentication.* is alice\)") as caught:
            await asyncio.to_thread(_read_by_spark, site, mechanism, **wrong_file)
        assert WRONG_PASSWORD not in str(caught.value)
    processes = {
        ("produce", *bad, "--topic", "lines"): refused,
        ("consume", *bad, "--bootstrap-server", address, "--topic", "lines", "--group", "g"): refused,
        ("run", *kinds["password"]): refused,
        ("mirror", *kinds["host"], "--to-bootstrap-server", address): "not valid for 'localhost'",
    }
    done = await asyncio.gather(*(site.process(*command) for command in processes))
    for each, words in zip(done, processes.values(), strict=True):
        said(each, words)
