"""The handler `http` with a real server, which answers well, badly, or not at all."""

from __future__ import annotations

import asyncio
import builtins
import random
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog
from aiohttp import web

from consumerd.base.errors import HandlerFailedError, HandlerLoadError, ZooKeeperError
from consumerd.base.partition import UNKNOWN_LOG, LogId, TopicPartition
from consumerd.handlers import (
    Batch,
    Handler,
    HandlerContext,
    KeyedMessage,
    Letter,
    RetryLaterError,
    RetryPolicy,
    load_handler,
    retrying,
)
from consumerd.handlers.builtin.http import HttpRejectedError, HttpRequestError, idempotency_key, retry_after
from consumerd.handlers.secrets import HIDDEN, shown_options
from consumerd.handlers.sparse_content import SparseContent
from tests.conftest import TlsFiles
from tests.support.receiver import OncePerKey, Receiver

MakeBatch = Callable[..., Batch]


@asynccontextmanager
async def started(
    url: str, clock: Any, policy: RetryPolicy | None = None, *, member: Any = None, **options: Any
) -> AsyncIterator[Handler]:
    """The handler; in its policy, if one is given."""
    handler = load_handler("http", {"url": url, **options})
    letters = Letters() if policy is not None and policy.on_failure == "dead_letter" else None
    if policy is not None:
        handler = retrying(handler, policy, clock=clock, rng=random.Random(1), name="http", dead_letters=letters)
    await handler.start(HandlerContext("g", "g_1", clock, **({} if member is None else {"member": member})))
    try:
        yield handler
    finally:
        await handler.stop()


class Letters:
    written: Sequence[Letter] = ()

    async def start(self) -> None: ...

    async def write(self, letters: Sequence[Letter]) -> None:
        Letters.written = [*Letters.written, *letters]

    async def stop(self) -> None: ...


def records(batch: Batch) -> list[tuple[str, int, int, int, int, str]]:
    return [(*message.identity, message.payload.decode()) for message in batch.messages()]


