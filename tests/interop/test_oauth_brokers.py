"""OAUTHBEARER and authentication again on real brokers, against our own identity provider, under load."""

from __future__ import annotations

import asyncio
import base64
import functools
import json
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from consumerd import (
    ClientCredentials,
    OAuthBearer,
    OAuthToken,
    Plain,
    Scram,
    TokenCache,
)
from consumerd.base.errors import BrokerError, ExitCode
from consumerd.base.ports import SaslMechanism
from consumerd.demo.ports import free_port
from consumerd.demo.processes import DaemonProcess, clean_environment, consumerd_command, format_toml
from consumerd.spark.source.filters import Pruning
from consumerd.spark.source.options import read_options
from consumerd.spark.source.planning import plan_batch
from consumerd.spark.source.request import ReadRequest
from consumerd.spark.source.v08.reading import read_v08_split
from tests.interop.reauthentication import REAUTH, check_renewals
from tests.interop.test_sasl_brokers import JAAS, client_at
from tests.support.exporter import exporting
from tests.support.token_server import AUDIENCE, CLIENT, CLIENT_SECRET, TokenServer

pytestmark = [pytest.mark.interop, pytest.mark.long]
HANDLERS = "org.apache.kafka.common.security.oauthbearer."


@pytest.fixture
def server() -> Iterator[TokenServer]:
    with TokenServer() as made:
        yield made


