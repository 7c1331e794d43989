"""Sinks, clients and the HTTP server are run with planted secrets, and nothing that they say has one of them.

Searched are log events at all levels, the errors with their causes and tracebacks, pages, metrics, and the stacks that
SIGUSR1 and a hung loop write; for the secrets as they are, and in the encodings in which they travel.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import random
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import AsyncMock, MagicMock, patch

import aiohttp
import pytest
from aiohttp import web
from structlog.testing import capture_logs

from consumerd.base.partition import TopicPartition
from consumerd.handlers import Batch, HandlerContext, RetryPolicy, load_handler, retrying
from consumerd.net.client.sasl import Plain, Scram
from consumerd.net.errors import ConnectionClosedError
from consumerd.service.config.build_v08 import build_mechanism
from consumerd.service.config.model import parse
from consumerd.service.daemon.endpoints import build_server
from consumerd.service.daemon.monitor import Monitor
from consumerd.service.daemon.stacks import main_thread_frames, task_stacks, thread_stacks
from consumerd.testing import FakeClock
from consumerd.wire.v07 import decode_batch, encode_message_set
from consumerd.wire.v08.apis import APIS, SASL_HANDSHAKE
from consumerd.wire.v08.versions import BrokerRelease
from tests.support.receiver import Receiver
from tests.unit.net.client.test_sasl import Line, authenticated

SECRET = "hush-hush-hush-hush"
HERE = TopicPartition("t", 0, 0)
#: Nothing listens there.
CLOSED = "127.0.0.1:1"


class Said:
    """What was said, as text."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def add(self, *texts: object) -> None:
        self.texts += map(str, texts)

    def error(self, error: BaseException) -> None:
        """An error as logs and tracebacks show it, with all that it was caused by."""
        self.add(error, repr(error), "".join(traceback.format_exception(error)))

    def check(self) -> None:
        forms = [SECRET, base64.b64encode(SECRET.encode()).decode().rstrip("="), SECRET.encode().hex()]
        forms += [base64.b64encode(b"\0user\0" + SECRET.encode()).decode().rstrip("=")]  # the token of PLAIN
        for text in self.texts:
            assert not [form for form in forms if form in text], text


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Iterator[Said]:
    made = Said()
    caplog.set_level(logging.DEBUG)
    with capture_logs() as lines:
        yield made
    made.add(*lines, caplog.text)
    assert made.texts
    made.check()


async def use(said: Said, name: str, options: dict[str, Any]) -> None:
    """Make a handler, start it, give it a batch, and stop it, as the daemon does; its errors are said."""
    inner = load_handler(name, options)
    policy = RetryPolicy(max_attempts=2, timeout=5.0)
    handler = retrying(inner, policy, clock=FakeClock(auto=True), rng=random.Random(1), name=name)
    said.add(repr(inner), repr(handler))
    batch = Batch(HERE, decode_batch(encode_message_set([b"x"]), 0))
    context = HandlerContext("g", "g_1", FakeClock(auto=True), name=name, config={"options": options})
    said.add(repr(context))
    steps: list[Callable[[], Any]] = [
        lambda: handler.start(context),
        lambda: handler.position(HERE),
        lambda: handler.handle(batch),
    ]
    for step in steps:
        try:
            await step()
        except Exception as error:
            said.error(error)
    await handler.stop()


SINKS: dict[str, tuple[str, dict[str, Any]]] = {
    "postgres-closed": ("postgres", {"dsn": f"postgresql://user:{SECRET}@{CLOSED}/db", "timeout": 2.0}),
    "postgres-invalid": ("postgres", {"dsn": f"postgresql://user:{SECRET}@h:port/db"}),
    "parquet": ("parquet", {"directory": "nosuch://bucket", "storage_options": {"secret": SECRET}}),
    "http-closed": ("http", {"url": f"http://{CLOSED}/", "headers": {"Authorization": f"Bearer {SECRET}"}}),
    "forward": (
        "forward",
        {
            "bootstrap": [CLOSED],
            "sasl": {"mechanism": "PLAIN", "user": "user", "password": SECRET},
            "delivery_timeout": 0.5,
            "request_timeout": 0.3,
        },
    ),
}


@pytest.mark.parametrize("name", SINKS)
async def test_sinks_without_their_server_say_no_secret(said: Said, name: str) -> None:
    before = len(said.texts)
    await use(said, *SINKS[name])
    assert any("Traceback" in text for text in said.texts[before:])