def read(found: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [
        tuple(each[name] for name in ("topic", "broker", "partition", "offset", "index", "payload")) for each in found
    ]


# -- requests


@pytest.mark.parametrize("gzip", [False, True])
@pytest.mark.parametrize(("form", "kind"), [("ndjson", "application/x-ndjson"), ("json", "application/json")])
@pytest.mark.usefixtures("either_codec")
async def test_posts_each_batch_with_all_identities(
    make_batch: MakeBatch, clock: Any, form: str, kind: str, gzip: bool
) -> None:
    batches = [make_batch(b"one", [b"two", b"new\nline"], b'"', start=71, topic="a b/c"), make_batch(b"x", start=400)]
    async with Receiver() as receiver, started(receiver.url, clock, format=form, gzip=gzip) as handler:
        for batch in batches:
            await handler.handle(batch)
        assert [read(request.records) for request in receiver.requests] == [records(batch) for batch in batches]
        first = receiver.requests[0].headers
        assert first["Content-Type"] == kind
        assert int(first["Content-Length"]) == len(receiver.requests[0].body)
        assert first["Idempotency-Key"] == f"-/a%20b%2Fc/-/0-0/-/71-{batches[0].next_offset}"
    assert [batch.handled for batch in batches] == [4, 1]


@pytest.mark.parametrize("form", ["ndjson", "json"])
async def test_sends_a_large_body_in_chunks(make_batch: MakeBatch, clock: Any, form: str) -> None:
    batch = make_batch([b"\x01" * 20] * 70_000)  # one compressed message
    async with Receiver() as receiver, started(receiver.url, clock, format=form) as handler:
        await handler.handle(batch)
        (request,) = receiver.requests
        assert request.headers["Transfer-Encoding"] == "chunked"
        assert len(request.body) > 10 << 20
        assert [record["index"] for record in request.records] == list(range(70_000))


async def test_sends_nothing_for_a_batch_without_messages(make_batch: MakeBatch, clock: Any) -> None:
    async with Receiver() as receiver, started(receiver.url, clock) as handler:
        await handler.handle(make_batch())
        assert receiver.requests == []


async def test_sends_headers_from_options_and_files(make_batch: MakeBatch, clock: Any, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("Bearer s3cret\n")
    options: dict[str, Any] = {"headers": {"X-Source": "here"}, "header_files": {"Authorization": f"{tmp_path}/token"}}
    async with Receiver() as receiver, started(receiver.url, clock, **options) as handler:
        await handler.handle(make_batch(b"a"))
        assert receiver.requests[0].headers["X-Source"] == "here"
        assert receiver.requests[0].headers["Authorization"] == "Bearer s3cret"
    assert shown_options("http", options)["headers"] == HIDDEN


async def test_messages_of_lanes_have_no_key_because_their_ranges_overlap(make_batch: MakeBatch, clock: Any) -> None:
    batch = make_batch([b"a", b"b", b"c"])
    share = Batch(batch.partition, SparseContent([*batch.messages()][::2]))
    async with Receiver() as receiver, started(receiver.url, clock) as handler:
        await handler.handle(share)
        assert "Idempotency-Key" not in receiver.requests[0].headers


async def test_key_is_the_same_for_a_repeated_batch_and_another_for_any_other(make_batch: MakeBatch) -> None:
    assert idempotency_key(make_batch(b"a"), "c") == idempotency_key(make_batch(b"b"), "c") == "c/t/-/0-0/-/0-11"
    others = [make_batch(b"a", start=1), make_batch(b"ab"), make_batch(b"a", partition=1), make_batch(b"a", topic="u")]
    assert len({idempotency_key(each, "c") for each in others}) == 4
    assert idempotency_key(keyed(5), "a/b") == "a%2Fb/t/-/3/-/5-6"


def keyed(*offsets: int, log: LogId = UNKNOWN_LOG) -> Batch:
    place = TopicPartition.numbered("t", 3)
    messages = [KeyedMessage(place, each, 0, each + 1, b"%d" % each, None, 1, 0, ()) for each in offsets]
    return Batch(place, SparseContent(messages, log=log, contiguous=True))


async def test_key_names_the_log_so_that_nothing_of_another_one_is_dropped(clock: Any) -> None:
    """One receiver and four logs: of two clusters, of a topic that was created again, and one that was truncated."""
    first, again = LogId(b"\x01" * 16, 3), LogId(b"\x02" * 16, 0)
    sent = [
        ("one", keyed(0, 1, 2, log=first)),
        ("one", keyed(1, 2, 3, log=first)),  # after a crash: from the committed offset, and it ends elsewhere
        ("one", keyed(2, 3, log=first._replace(leader_epoch=4))),  # truncated at 2
        ("one", keyed(0, 1, log=again)),
        ("two", keyed(0, 1, log=first)),
    ]
    kept, cluster = OncePerKey(), Cluster()
    async with Receiver() as receiver, started(receiver.url, clock, member=cluster) as handler:
        for cluster.name, batch in sent:
            await handler.handle(batch)
        for request in receiver.requests:
            kept.take(request)
        assert receiver.requests[0].key == "one/t/AQEBAQEBAQEBAQEBAQEBAQ/3/3/0-3"
    assert [record["offset"] for record in kept.records] == [0, 1, 2, 3, 2, 3, 0, 1, 0, 1]


async def test_waits_for_a_name_that_cannot_be_read_so_that_a_repeated_request_has_the_same_key(clock: Any) -> None:
    cluster = Cluster(failures=[ZooKeeperError("it is away"), ZooKeeperError("it is away")])
    async with Receiver() as receiver, started(receiver.url, clock, RetryPolicy(), member=cluster) as handler:
        await handler.handle(keyed(0))
        assert [request.key for request in receiver.requests] == ["one/t/-/3/-/0-1"]


class Cluster:
    """The port of a member that knows its cluster's name, after some failures."""

    partitions = ()

    def __init__(self, failures: Sequence[Exception] = ()) -> None:
        self.name = "one"
        self._failures = [*failures]

    async def cluster(self) -> str:
        if self._failures:
            raise self._failures.pop()
        return self.name


async def test_posts_over_tls_with_a_client_certificate(make_batch: MakeBatch, clock: Any, tls_files: TlsFiles) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=tls_files.authority)
    context.load_cert_chain(tls_files.authority.with_name("server.pem"))
    context.verify_mode = ssl.CERT_REQUIRED
    ours = {"ca": str(tls_files.authority), "certificate": str(tls_files.client), "key": str(tls_files.client)}
    async with Receiver(context) as receiver:
        async with started(receiver.url, clock, tls=ours) as handler:
            await handler.handle(make_batch(b"a"))
        assert len(receiver.requests) == 1
        for theirs, words in ((None, "certificate verify failed"), ({"ca": ours["ca"]}, "POST https://127.0.0.1")):
            async with started(receiver.url, clock, tls=theirs) as handler:
                with pytest.raises(HttpRequestError, match=words):
                    await handler.handle(make_batch(b"a"))
        assert len(receiver.requests) == 1


# -- answers


async def test_retries_failures_of_the_server_with_growing_pauses_and_the_same_key(
    make_batch: MakeBatch, clock: Any
) -> None:
    batch = make_batch(b"a", b"b")
    async with Receiver() as receiver, started(receiver.url, clock, RetryPolicy(max_attempts=5)) as handler:
        receiver.script += [web.Response(status=500), web.Response(status=502), web.Response(status=503)]
        with structlog.testing.capture_logs() as logs:
            await handler.handle(batch)
        assert len({request.key for request in receiver.requests}) == 1
        assert len({request.body for request in receiver.requests}) == 1
        assert len(receiver.requests) == 4
    assert [pause <= bound for pause, bound in zip(clock.sleeps, (0.1, 0.2, 0.4), strict=True)] == [True] * 3
    assert [line["reason"] for line in logs] == [
        f"HttpRequestError: POST {receiver.url}: {status}"
        for status in ("500 Internal Server Error", "502 Bad Gateway", "503 Service Unavailable")
    ]
    assert batch.handled == 2


@pytest.mark.parametrize(("status", "asked", "pause"), [(429, "7", 7.0), (503, "2.5", None), (429, "99999999", 60.0)])
async def test_waits_as_long_as_the_server_asks_up_to_a_limit(
    make_batch: MakeBatch, clock: Any, status: int, asked: str, pause: float | None
) -> None:
    async with (
        Receiver() as receiver,
        started(receiver.url, clock, RetryPolicy(max_attempts=2), max_retry_after=60.0) as handler,
    ):
        receiver.script.append(web.Response(status=status, headers={"Retry-After": asked}))
        await handler.handle(make_batch(b"a"))
        assert len(receiver.requests) == 2
    if pause is None:
        assert clock.sleeps[0] <= 0.1
    else:
        assert clock.sleeps == [pause]


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("120", 120.0),
        ("0", 0.0),
        ("Tue, 14 Nov 2023 22:13:50 GMT", 30.0),
        ("Tue, 14 Nov 2023 22:13:50 -0000", 30.0),
        ("Tue, 14 Nov 2023 22:00:00 GMT", 0.0),
        ("-1", None),
        ("1.5", None),
        ("soon", None),
        ("", None),
        ("²", None),
        ("Tue, 99 Nov 99999 22:00:00 GMT", None),
        ("9" * 5000, float("inf")),
    ],
)
async def test_reads_retry_after(value: str | None, seconds: float | None) -> None:
    assert retry_after(value, 1_700_000_000.0) == seconds