@pytest_asyncio.fixture(params=["3.9.1", "4.1.0"])
async def ports(request: pytest.FixtureRequest, kafka: Any, server: TokenServer) -> AsyncIterator[dict[str, int]]:
    """The ports of a broker's listeners: SIGNED with Kafka's validator of JWTs, BARE with that of unsecured tokens."""
    names = ("PLAINTEXT", "SIGNED", "BARE", "USERS")
    found = {name: free_port() for name in names}
    listeners = ",".join(f"{name}://127.0.0.1:{port}" for name, port in found.items())
    controller = free_port()
    kinds = dict.fromkeys(names[1:], "SASL_PLAINTEXT") | {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT"}
    signed, bare, users = (f"listener.name.{name.lower()}" for name in names[1:])
    oauth = JAAS.format("oauthbearer.OAuthBearerLoginModule", "")
    config = {
        "listeners": f"{listeners},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": listeners,
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listener.security.protocol.map": ",".join(f"{name}:{kind}" for name, kind in kinds.items()),
        "connections.max.reauth.ms": REAUTH,
        f"{signed}.sasl.enabled.mechanisms": "OAUTHBEARER",
        f"{signed}.oauthbearer.sasl.jaas.config": oauth,
        f"{signed}.oauthbearer.sasl.server.callback.handler.class": f"{HANDLERS}OAuthBearerValidatorCallbackHandler",
        "sasl.oauthbearer.jwks.endpoint.url": server.jwks_url,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "sasl.oauthbearer.clock.skew.seconds": 60,
        f"{bare}.sasl.enabled.mechanisms": "OAUTHBEARER",
        f"{bare}.oauthbearer.sasl.jaas.config": oauth,
        f"{users}.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
        f"{users}.plain.sasl.jaas.config": JAAS.format("plain.PlainLoginModule", 'user_alice="wonder-land"'),
        f"{users}.scram-sha-512.sasl.jaas.config": JAAS.format("scram.ScramLoginModule", ""),
    }
    if request.param != "3.9.1":  # whose default does not check the audience
        config["sasl.oauthbearer.jwt.validator.class"] = f"{HANDLERS}BrokerJwtValidator"
    await kafka(
        request.param,
        port=found["PLAINTEXT"],
        config=config,
        jvm=[f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={server.jwks_url}"],
        format_options=["--add-scram", "SCRAM-SHA-512=[name=alice,password=wonder-land]"],
    )
    yield found


def tokens_of(server: TokenServer) -> TokenCache:
    return TokenCache(ClientCredentials(server.url, CLIENT, lambda: CLIENT_SECRET, scope="kafka"))


def unsecured() -> OAuthToken:
    """A token without a signature, as Kafka's own handler for tests accepts it."""
    now = int(time.time())
    parts = ({"alg": "none"}, {"sub": "alice", "iat": now, "exp": now + 30})
    return OAuthToken(
        ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts) + "."
    )


@pytest.mark.parametrize("listener", ["SIGNED", "BARE", "PLAIN", "SCRAM"])
async def test_authenticates_again_under_load_without_a_warning_or_a_disconnect(
    ports: dict[str, int], server: TokenServer, monkeypatch: pytest.MonkeyPatch, listener: str
) -> None:
    server.lifetime = 3.0
    tokens = tokens_of(server) if listener == "SIGNED" else TokenCache(unsecured)
    mechanisms: dict[str, Callable[[], SaslMechanism]] = {
        "SIGNED": lambda: OAuthBearer(tokens),
        "BARE": lambda: OAuthBearer(tokens),
        "PLAIN": lambda: Plain("alice", "wonder-land"),
        "SCRAM": functools.partial(Scram, "SCRAM-SHA-512", "alice", "wonder-land"),
    }
    sasl, port = mechanisms[listener], ports.get(listener, ports["USERS"])
    async with client_at(port, sasl) as client:
        await client.retrying("make the topic", lambda: client.refresh(["events"], create=True))
    await check_renewals(port, sasl, monkeypatch)
    if listener == "SIGNED":
        assert len(server.tokens) >= 3


async def test_refuses_tokens_as_the_broker_does(ports: dict[str, int], server: TokenServer) -> None:
    now = int(time.time())
    cases: list[dict[str, Any]] = [
        {"aud": "other"},
        {"exp": now - 3600, "iat": now - 7200},
        {"iat": now + 3600, "exp": now + 7200, "nbf": now + 3600},
        {"sub": None},
    ]
    for server.claims in cases:
        tokens = tokens_of(server)
        async with client_at(ports["SIGNED"], functools.partial(OAuthBearer, tokens)) as client:
            with pytest.raises(BrokerError, match=r"the broker refuses the token \(OAUTHBEARER\): invalid_token"):
                await client.refresh()
            server.claims = {}  # the next token is a new one
            assert (await client.refresh()).nodes


async def test_skewed_clocks_of_the_provider_are_as_the_broker_allows(
    ports: dict[str, int], server: TokenServer
) -> None:
    now = int(time.time())
    # The provider's clock is ahead, then behind, by half of the minute that the broker allows, and by more than that.
    for skew, accepted in ((30, True), (-30, True), (150, False), (-150, False)):
        issued = now + skew
        server.claims = {"iat": issued, "nbf": issued, "exp": issued + 60}
        tokens = tokens_of(server)
        async with client_at(ports["SIGNED"], functools.partial(OAuthBearer, tokens)) as client:
            if accepted:
                assert (await client.refresh()).nodes
                continue
            with pytest.raises(BrokerError, match="invalid_token"):
                await client.refresh()


async def test_every_client_authenticates_with_tokens_that_expire(
    ports: dict[str, int], server: TokenServer, tmp_path: Path
) -> None:
    """As users run them: tools, a daemon that forwards, the exporter, tasks of Spark, for longer than a token lasts."""
    server.lifetime = 3.0
    secret = tmp_path / "secret"
    secret.write_text(f"{CLIENT_SECRET}\n")
    sasl = {
        "mechanism": "OAUTHBEARER",
        "token_endpoint": server.url,
        "token_scope": "kafka",
        "user": CLIENT,
        "password_file": str(secret),
    }
    bootstrap = f"127.0.0.1:{ports['SIGNED']}"
    kafka = {"bootstrap": [bootstrap], "sasl": sasl}
    config: dict[str, Any] = {
        "group": {"id": "g", "coordination": "kafka", "topics": {"events": 1}},
        "kafka": kafka,
        "fetch": {"initial": "earliest"},
        "handler": {"name": "forward", "options": kafka | {"topic": "copy"}},
    }
    place = ("-c", str(tmp_path / "tools.toml"))
    Path(place[1]).write_text(format_toml(config))
    lines = [b"%d" % number for number in range(40)]

    async def tool(*arguments: str, stdin: bytes = b"") -> bytes:
        done = await asyncio.to_thread(
            subprocess.run, consumerd_command(*arguments), input=stdin, capture_output=True, timeout=90, check=False,
            env=clean_environment(),
        )  # fmt: skip
        assert (done.returncode, b"WARNING" in done.stderr) == (ExitCode.OK, False), (arguments, done)
        return done.stdout

    for topic in ("events", "copy"):
        await tool("topics", "create", *place, "--topic", topic, "--partitions", "1", "--replication-factor", "1")
    await tool("produce", *place, "--topic", "events", stdin=b"".join(line + b"\n" for line in lines[:20]))
    async with DaemonProcess(tmp_path, config) as daemon, exporting(*place, "--interval", "0.5") as exported:

        def warnings() -> list[str]:
            return [event["event"] for event in daemon.events() if event["level"] != "info"]

        read = ("--topic", "copy", "--from", "earliest", "--timeout", "60")
        assert (await tool("consume", *place, *read, "--max-messages", "20")).splitlines() == lines[:20]
        begun, at_the_start = len(server.tokens), warnings()
        await asyncio.sleep(7)  # of the broker's time: sessions of 2 s, tokens of 3
        assert len(server.tokens) > begun + 2
        await tool("produce", *place, "--topic", "events", stdin=b"".join(line + b"\n" for line in lines[20:]))
        assert (await tool("consume", *place, *read, "--max-messages", "40")).splitlines() == lines
        while 'kafka_consumergroup_group_sum_lag{cluster_name="kafka",group="g"} 0.0' not in await exported():
            await asyncio.sleep(0.2)
        assert await daemon.stop() == ExitCode.OK
        assert warnings() == at_the_start
    token = tmp_path / "token"  # as Kubernetes projects it
    server.lifetime = 600.0
    token.write_text(server.issue())
    server.lifetime = 3.0
    by_file = tmp_path / "by-file.toml"
    by_file.write_text(
        format_toml(config | {"kafka": kafka | {"sasl": {"mechanism": "OAUTHBEARER", "token_file": str(token)}}})
    )
    assert b"copy" in await tool("topics", "list", "-c", str(by_file))
    options = {
        "bootstrap": bootstrap,
        "subscribe": "copy",
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "OAUTHBEARER",
        "kafka.sasl.username": CLIENT,
        "kafka.sasl.password.file": str(secret),
        "kafka.sasl.oauthbearer.token.endpoint.url": server.url,
        "kafka.sasl.oauthbearer.scope": "kafka",
    }

    def spark_reads() -> list[bytes]:
        splits: list[Any] = plan_batch(read_options(options), Pruning())
        wanted = ReadRequest(("value",), timeout=20)
        return [
            value for split in splits for part in read_v08_split(split, wanted) for value in part.column(0).to_pylist()
        ]

    for _ in range(2):
        before = len(server.tokens)
        assert await asyncio.to_thread(spark_reads) == lines
        assert len(server.tokens) > before
        await asyncio.sleep(3)  # until the token of these reads has expired
