"""An identity provider on loopback: signed JWTs for client credentials, its public keys (JWKS), and its failures."""

from __future__ import annotations

import base64
import json
import ssl
import time
from collections import deque
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl

from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256

from tests.support.http_thread import QuietHandler, ThreadedServer

CLIENT, CLIENT_SECRET = "events-app", "hush:hush/hush hush%"
AUDIENCE = "kafka"


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _number(number: int) -> str:
    return _encoded(number.to_bytes((number.bit_length() + 7) // 8))


class TokenServer(ThreadedServer):
    """Serves `url` (the token endpoint) and `jwks_url` from a thread while it is entered.

    `claims` are changed or added in each token; `lifetime` in seconds. `script`: what the next requests get instead, as
    (status, body), or a function that returns it and may wait.
    """

    def __init__(self, *, tls: ssl.SSLContext | None = None, lifetime: float = 3600.0) -> None:
        self.claims: dict[str, Any] = {}
        self.lifetime = lifetime
        self.script: deque[tuple[int, bytes] | Callable[[], tuple[int, bytes]]] = deque()
        self.headers: dict[str, str] = {}
        #: Headers and form of each request for a token.
        self.requests: list[tuple[dict[str, str], dict[str, str]]] = []
        self.tokens: list[str] = []
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        server = self

        class Handler(QuietHandler):
            def do_POST(self) -> None:  # noqa: N802 - the name that http.server calls
                form = dict(parse_qsl(self.rfile.read(int(self.headers["Content-Length"])).decode()))
                server.requests.append((dict(self.headers), form))
                self.answer(*server.answer(), server.headers)

            def do_GET(self) -> None:  # noqa: N802 - the name that http.server calls
                self.answer(200, json.dumps(server.jwks()).encode())

        super().__init__(Handler, tls=tls)
        self.url, self.jwks_url = f"{self.base}/token", f"{self.base}/jwks"

    def answer(self) -> tuple[int, bytes]:
        """Return the next response."""
        if self.script:
            planned = self.script.popleft()
            return planned() if callable(planned) else planned
        self.tokens.append(self.issue())
        body = {"access_token": self.tokens[-1], "token_type": "Bearer", "expires_in": self.lifetime}
        return 200, json.dumps(body).encode()

    def issue(self) -> str:
        """Return a signed token, another one each time."""
        now = int(time.time())
        # Whole seconds, as Kafka requires them: not before the end that the response states.
        times = {"iat": now, "exp": now + 1 + int(self.lifetime)}
        claims = {"iss": "https://idp.test", "sub": CLIENT, "aud": AUDIENCE, **times}
        claims |= {"jti": str(len(self.tokens)), "scope": "kafka"} | self.claims
        parts = ({"alg": "RS256", "kid": "one", "typ": "JWT"}, claims)
        signed = ".".join(_encoded(json.dumps(part).encode()) for part in parts)
        return f"{signed}.{_encoded(self._key.sign(signed.encode(), padding.PKCS1v15(), SHA256()))}"

    def jwks(self) -> dict[str, Any]:
        """Return the public key (RFC 7517)."""
        public = self._key.public_key().public_numbers()
        key = {"kty": "RSA", "use": "sig", "alg": "RS256", "kid": "one", "n": _number(public.n), "e": _number(public.e)}
        return {"keys": [key]}