@pytest.mark.parametrize("status", [400, 401, 404, 413, 422])
async def test_a_refused_batch_fails_at_once(make_batch: MakeBatch, clock: Any, status: int) -> None:
    async with Receiver() as receiver, started(receiver.url, clock) as handler:
        receiver.script.append(web.Response(status=status, text="field `x`\x1b[31m is\nmissing"))
        batch = make_batch(b"a")
        with pytest.raises(HttpRejectedError, match=rf": {status} .* \(field `x` \[31m is missing\)$"):
            await handler.handle(batch)
        assert not batch.counted


@pytest.mark.parametrize("on_failure", ["stop", "skip", "dead_letter"])
async def test_the_policy_applies_to_a_refused_batch_without_further_attempts(
    make_batch: MakeBatch, clock: Any, on_failure: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Letters, "written", ())
    batch, after = make_batch(b"a", b"b"), make_batch(b"c", start=22)
    async with Receiver() as receiver, started(receiver.url, clock, RetryPolicy(on_failure=on_failure)) as handler:
        receiver.script.append(web.Response(status=400))
        if on_failure == "stop":
            with pytest.raises(HandlerFailedError, match=r"failed once at offset 0 of t/0-0 \(HttpRejectedError"):
                await handler.handle(batch)
        else:
            await handler.handle(batch)
            await handler.handle(after)
        assert len(receiver.requests) == (1 if on_failure == "stop" else 2)
    assert clock.sleeps == []
    assert batch.handled == (0 if on_failure == "stop" else 2)
    written = [(each.message.payload, each.attempts) for each in Letters.written]
    assert written == ([(b"a", 1), (b"b", 1)] if on_failure == "dead_letter" else [])


