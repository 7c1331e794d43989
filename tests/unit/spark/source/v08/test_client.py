"""The blocking client of 0.8+ brokers: it can be called anywhere, interrupted and closed, and says what cannot pass."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import pytest

from consumerd.net.client.cluster import ClusterClient
from consumerd.spark.source.errors import BrokerRejectedError, BrokerTimeoutError, BrokerUnavailableError
from consumerd.spark.source.option_values import BootstrapLocation, Login, Tls, TokenSource
from consumerd.spark.source.v08.client import KafkaClient
from consumerd.wire.v07 import EARLIEST, LATEST
from consumerd.wire.v08.apis import (
    API_VERSIONS,
    FETCH,
    LIST_GROUPS,
    LIST_OFFSETS,
    METADATA,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
)
from consumerd.wire.v08.records import encode_record_batch
from tests.support.token_server import CLIENT, CLIENT_SECRET, TokenServer
from tests.unit.spark.source.v08.fake_broker import V08Broker

PLACE = ("events", 0)
#: Fetches one place for ever.
FOR_EVER = """
import sys
from consumerd.spark.source.v08.client import KafkaClient
from consumerd.spark.source.option_values import BootstrapLocation

with KafkaClient(BootstrapLocation((("127.0.0.1", int(sys.argv[1])),)), 3600, largest=1 << 20) as client:
    client.fetch(("events", 0), 0, 1 << 20)
