"""A handler that posts batches to an URL, one request for each, confirmed by an answer of 2xx.

Strategy: the request is the unit of everything: of order (a partition's next one begins when its predecessor was
confirmed), of retries, and of giving up. There is no loop of retries here: temporary errors are raised, 429 and 503
with the pause that the receiver asks for, and the failure policy does the rest. Any other answer of 3xx or 4xx will
not change, so it is raised as `RejectedError`.

An answer that got lost proves nothing: the same request is sent again. Each one says in `Idempotency-Key`
which range of which log it holds, and a log's ranges begin where the range before them was confirmed; so a receiver
that remembers the end of each log can drop duplicates, also after a crash, when ranges end elsewhere. A log is named by
what never changes for a message: the cluster, the topic and its id, the partition, and the epoch of the leader that
stored the message. With the epoch, messages that replace others at the end of a truncated log are others.

The receiver is trusted with the messages, and with nothing else: redirects are not followed (they would carry the
headers elsewhere), cookies are not kept, and of a body a bounded part is read.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit

from consumerd.base.credentials import Renewed
from consumerd.base.errors import ConfigError, HandlerFailedError, HandlerLoadError, ZooKeeperError, reason_of
from consumerd.base.settings.kind import checked
from consumerd.base.settings.setting import Count, Seconds
from consumerd.handlers.api import Handler, RejectedError, RetryLaterError
from consumerd.handlers.builtin.http_body import CONTENT_TYPES, BodyFormat, make_body
from consumerd.handlers.context import HandlerContext
from consumerd.handlers.messages import Batch
from consumerd.handlers.secrets import Secret
from consumerd.handlers.threads import in_thread
from consumerd.net.addresses import connect_reason
from consumerd.net.tls import make_tls_context

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession

#: Bytes of an answer that are read; a connection with more of it is closed.
_MAX_ANSWER: Final = 64 << 10
#: Characters of an answer that an error quotes.
_QUOTED: Final = 200
#: Answers besides 5xx that may be others next time: Request Timeout, Too Early, Too Many Requests.
_TRANSIENT: Final = frozenset({408, 425, 429})
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_FIELD_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
#: Headers that describe the content of the request.
_OWN: Final = frozenset(
    {"connection", "content-encoding", "content-length", "content-type", "idempotency-key", "transfer-encoding"}
)


class HttpRequestError(Exception):
    """A request was not confirmed: no answer, or one that asks for another attempt."""


class HttpRejectedError(RejectedError):
    """The receiver refused a batch for good."""


class HttpHandler(Handler):
    """Posts batches. Raises HttpRequestError, HttpRejectedError, RetryLaterError, which the policy acts upon.

    docs/handlers.md says what each option means. Raises ValueError, HandlerLoadError.
    """

    @checked
    def __init__(
        self,
        *,
        url: str,
        format: BodyFormat = "ndjson",  # noqa: A002 - the option's name
        headers: Secret[Mapping[str, str] | None] = None,
        header_files: Mapping[str, str] | None = None,
        gzip: bool = False,
        timeout: Seconds = 30.0,
        tls: Mapping[str, str] | None = None,
        connections: Count = 16,
        max_retry_after: Seconds = 300.0,
        retry_on: Sequence[int] = (),
    ) -> None:
        _check_url(url)
        if not isinstance(retry_on, list | tuple) or not all(
            type(each) is int and 300 <= each < 600 for each in retry_on
        ):
            raise ValueError(f"retry_on must be a list of statuses from 300 to 599, not {retry_on!r}")
        texts, files, pem = _texts("headers", headers), _texts("header_files", header_files), _texts("tls", tls)
        _check_headers(texts, files)
        if unknown := pem.keys() - {"ca", "certificate", "key"}:
            raise ValueError(f"tls has no key {min(unknown)!r}: there are ca, certificate and key")
        if "key" in pem and "certificate" not in pem:
            raise ValueError("tls.key needs tls.certificate")
        try:
            import aiohttp  # noqa: PLC0415 - of the extra
        except ImportError as error:
            raise HandlerLoadError(
                "the handler 'http' needs the extra `http`: pip install 'consumerd[http]'."
            ) from error
        self._url = url
        #: Its name in errors: a query may hold a token.
        self._shown = url.partition("?")[0]
        self._format = format
        self._gzip = gzip
        self._timeout = float(timeout)
        self._connections = connections
        self._max_retry_after = float(max_retry_after)
        self._transient = _TRANSIENT | frozenset(retry_on)
        self._secrets = _Secrets(texts, _paths(files), _paths(pem))
        self._failures: tuple[type[Exception], ...] = (aiohttp.ClientError, TimeoutError, OSError)
        #: Waiting for a connection does not count as a request's time.
        self._turns = asyncio.Semaphore(connections)
        self._session: ClientSession | None = None
        self._present: Callable[[], tuple[dict[str, str], ssl.SSLContext]] | None = None
        self._context: HandlerContext | None = None

    async def start(self, context: HandlerContext) -> None:
        """Read the files. No request is sent: a receiver that is unavailable is met by retries of the first batch."""
        import aiohttp  # noqa: PLC0415

        await self.stop()
        self._context = context
        self._present = await in_thread(self._secrets.renewed)
        headers = {"Content-Type": CONTENT_TYPES[self._format]}
        if self._gzip:
            headers["Content-Encoding"] = "gzip"
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._connections),
            timeout=aiohttp.ClientTimeout(total=self._timeout),
            headers=headers,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,  # an answer may be a bomb
        )

    async def check_online(self) -> str:
        """Connect to the receiver, with TLS if its URL says so; nothing is sent. Raises HandlerFailedError."""
        url = urlsplit(self._url)
        port = url.port or (443 if url.scheme == "https" else 80)
        present = await in_thread(self._secrets.renewed)
        _, tls = await in_thread(present)
        try:
            async with asyncio.timeout(self._timeout):
                _, writer = await asyncio.open_connection(
                    url.hostname, port, ssl=tls if url.scheme == "https" else None
                )
        except OSError as error:  # TimeoutError, too
            raise HandlerFailedError(
                f"cannot connect to {self._shown}: {connect_reason(error)}; check options.url."
            ) from error
        writer.transport.abort()
        return f"{url.hostname}:{port} accepts connections{' with TLS' if url.scheme == 'https' else ''}"

    async def stop(self) -> None:
        """Close the connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def handle(self, batch: Batch) -> None:
        """Return when the receiver has answered with 2xx, and the answer has come whole."""
        if self._session is None or self._present is None:
            raise HandlerFailedError("handler 'http' is not started.")
        if not len(batch):
            return
        headers, tls = await in_thread(self._present) if self._secrets.in_files else self._present()
        if batch.contiguous:
            headers = {**headers, "Idempotency-Key": idempotency_key(batch, await self._cluster())}
        body = await make_body(batch, self._format, compressed=self._gzip)
        try:
            async with (
                self._turns,
                self._session.post(self._url, data=body, headers=headers, ssl=tls, allow_redirects=False) as response,
            ):
                if 200 <= response.status < 300:
                    await _read(response)
                else:
                    await self._refuse(response)
        except self._failures as error:
            raise HttpRequestError(f"POST {self._shown}: {reason_of(error)}") from error
        batch.mark(len(batch))

    async def _cluster(self) -> str | None:
        assert self._context is not None
        try:
            return await self._context.cluster()
        except ZooKeeperError as error:  # without the name a repeated request would have another key
            raise HttpRequestError(f"POST {self._shown}: the cluster's name cannot be read: {error}") from error

    async def _refuse(self, response: ClientResponse) -> None:
        """Raise the error that an answer other than 2xx means."""
        answer = b""
        with suppress(*self._failures):  # the status is known, and says enough
            answer = await _read(response)
        status = response.status
        words = [f"POST {self._shown}: {status}", _printable(response.reason or "")]
        if 300 <= status < 400 and (location := response.headers.get("Location")):
            words.append(f"to {_printable(location)}: redirects are not followed, set options.url")
        elif answer:
            words.append(f"({_printable(answer.decode(errors='replace'))})")
        said = " ".join(word for word in words if word)
        if status < 500 and status not in self._transient:
            raise HttpRejectedError(said)
        assert self._context is not None
        pause = retry_after(response.headers.get("Retry-After"), self._context.clock.wall())
        if pause is not None:
            raise RetryLaterError(said, min(pause, self._max_retry_after))
        raise HttpRequestError(said)