async def test_retries_statuses_that_the_options_name(make_batch: MakeBatch, clock: Any) -> None:
    async with (
        Receiver() as receiver,
        started(receiver.url, clock, RetryPolicy(max_attempts=2), retry_on=[404]) as handler,
    ):
        receiver.script.append(web.Response(status=404))
        await handler.handle(make_batch(b"a"))
        assert len(receiver.requests) == 2


async def test_does_not_follow_redirects(make_batch: MakeBatch, clock: Any) -> None:
    async with Receiver() as other, Receiver() as receiver, started(receiver.url, clock) as handler:
        receiver.script.append(web.Response(status=307, headers={"Location": other.url}))
        with pytest.raises(HttpRejectedError, match=r"307 Temporary Redirect to http.* redirects are not followed"):
            await handler.handle(make_batch(b"a"))
        assert other.requests == []


async def test_reads_a_bounded_part_of_an_answer(make_batch: MakeBatch, clock: Any) -> None:
    written = 0
    ended = asyncio.Event()

    async def endless(request: web.Request) -> web.StreamResponse:
        nonlocal written
        response = web.StreamResponse(status=200)
        await response.prepare(request)
        try:
            while True:
                await response.write(bytes(64 << 10))
                written += 64 << 10
        finally:
            ended.set()

    async with Receiver() as receiver, started(receiver.url, clock) as handler:
        receiver.script.append(endless)
        await handler.handle(make_batch(b"a"))
        async with asyncio.timeout(20):
            await ended.wait()
        assert written < 64 << 20  # what the buffers of both sides take
        await handler.handle(make_batch(b"b"))
        assert len(receiver.requests) == 2


async def test_a_slow_answer_is_a_failed_attempt(make_batch: MakeBatch, clock: Any) -> None:
    async def silent(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(60)
        raise AssertionError

    async with Receiver() as receiver, started(receiver.url, clock, timeout=0.2) as handler:
        receiver.script.append(silent)
        with pytest.raises(HttpRequestError, match=r"POST http://127.0.0.1:\d+/events: "):
            await handler.handle(make_batch(b"a"))
        await handler.handle(make_batch(b"a"))


# -- connections


async def test_uses_as_many_connections_as_allowed_and_waiting_for_one_takes_no_time_of_the_request(
    make_batch: MakeBatch, clock: Any
) -> None:
    under_way = most = 0

    async def slow(request: web.Request) -> web.StreamResponse:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.3)
        under_way -= 1
        return web.Response()

    async with Receiver() as receiver, started(receiver.url, clock, timeout=3.0, connections=1) as handler:
        receiver.script += [slow] * 12  # longer than the timeout, all together
        batches = [make_batch(b"a", partition=number) for number in range(12)]
        await asyncio.gather(*(handler.handle(batch) for batch in batches))
        assert len(receiver.requests) == 12
    assert most == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhal",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000 + b"\r\n\r\n",
        b"\x16\x03\x01\x02\x00 this is not HTTP\r\n\r\n",
        b"SSH-2.0-OpenSSH_9\r\n",
    ],
)
async def test_an_incomplete_answer_does_not_confirm(make_batch: MakeBatch, clock: Any, answer: bytes) -> None:
    requests = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal requests
        requests += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer if requests == 1 else b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        batch = make_batch(b"a")
        async with started(url, clock) as handler:
            with pytest.raises(HttpRequestError, match=r"POST http://127.0.0.1:\d+/: \w+"):
                await handler.handle(batch)
            assert not batch.counted
            await handler.handle(batch)
    assert requests == 2


async def test_an_unavailable_server_is_retried_until_it_is_there(make_batch: MakeBatch, clock: Any) -> None:
    async with Receiver() as receiver:
        url = receiver.url
    async with started(url, clock, RetryPolicy(max_attempts=3)) as handler:
        with pytest.raises(HandlerFailedError, match=r"failed 3 times at offset 0 .*HttpRequestError: POST"):
            await handler.handle(make_batch(b"a"))