"""


def client_of(broker: V08Broker, *, timeout: float = 30, **options: Any) -> KafkaClient:
    return KafkaClient(BootstrapLocation((broker.address,), **options), timeout, largest=1 << 20)


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "kafka-client"]


def serving(broker: V08Broker, **versions: int) -> None:
    """Let it say that it serves APIs up to these versions."""
    served = {METADATA.key: 9, LIST_OFFSETS.key: 5, FETCH.key: 11, API_VERSIONS.key: 3}
    keys_of = {"metadata": METADATA.key, "handshake": SASL_HANDSHAKE.key, "authenticate": SASL_AUTHENTICATE.key}
    served |= {keys_of[name]: last for name, last in versions.items()}
    keys = [{"api_key": key, "min_version": 0, "max_version": last} for key, last in served.items()]
    broker.answers[API_VERSIONS.key] = lambda *_: {"error_code": 0, "api_keys": keys}


async def test_works_inside_a_running_loop_and_leaves_no_thread() -> None:
    batch = encode_record_batch([b"a", b"b"], base_offset=0)
    with V08Broker((0, 100, batch)) as broker, client_of(broker) as client:
        assert client.offsets([PLACE], EARLIEST) == {PLACE: 0}
        assert client.offsets([PLACE], LATEST) == {PLACE: 100}
        fetched = client.fetch(PLACE, 0, 1 << 20)
        assert (fetched.data, fetched.reach, fetched.aborted, fetched.throttled) == (batch, 100, (), False)
        assert len(threads()) == 1
    assert threads() == []
    client.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_a_process_waiting_for_a_broker(number: signal.Signals) -> None:
    asked, ended = threading.Event(), threading.Event()

    def silent(*_: Any) -> None:
        asked.set()
        ended.wait()

    with V08Broker(silent) as broker:
        task = subprocess.Popen([sys.executable, "-c", FOR_EVER, str(broker.port)], stderr=subprocess.PIPE)
        try:
            assert asked.wait(60)
            task.send_signal(number)
            _, said = task.communicate(timeout=60)
        finally:
            task.kill()
            ended.set()
    assert task.returncode == -number
    assert (b"KeyboardInterrupt" in said) == (number == signal.SIGINT)


def test_close_cancels_a_pending_request_from_any_thread() -> None:
    with V08Broker((0, 100, b"")) as broker:
        client = client_of(broker)

        async def collected(_: ClusterClient) -> None:
            (thread,) = threads()
            client.close()  # as a garbage collection does, which may happen on any thread
            left.append(thread)
            await asyncio.Event().wait()

        left: list[threading.Thread] = []
        with pytest.raises(CancelledError):
            client.ask("wait", collected)
        left[0].join(60)
        assert not left[0].is_alive()


def test_a_silent_broker_times_out() -> None:
    ended = threading.Event()
    with V08Broker(lambda *_: ended.wait() and None) as broker, client_of(broker, timeout=0.5) as client:
        try:
            with pytest.raises(
                BrokerTimeoutError, match=r"cannot fetch events/0 from 0: .* did not answer within 0.5 s"
            ):
                client.fetch(PLACE, 0, 1 << 20)
        finally:
            ended.set()


def test_names_the_option_for_a_tls_listener_at_once() -> None:
    with V08Broker((0, 100, b"")) as broker, client_of(broker, timeout=3600) as client:
        for key in (API_VERSIONS.key, LIST_GROUPS.key, METADATA.key):
            broker.answers[key] = lambda *_: b"\x15\x03\x03\x00\x02\x02\x46"
        with pytest.raises(BrokerRejectedError, match=r"with TLS.*give kafka.security.protocol=SSL or SASL_SSL"):
            client.topics(lambda _: True)


def test_reports_a_rejected_login_at_once_while_another_broker_is_down() -> None:
    with V08Broker((0, 100, b"")) as broker, socket.create_server(("127.0.0.1", 0)) as other:
        nobody = other.getsockname()[:2]
        other.close()
        serving(broker, handshake=1)
        broker.answers[SASL_HANDSHAKE.key] = lambda *_: {"error_code": 33, "mechanisms": ["GSSAPI"]}
        place = BootstrapLocation((nobody, broker.address, nobody), login=Login("alice", "secret", mechanism="PLAIN"))
        with KafkaClient(place, 3600) as client, pytest.raises(BrokerRejectedError) as caught:
            client.topics(lambda _: True)
    assert "does not support PLAIN; it offers GSSAPI (kafka.sasl.username is alice)" in str(caught.value)


def test_tasks_of_a_process_share_the_tokens_of_a_login(tmp_path: Path) -> None:
    with V08Broker((0, 100, b"")) as broker, TokenServer() as server:
        serving(broker, handshake=1, authenticate=2)
        broker.answers[SASL_HANDSHAKE.key] = lambda *_: {"error_code": 0, "mechanisms": []}
        broker.answers[SASL_AUTHENTICATE.key] = lambda *_: {"error_code": 0, "error_message": None, "auth_bytes": b""}
        file = tmp_path / "token"
        file.write_text("first")
        source = TokenSource(server.url, "kafka", extensions=(("logicalCluster", "lkc"),))
        logins = [Login(CLIENT, CLIENT_SECRET, None, "OAUTHBEARER", source) for _ in range(2)]
        for login in (*logins, Login("", mechanism="OAUTHBEARER", tokens=TokenSource(file=str(file)))):
            with client_of(broker, login=login) as client:
                assert client.topics(lambda name: name == "events")
        sent = [body["auth_bytes"] for name, body in broker.asked if name == SASL_AUTHENTICATE.name]
        (token,) = server.tokens
    bearer = f"n,,\x01auth=Bearer {token}\x01logicalCluster=lkc\x01\x01".encode()
    assert sent == [bearer, bearer, b"n,,\x01auth=Bearer first\x01\x01"]
    assert server.requests[0][1] == {"grant_type": "client_credentials", "scope": "kafka"}


def test_rejects_unusable_pem_files() -> None:
    with (
        V08Broker((0, 100, b"")) as broker,
        pytest.raises(BrokerRejectedError, match=r"kafka\.ssl\.\* cannot be used: ca: /nowhere/ca.pem: No such file"),
    ):
        client_of(broker, tls=Tls(ca="/nowhere/ca.pem"))
    with pytest.raises(
        BrokerRejectedError, match=r"kafka\.sasl\.oauthbearer\.ca\.location cannot be used: ca: /nowhere"
    ):
        client_of(broker, login=Login("u", "p", None, "OAUTHBEARER", TokenSource("https://h/t", ca="/nowhere/ca.pem")))


@pytest.mark.parametrize(("version", "asked"), [(9, [{"name": "events"}]), (3, None)])
def test_metadata_requests_create_no_topic(version: int, asked: Any) -> None:
    with V08Broker((0, 100, b"")) as broker, client_of(broker) as client:
        serving(broker, metadata=version)
        found = client.topics(lambda name: name == "events", ["events"])
        assert found == {"events": ({0: broker.address}, False, None, {0: -1})}
    ((_, body),) = (each for each in broker.asked if each[0] == METADATA.name)
    topics = body["topics"]
    assert (topics if topics is None else [{"name": each["name"]} for each in topics]) == asked
    assert not body.get("allow_auto_topic_creation", False)


def test_reports_a_cluster_that_is_down_in_one_sentence() -> None:
    with V08Broker((0, 100, b"")) as broker:
        client = client_of(broker, timeout=0.3)
    with client, pytest.raises(BrokerUnavailableError, match=r"cannot find the topics: no broker .* \(1 tried\)"):
        client.topics(lambda _: True)