async def test_postgres_that_works_says_no_secret(said: Said) -> None:
    connection = AsyncMock()
    connection.fetchrow.return_value = {"found": False, "epoch": 1, "next_offset": 0}

    @asynccontextmanager
    async def entered() -> AsyncIterator[Any]:
        yield connection

    connection.transaction = MagicMock(side_effect=entered)
    pool = AsyncMock()
    pool.acquire = MagicMock(side_effect=entered)
    with patch("asyncpg.create_pool", AsyncMock(return_value=pool)) as made:
        await use(said, "postgres", {"dsn": f"postgresql://user:{SECRET}@h/db", "create": False})
    assert SECRET in str(made.call_args)


@pytest.mark.parametrize("status", [204, 401, 500])
async def test_http_says_no_secret_whatever_the_answer(said: Said, status: int) -> None:
    async with Receiver() as receiver:
        receiver.script.extend(web.Response(status=status, text="no") for _ in range(2))
        await use(said, "http", {"url": receiver.url, "headers": {"Authorization": f"Bearer {SECRET}"}})
        assert SECRET in receiver.requests[0].headers["Authorization"]


class RejectingLine(Line):
    """Agrees on the mechanism, and rejects the token."""

    async def call(self, api: Any, body: dict[str, Any], *, version: int | None = None, timeout: float) -> Any:
        answer = await super().call(api, body, version=version, timeout=timeout)
        return answer if api is SASL_HANDSHAKE else {**answer, "error_code": 58, "error_message": "wrong password"}


ALL = {key: api.versions for key, api in APIS.items()}
LINES: dict[str, Callable[[], Line]] = {
    "mechanism": lambda: Line(BrokerRelease.V0_10_OR_NEWER, ALL, error_code=33),
    "credentials": lambda: RejectingLine(BrokerRelease.V0_10_OR_NEWER, ALL),
    "challenge": lambda: Line(BrokerRelease.V0_10_OR_NEWER, ALL),
    "closed": lambda: Line(
        BrokerRelease.V0_10_OR_NEWER, {SASL_HANDSHAKE.key: (0, 0)}, raises=ConnectionClosedError("closed")
    ),
}


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_authentication_says_no_secret(said: Said, mechanism: str, line: str) -> None:
    made = Plain("user", SECRET) if mechanism == "PLAIN" else Scram(mechanism, "user", SECRET)
    said.add(repr(made))
    try:
        await authenticated(LINES[line](), made)
    except Exception as error:
        said.error(error)
    sasl = {"mechanism": mechanism, "user": "user", "password": SECRET}
    group = {"id": "g", "topics": {"t": 1}, "coordination": "kafka"}
    section = parse({"group": group, "kafka": {"sasl": sasl}}, "test", environment=False).kafka.sasl
    assert section is not None
    said.add(section, repr(section), build_mechanism(section))


async def test_http_server_says_no_secret(said: Said) -> None:
    tables = {
        "group": {"id": "g", "topics": {"t": 1}},
        "handler": {"name": "postgres", "options": {"dsn": f"postgresql://user:{SECRET}@h/db"}},
        "health": {"listen": "127.0.0.1:0", "token": SECRET, "metrics": True},
    }
    config = parse(tables, "test", environment=False)
    said.add(config, repr(config))
    statuses: list[int] = []
    async with build_server(Monitor(config, FakeClock())) as running, aiohttp.ClientSession() as client:
        for token in (None, f"Bearer {SECRET}", f"Bearer {SECRET}x"):
            headers = {} if token is None else {"Authorization": token}
            for path in ("", "status.json", "metrics", "healthz", "readyz", "none"):
                async with client.get(f"{running.url}{path}", headers=headers) as answer:
                    statuses.append(answer.status)
                    said.add(answer.headers, await answer.text())
    assert (statuses[0], statuses[6:9], statuses[12]) == (401, [200] * 3, 401)
    open_to_all = {**tables, "health": {"listen": "0.0.0.0:0", "token": SECRET}}
    with capture_logs() as lines:
        build_server(Monitor(parse(open_to_all, "test", environment=False), FakeClock()))
    assert [line["event"] for line in lines] == ["http_token_unprotected"]
    said.add(*lines)


async def test_stacks_have_no_secret(said: Said) -> None:
    async def connect(dsn: str) -> None:
        await asyncio.sleep(60)

    waiting = asyncio.create_task(connect(SECRET))
    await asyncio.sleep(0)
    stacks = [*task_stacks(asyncio.get_running_loop()), *thread_stacks(), main_thread_frames()]
    assert any("connect" in str(each) for each in stacks)
    said.add(*stacks)
    waiting.cancel()
    await asyncio.wait([waiting])