async def test_cancellation_closes_the_connection(make_batch: MakeBatch, clock: Any) -> None:
    there, gone = asyncio.Event(), asyncio.Event()

    async def waiting(request: web.Request) -> web.StreamResponse:
        there.set()
        while request.transport is not None and not request.transport.is_closing():
            await asyncio.sleep(0.01)
        gone.set()
        return web.Response()

    async with Receiver() as receiver, started(receiver.url, clock) as handler:
        receiver.script.append(waiting)
        batch = make_batch(b"a")
        task = asyncio.create_task(handler.handle(batch))
        await there.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(20):
            await gone.wait()
        assert not batch.counted


# -- options


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"url": 5}, "url must be text"),
        ({"url": "ftp://x/"}, "url must be of the form"),
        ({"url": "http:///x"}, "url must be of the form"),
        ({"url": "http://a:99999/"}, "url is invalid"),
        ({"url": "http://a/\r\nX: y"}, "url must be of the form"),
        ({"url": "http://user:secret@a/"}, "url must not contain a user or password"),
        ({"format": "xml"}, "format must be ndjson or json"),
        ({"gzip": 1}, "gzip must be true or false"),
        ({"timeout": 0}, "timeout must be a positive number"),
        ({"timeout": True}, "timeout must be a positive number"),
        ({"max_retry_after": float("inf")}, "max_retry_after must be a positive number"),
        ({"connections": 0}, "connections must be a positive whole number"),
        ({"retry_on": [200]}, "retry_on must be a list of statuses"),
        ({"headers": {"X": 5}}, "headers must be a table"),
        ({"headers": {"X y": "z"}}, "'X y' is not a valid header name"),
        ({"headers": {"X": "a\nb"}}, "the value of the header X has characters"),
        ({"headers": {"content-length": "5"}}, "is set by the handler itself"),
        ({"headers": {"X": "a"}, "header_files": {"x": "/y"}}, "is given twice"),
        ({"tls": {"verify": "no"}}, "tls has no key 'verify'"),
        ({"tls": {"key": "/k"}}, "tls.key needs tls.certificate"),
        ({"tiemout": 5}, "did you mean 'timeout'"),
    ],
)
async def test_names_each_wrong_option(options: dict[str, Any], words: str) -> None:
    with pytest.raises(HandlerLoadError, match=words) as caught:
        load_handler("http", {"url": "http://127.0.0.1/", **options})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tls": {"ca": "missing"}}, "tls.ca: .*missing: No such file"),
        ({"tls": {"certificate": "file"}}, "tls.certificate: .*file: "),
        ({"header_files": {"X": "missing"}}, "header_files.X: .*missing cannot be read: No such file"),
        ({"header_files": {"X": "file"}}, "header_files.X: .*file must hold one line"),
    ],
)
async def test_names_files_that_cannot_be_used(
    tmp_path: Path, clock: Any, options: dict[str, dict[str, str]], words: str
) -> None:
    (tmp_path / "file").write_text("two\nlines")
    there: dict[str, Any] = {
        option: {name: str(tmp_path / file) for name, file in table.items()} for option, table in options.items()
    }
    with pytest.raises(HandlerFailedError, match=words):
        async with started("http://127.0.0.1/", clock, **there):
            raise AssertionError


async def test_errors_do_not_show_the_query(make_batch: MakeBatch, clock: Any) -> None:
    async with Receiver() as receiver, started(f"{receiver.url}?token=s3cret", clock) as handler:
        receiver.script.append(web.Response(status=500))
        with pytest.raises(HttpRequestError) as caught:
            await handler.handle(make_batch(b"a"))
        assert "s3cret" not in str(caught.value)


async def test_names_the_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *arguments: Any, **keywords: Any) -> Any:
        if name == "aiohttp":
            raise ModuleNotFoundError(name="aiohttp")
        return real(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(HandlerLoadError, match=r"^the handler 'http' needs the extra `http`: pip install"):
        load_handler("http", {"url": "http://127.0.0.1/"})


async def test_a_batch_before_the_start_is_refused(make_batch: MakeBatch) -> None:
    with pytest.raises(HandlerFailedError, match="is not started"):
        await load_handler("http", {"url": "http://127.0.0.1/"}).handle(make_batch(b"a"))


async def test_an_answer_to_wait_is_an_error_with_seconds() -> None:
    assert RetryLaterError("x", -5).seconds == 0.0