#: By the name of its entry point.
http: Final = HttpHandler


def idempotency_key(batch: Batch, cluster: str | None) -> str:
    """`cluster/topic/topic id/partition/leader epoch/start-next`; equal for equal messages alone, if Kafka tells.

    Names are percent-encoded, and what is unknown is `-`. A range holds all messages of the log that have this epoch
    and lie between its two offsets, whichever member sends it.
    """
    epoch = batch.leader_epoch
    log = [cluster, batch.topic, batch.topic_id, batch.partition.name, None if epoch is None else str(epoch)]
    place = "/".join(quote(each, safe="") if each else "-" for each in log)
    return f"{place}/{batch.start_offset}-{batch.next_offset}"


def retry_after(value: str | None, now: float) -> float | None:
    """Seconds of a Retry-After header (RFC 9110, 10.2.3) at the time `now`; None where there is none that is valid."""
    if value is None:
        return None
    if value.isascii() and value.isdigit():
        return float(value[:12]) if len(value) <= 12 else float("inf")
    try:
        when = parsedate_to_datetime(value[:64])
        if when.tzinfo is None:
            when = when.replace(tzinfo=UTC)
        return max(0.0, (when - datetime.fromtimestamp(now, UTC)).total_seconds())
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


async def _read(response: ClientResponse) -> bytes:
    """The answer's body, or the beginning of it."""
    found = bytearray()
    while len(found) < _MAX_ANSWER and (piece := await response.content.read(_MAX_ANSWER - len(found))):
        found += piece
    return bytes(found)


