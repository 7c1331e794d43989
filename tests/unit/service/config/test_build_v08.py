"""From the configuration to a client, a membership and a consumer of brokers since 0.8."""

import random
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from consumerd.base.clock import SystemClock
from consumerd.base.errors import ConfigError
from consumerd.base.partition import TopicPartition
from consumerd.base.settings.servers import KafkaSection
from consumerd.group.assignors import Spelling
from consumerd.group.coordinated_tables import CoordinationSettings
from consumerd.group.rules import V08Rules
from consumerd.member.consumer.coordinated import CoordinatedConsumer
from consumerd.member.consumer.fixed import FixedConsumer
from consumerd.member.fetch.settings import FetchSettings
from consumerd.net.client.errors import NoBrokerReachedError
from consumerd.service.config.build import build_settings
from consumerd.service.config.build_handlers import build_handler
from consumerd.service.config.build_v08 import (
    build_backend,
    build_bootstrap,
    build_client,
    build_consumer,
    build_mechanism,
    fixed_partitions,
    names_brokers,
)
from consumerd.service.config.model import Config, parse

CLOCK, RNG = SystemClock(), random.Random(1)


def config(**group: Any) -> Config:
    return parse({"group": {"id": "g", **group}, "handler": {"name": "null"}}, "a test")


def build(found: Config) -> CoordinatedConsumer | FixedConsumer:
    client = build_client(found, clock=CLOCK, rng=RNG)
    settings = build_settings(found, clock=CLOCK, rng=RNG)
    handler = build_handler(found, clock=CLOCK, rng=RNG)
    return build_consumer(found, settings, handler, client, clock=CLOCK, rng=RNG)


def test_parses_host_names_and_ip_addresses() -> None:
    section = KafkaSection(bootstrap=("kafka1:9092", " 10.0.0.1:1 ", "[::1]:65535"))
    assert build_bootstrap(section) == [("kafka1", 9092), ("10.0.0.1", 1), ("::1", 65535)]


@pytest.mark.parametrize("address", ["kafka1", ":9092", "kafka1:", "kafka1:0", "kafka1:65536", "kafka1:x", "a:-1"])
def test_names_an_invalid_address(address: str) -> None:
    with pytest.raises(ConfigError, match=r"kafka\.bootstrap"):
        build_bootstrap(KafkaSection(bootstrap=(address,)))


def test_configures_max_wait_and_min_bytes() -> None:
    for table, settings in (
        ({}, FetchSettings()),
        ({"max_wait": 3, "min_bytes": 100_000}, FetchSettings(max_wait=3, min_bytes=100_000)),
    ):
        found = parse({"group": {"id": "g", "topics": {"t": 1}}, "fetch": table}, "a test")
        assert build_settings(found, clock=CLOCK, rng=RNG).fetch == settings


async def test_builds_a_coordinated_consumer() -> None:
    found = config(
        topics={"t": 2}, coordination="kafka", assignor="roundrobin", instance_id="i", rebalance_timeout=50.0
    )
    settings = CoordinationSettings.of(found.group, found.rebalance)
    assert settings.session_timeout == CoordinationSettings().session_timeout == 45.0  # outlasts a broker's failure
    assert settings.assignors == ("roundrobin", "range")
    assert (settings.instance_id, settings.rebalance_timeout, settings.drain_timeout) == ("i", 50.0, 4.0)
    assert settings.protocol == "classic"
    assert isinstance(build(found), CoordinatedConsumer)


def test_settings_of_the_consumer_protocol_reach_the_membership() -> None:
    keys = {"protocol": "consumer", "remote_assignor": "uniform", "broker_filter": True}
    settings = CoordinationSettings.of(config(whitelist="t.*", coordination="kafka", **keys).group)
    assert {name: getattr(settings, name) for name in keys} == keys


def test_rejects_a_pattern_that_the_broker_cannot_match() -> None:
    keys: dict[str, Any] = {"whitelist": "(?!test).*", "coordination": "kafka", "protocol": "consumer"}
    build(config(**keys))
    with pytest.raises(ConfigError, match=r"group.whitelist: .* cannot be matched by a broker, .* lookahead"):
        build(config(**keys, broker_filter=True))


async def test_builds_a_consumer_of_fixed_partitions() -> None:
    found = config(partitions={"u": [3, 0, 3], "t": [1]}, coordination="fixed", offsets="none")
    wanted = [TopicPartition.numbered(*each) for each in (("t", 1), ("u", 0), ("u", 3))]
    assert fixed_partitions(found.group) == wanted
    consumer = build(found)
    assert isinstance(consumer, FixedConsumer)
    assert consumer.assigned == wanted


