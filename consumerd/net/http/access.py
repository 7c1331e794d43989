"""Access control for the status of a daemon: who may read it, and who may change something.

Strategy: pages with data require a token or a client certificate. On a loopback address without either, local
programs may read, but not change anything. A foreign page may make a browser send requests: a page of another site
cannot read answers, but a name that it had resolved to loopback could be its own (DNS rebinding), so without a proof
the request has to name a loopback host; and what changes something carries a word that only our page knows.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from consumerd.base.errors import ConfigError

#: The shortest token that is taken: a guess costs nothing but a request.
SHORTEST_TOKEN: Final = 16


class AccessRefusedError(Exception):
    """The request may not see it. `status` is that of HTTP: 401 where a token would help, else 403."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server that listens there."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True)
class Access:
    """The rules of one server that listens on `host`. `mutual`: every client has shown a certificate."""

    host: str
    token: str | None = field(default=None, repr=False)
    mutual: bool = False
    _key: bytes = field(default_factory=lambda: os.urandom(32), init=False, repr=False)

    def __post_init__(self) -> None:
        if self.token is not None and len(self.token) < SHORTEST_TOKEN:
            raise ConfigError(
                f"health.token must have at least {SHORTEST_TOKEN} characters, not {len(self.token)}: make one with "
                "`openssl rand -hex 32`."
            )

    @property
    def is_private(self) -> bool:
        """Whether data may be served at all."""
        return self.mutual or self.token is not None or is_loopback(self.host)

    @property
    def may_change(self) -> bool:
        """Whether there is a way to be authorised for changes."""
        return self.mutual or self.token is not None

    def check(self, headers: Mapping[str, str]) -> None:
        """Raise AccessRefusedError if a request with these headers may not see data."""
        if not self.is_private:
            raise AccessRefusedError(403, "the status needs a token or client certificates here")
        if self.token is not None:
            shown = _shown_token(headers.get("Authorization", ""))
            if shown is None or not _are_equal(shown, self.token):
                raise AccessRefusedError(401, "a token is needed: see health.token")
        elif not self.mutual and not is_loopback(_host_name(headers.get("Host", ""))):
            raise AccessRefusedError(403, "name this server by a loopback address, such as 127.0.0.1")

    def check_change(self, headers: Mapping[str, str], word: str) -> None:
        """Raise AccessRefusedError if a request may not change anything; `word` is the one that it came with."""
        self.check(headers)
        if not self.may_change:
            raise AccessRefusedError(403, "changes need health.token or health.tls.client_ca")
        if not _are_equal(word, self.word):
            raise AccessRefusedError(403, "the form is from an earlier start of the daemon; reload the page")

    @property
    def word(self) -> str:
        """The secret in the forms of the status page, valid as long as this process lives."""
        import hmac  # noqa: PLC0415 - as below

        return hmac.digest(self._key, b"form", "sha256").hex()


def _are_equal(shown: str, expected: str) -> bool:
    """Compare in a time that reveals nothing: digests have one length for every text."""
    import hashlib  # noqa: PLC0415 - with hmac it takes up to 0.8 MiB, which a daemon without requests keeps free
    import hmac  # noqa: PLC0415

    shown_digest, digest = (
        hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest() for text in (shown, expected)
    )
    return hmac.compare_digest(shown_digest, digest)


def _shown_token(header: str) -> str | None:
    """The token of an Authorization header: Bearer, or the password of Basic, which browsers ask for."""
    scheme, _, value = header.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    if scheme.lower() == "basic":
        try:
            _, _, password = base64.b64decode(value.strip(), validate=True).decode("utf-8").partition(":")
        except (binascii.Error, ValueError):
            return None
        return password
    return None


def _host_name(header: str) -> str:
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0]