def _printable(text: str) -> str:
    """The beginning of a text from outside, on one line, with blanks for control characters."""
    cut = text[: 4 * _QUOTED]
    return " ".join("".join(char if char.isprintable() else " " for char in cut).split())[:_QUOTED]


def _check_url(url: object) -> None:
    if not isinstance(url, str):
        raise ValueError(f"url must be text, not {url!r}")
    try:
        parts = urlsplit(url)
        wrong = parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0
    except ValueError as error:
        raise ValueError(f"url is invalid: {error}") from None
    if wrong or not url.isprintable() or " " in url:
        raise ValueError("url must be of the form http://host:port/path or https://host:port/path")
    if parts.username is not None or parts.password is not None:
        raise ValueError("url must not contain a user or password; set an Authorization header in options.headers")


def _texts(option: str, value: Mapping[str, Any] | None) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(each, str) and each for each in value.values()):
        raise ValueError(f"{option} must be a table whose values are non-empty text")
    return {str(name): text for name, text in value.items()}


def _check_headers(texts: Mapping[str, str], files: Mapping[str, str]) -> None:
    names = [name.lower() for name in (*texts, *files)]
    for name in (*texts, *files):
        if not _TOKEN.fullmatch(name):
            raise ValueError(f"{name!r} is not a valid header name")
        if name.lower() in _OWN:
            raise ValueError(f"the header {name} is set by the handler itself")
        if names.count(name.lower()) > 1:
            raise ValueError(f"the header {name} is given twice")
    for name, text in texts.items():
        if not _FIELD_VALUE.fullmatch(text):
            raise ValueError(f"the value of the header {name} has characters that are not allowed in a header")


def _paths(texts: Mapping[str, str]) -> dict[str, Path]:
    return {name: Path(text) for name, text in texts.items()}


class _Secrets:
    """The headers, and the context of TLS: of the values in `headers`, and of files."""

    def __init__(self, headers: dict[str, str], files: dict[str, Path], pem: dict[str, Path]) -> None:
        self._texts = headers
        self._files = files
        self._pem = pem
        self.in_files = bool(files or pem)

    def renewed(self) -> Callable[[], tuple[dict[str, str], ssl.SSLContext]]:
        """Read the files; return what reads them again once they have changed. Both raise HandlerFailedError."""
        headers = Renewed("handler 'http': header_files", self._files.values(), self._read_headers)
        tls = Renewed("handler 'http': tls", self._pem.values(), self._read_tls)
        return lambda: (headers.now(), tls.now())

    def _read_headers(self) -> dict[str, str]:
        headers = dict(self._texts)
        for name, path in self._files.items():
            try:
                text = path.read_text("latin-1").strip()
            except OSError as error:
                raise HandlerFailedError(
                    f"handler 'http': header_files.{name}: {path} cannot be read: {error.strerror}."
                ) from error
            if not text or not _FIELD_VALUE.fullmatch(text):
                raise HandlerFailedError(f"handler 'http': header_files.{name}: {path} must hold one line of text.")
            headers[name] = text
        return headers

    def _read_tls(self) -> ssl.SSLContext:
        try:
            pem = self._pem
            return make_tls_context(ca=pem.get("ca"), certificate=pem.get("certificate"), key=pem.get("key"))
        except ConfigError as error:
            raise HandlerFailedError(f"handler 'http': tls.{error}") from error