def test_check_covers_each_coordination(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from consumerd.cli.check import command

    path = tmp_path / "c.toml"
    path.write_text('[group]\nid = "g"\ncoordination = "fixed"\npartitions = { t = [1, 0] }\n')
    result = CliRunner().invoke(command, ["-c", str(path)])
    assert "group g, t/0, t/1, handler print" in result.output
    path.write_text('[group]\nid = "g"\ncoordination = "kafka"\ntopics = { t = 1 }\n')
    assert "coordinated by a broker" in CliRunner().invoke(command, ["-c", str(path)]).output
    path.write_text(path.read_text() + 'offsets = "both"\n[zookeeper]\nauth = ["nothing"]\n')
    assert "zookeeper.auth" in str(CliRunner().invoke(command, ["-c", str(path)]).exception)
    path.write_text(path.read_text().partition("offsets")[0])
    path.write_text(path.read_text() + '[kafka]\nbootstrap = ["nowhere"]\n')
    assert isinstance(CliRunner().invoke(command, ["-c", str(path)]).exception, ConfigError)


def secured(**kafka: Any) -> Config:
    return parse({"group": {"id": "g", "topics": {"t": 1}, "coordination": "kafka"}, "kafka": kafka}, "a test")


def test_reads_passwords_from_the_configuration_or_a_file(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("wonder land\r\nsecond line\n")
    for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
        for password in ({"password": "x"}, {"password_file": str(secret)}):
            build_client(secured(sasl={"mechanism": mechanism, "user": "u", **password}), clock=CLOCK, rng=RNG)
    sasl = secured(sasl={"mechanism": "PLAIN", "user": "u", "password_file": str(secret)}).kafka.sasl
    assert sasl is not None
    assert build_mechanism(sasl)().first("broker") == b"\0u\0wonder land"


@pytest.mark.parametrize(
    ("sasl", "says"),
    [
        ({"user": "u"}, "exactly one of password and password_file"),
        ({"user": "u", "password": "p", "password_file": "f"}, "exactly one of password and password_file"),
        ({"user": "u", "password": "p", "mechanism": "GSSAPI"}, "uses principal and keytab"),
        ({"user": "u", "password": "p", "mechanism": "SCRAM-SHA-1"}, r"kafka\.sasl\.mechanism"),
        ({"user": "u", "password": "p", "keytab": "f"}, "are for GSSAPI, not for SCRAM-SHA-512"),
        ({"password": "p"}, "needs a user"),
        ({"mechanism": "GSSAPI", "keytab": "/nowhere/at/all"}, r"kafka\.sasl\.keytab.*No such file"),
        ({"user": "u", "password_file": "/nowhere/at/all"}, r"kafka\.sasl\.password_file.*No such file"),
        ({"user": "u", "password_file": "/dev/null"}, "holds no secret in its first line"),
        ({"user": "u\0v", "password": "p", "mechanism": "PLAIN"}, "NUL"),
    ],
)
def test_rejects_invalid_authentication(sasl: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        build_client(secured(sasl=sasl), clock=CLOCK, rng=RNG)


def test_mechanism_factories_show_no_password() -> None:
    for mechanism in ("PLAIN", "SCRAM-SHA-256"):
        sasl = secured(sasl={"mechanism": mechanism, "user": "u", "password": "hush"}).kafka.sasl
        assert sasl is not None
        make = build_mechanism(sasl)
        assert "hush" not in f"{sasl!r} {sasl} {make!r} {make()!r}"


def test_names_unusable_tls_files(tmp_path: Path) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("me")
    key = load_pem_private_key(issued.private_key_pem.bytes(), None)
    files = {name: tmp_path / name for name in ("ca", "certificate", "key", "locked")}
    authority.cert_pem.write_to_path(files["ca"])
    issued.cert_chain_pems[0].write_to_path(files["certificate"])
    issued.private_key_pem.write_to_path(files["key"])
    lock = BestAvailableEncryption(b"pass")
    files["locked"].write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, lock))
    good = {name: str(files[name]) for name in ("ca", "certificate", "key")}
    build_client(secured(tls=good), clock=CLOCK, rng=RNG)
    for wrong, says in (
        ({"ca": "/nowhere/ca.pem"}, r"^kafka\.tls\.ca: /nowhere/ca\.pem: No such file or directory\.$"),
        ({"ca": "/dev/null"}, r"^kafka\.tls\.ca: /dev/null: .*NO_CERTIFICATE"),
        ({"certificate": "/nowhere/c"}, r"^kafka\.tls\.certificate: /nowhere/c with the key .*: No such file"),
        ({"key": good["ca"]}, r"^kafka\.tls\.certificate: .*/certificate with the key .*/ca: "),
        ({"key": str(files["locked"])}, r"with the key .*/locked: the key is encrypted"),
        ({"certificate": None}, r"^kafka\.tls\.key needs kafka\.tls\.certificate: give both"),
    ):
        with pytest.raises(ConfigError, match=says):
            build_client(secured(tls=good | wrong), clock=CLOCK, rng=RNG)


@pytest.mark.parametrize(
    ("kafka", "protocol"),
    [
        ({}, "PLAINTEXT"),
        ({"tls": {}}, "SSL"),
        ({"sasl": {"user": "u", "password": "p"}}, "SASL_PLAINTEXT"),
        ({"tls": {}, "sasl": {"user": "u", "password": "p"}, "client_id": "c"}, "SASL_SSL"),
        ({"bootstrap": ["k:1"]}, None),
    ],
)
async def test_finds_brokers_in_zookeeper(kafka: dict[str, Any], protocol: str | None) -> None:
    group = {"id": "g", "topics": {"t": 1}, "assignor": "roundrobin", "roundrobin_as": "1.0"}
    found = parse({"group": group, "handler": {"name": "null"}, "kafka": kafka}, "a test")
    client = build_client(found, clock=CLOCK, rng=RNG)
    backend = build_backend(found, client, bootstrap=names_brokers(found))
    assert backend.rules == V08Rules("roundrobin", Spelling.DASH)
    assert names_brokers(found) is (protocol is None)
    assert vars(backend)["_protocol"] == protocol
    if protocol is not None:
        with pytest.raises(NoBrokerReachedError, match="none is known yet"):
            await client.any_channel()


@pytest.mark.parametrize(
    ("group", "sentence"),
    [
        ({"dialect": "0.8", "coordination": "kafka"}, "dialect needs coordination"),
        ({"dialect": "0.7", "assignor": "roundrobin"}, "members of Kafka 0.7 support range only"),
        ({"roundrobin_as": "1.0"}, 'roundrobin_as needs coordination = "zookeeper" and assignor'),
    ],
)
def test_names_contradicting_keys(group: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        config(topics={"t": 1}, **group)
