"""One request by HTTP from a thread: bounded in time and size, no redirect followed, every failure one sentence.

Strategy: the standard library alone, since Spark's executors use it, too. Proxies are those of the environment.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from http.client import HTTPException, HTTPResponse
from ssl import SSLCertVerificationError, SSLContext
from typing import Any, Final, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request, build_opener

from consumerd.base.errors import reason_of
from consumerd.net.errors import ConnectError

_MOST_BYTES: Final = 4 << 20
#: Statuses after which the same request may succeed.
_TRANSIENT: Final = frozenset({408, 425, 429})
_FIRST_SERVER_ERROR: Final = 500


class HttpAnswer(NamedTuple):
    """The status of an answer, and its body."""

    status: int
    body: bytes

    @property
    def transient(self) -> bool:
        """Whether the same request may succeed later."""
        return self.status in _TRANSIENT or self.status >= _FIRST_SERVER_ERROR


class _NoRedirect(HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Follow no redirect, which could lead credentials elsewhere."""


def ask(
    url: str,
    *,
    headers: Mapping[str, str],
    body: bytes | None = None,
    tls: Callable[[], SSLContext],
    timeout: float,
    ca_key: str = "ca",
) -> HttpAnswer:
    """Return the answer, whatever its status; a POST where there is a `body`. Blocks.

    `timeout`: seconds for each step. `ca_key` is the setting that names the authorities. Raises ConnectError with the
    reason, without the URL; its cause is dropped, as it may have credentials.
    """
    handlers: list[Any] = [_NoRedirect()]
    if url.startswith("https:"):
        handlers.append(HTTPSHandler(context=tls()))
    request = Request(url, body, dict(headers))  # noqa: S310 - callers allow http and https alone
    try:
        with build_opener(*handlers).open(request, timeout=timeout) as answer:
            return HttpAnswer(answer.status, _read(answer, timeout))
    except HTTPError as error:
        with error:
            try:
                return HttpAnswer(error.code, _read(error, timeout))
            except (OSError, HTTPException):
                return HttpAnswer(error.code, b"")
    except (OSError, HTTPException, ValueError) as error:
        raise ConnectError(_reason(error, ca_key)) from None


def _read(answer: HTTPResponse | HTTPError, timeout: float) -> bytes:
    body, give_up = b"", time.monotonic() + timeout
    while piece := answer.read1(_MOST_BYTES):
        body += piece
        if len(body) > _MOST_BYTES:
            raise OSError(f"the answer is larger than {_MOST_BYTES} bytes")
        if time.monotonic() > give_up:
            raise TimeoutError
    return body


def _reason(error: Exception, ca_key: str) -> str:
    reason = error.reason if isinstance(error, URLError) and isinstance(error.reason, Exception) else error
    if isinstance(reason, SSLCertVerificationError):
        return f"its certificate is not accepted ({reason.verify_message}); check {ca_key}"
    if isinstance(reason, TimeoutError):
        return "no answer in time"
    return reason_of(reason) if isinstance(reason, OSError) else f"invalid response ({type(reason).__name__})"
