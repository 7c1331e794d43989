"""OAUTHBEARER as a mechanism of SASL (RFC 7628, KIP-255, KIP-768): tokens of an identity provider instead of passwords.

Strategy: a provider is a function that returns a token and may block: `ClientCredentials` asks a token endpoint (OAuth
2.0, client credentials), others read a file or are the user's. One `TokenCache` for each set of credentials calls it
when four fifths of a token's lifetime have passed. The thread that finds this gets the new token; all others go on with
the former one, and so does that thread if the provider fails: only a token that has expired makes connections wait.
Lifetimes are counted from the moment of the request (`expires_in`), or as the difference of two times of the token
itself, so that the clock of this machine and that of the provider need not agree.

Only the standard library is used: Spark's executors import this module.
"""

from __future__ import annotations

import base64
import json
import logging
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from ssl import SSLContext
from typing import Final
from urllib.parse import quote, urlencode, urlsplit

from consumerd.base.clock import SystemClock, iso_time
from consumerd.base.errors import BrokerError, ConfigError, reason_of
from consumerd.net.client.errors import AuthenticationError, UnavailableError
from consumerd.net.errors import ConnectError
from consumerd.net.http.request import HttpAnswer, ask
from consumerd.net.tls import make_tls_context

log = logging.getLogger(__name__)
OAUTHBEARER: Final = "OAUTHBEARER"
#: A bearer token (RFC 6750, 2.1), and an extension of Kafka's (KIP-342).
_TOKEN: Final = re.compile(r"[-._~+/A-Za-z0-9]+=*")
_EXTENSION: Final = re.compile(r"[A-Za-z]+")
_EXTENSION_VALUE: Final = re.compile(r"[\x21-\x7E \t\r\n]+")
_SEPARATOR: Final = "\x01"
#: The part of a token's lifetime after which a new one is requested, as in Kafka (sasl.login.refresh.window.factor).
_FRESH_FOR: Final = 0.8
#: Seconds between requests for a new token while the former one can be used and the provider fails.
_RETRY_AFTER: Final = 10.0
_MOST_CHARACTERS: Final = 300
#: The first status of HTTP that is neither an answer nor informational: redirects are not followed.
_FIRST_REFUSAL: Final = 300


@dataclass(frozen=True, slots=True)
class OAuthToken:
    """A token, and the seconds from its request until it expires; None: unknown, so that it is used once.

    Raises AuthenticationError for text that is not a bearer token.
    """

    value: str = field(repr=False)
    lifetime: float | None = None

    def __post_init__(self) -> None:
        if not _TOKEN.fullmatch(self.value):
            raise AuthenticationError("OAUTHBEARER: the token is empty, or has characters that no bearer token has")


#: Returns a token, and may block. Raises AuthenticationError, or ConnectError where a later call may succeed.
TokenProvider = Callable[[], OAuthToken]


def lifetime_of(token: str) -> float | None:
    """Return the seconds from the issue of a token to its expiry if it is a JWT that has both, None otherwise."""
    issued, expires = _time_in(token, "iat"), _time_in(token, "exp")
    return None if issued is None or expires is None else expires - issued


def _time_in(token: str, claim: str) -> float | None:
    """Return a time in a JWT, in seconds since 1970; None for another token, or one without that claim."""
    parts = token.split(".")
    try:
        return float(json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))[claim])
    except (IndexError, KeyError, TypeError, ValueError, OverflowError, RecursionError):
        return None


def check_endpoint(url: str) -> str | None:
    """Return the rule that the URL of a token endpoint breaks, None for a valid one."""
    usage = "must be a URL such as https://idp.example.org/oauth2/token"
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return usage
    if not host or parts.scheme not in ("https", "http"):
        return usage
    if parts.username is not None:
        return "must not have a user or password: give user, and password or password_file"
    if parts.scheme == "http" and host not in ("localhost", "127.0.0.1", "::1"):
        return "must begin with https://, because the password is sent to it (http:// is for this machine only)"
    return None


def check_extensions(extensions: Mapping[str, str]) -> str | None:
    """Return the rule that extensions break, None for valid ones."""
    for name, value in extensions.items():
        if not _EXTENSION.fullmatch(name) or name == "auth":
            return f"{name!r} must be letters only, and not auth"
        if not _EXTENSION_VALUE.fullmatch(value):
            return f"the value of {name} must be printable ASCII"
    return None


class ClientCredentials:
    """Requests tokens with a client's id and secret (RFC 6749, 4.4): `credentials()` returns the next one.

    `secret()` and `tls()` return the client's secret and the TLS context as they are at the time. `scope` and
    `parameters` are sent with the request. `timeout`: seconds for each step of it. Proxies are those of the environment
    (HTTPS_PROXY). Raises ConfigError for an invalid URL.
    """

    def __init__(
        self,
        endpoint: str,
        client: str,
        secret: Callable[[], str],
        *,
        scope: str | None = None,
        parameters: Mapping[str, str] | None = None,
        tls: Callable[[], SSLContext] = make_tls_context,
        timeout: float = 8.0,
    ) -> None:
        if rule := check_endpoint(endpoint):
            raise ConfigError(f"the token endpoint {rule}.")
        self._endpoint = endpoint
        self._client = client
        self._secret = secret
        self._form = {"grant_type": "client_credentials"}
        if scope is not None:
            self._form["scope"] = scope
        self._form |= parameters or {}
        self._tls = tls
        self._timeout = timeout

    def __call__(self) -> OAuthToken:
        """Return a token. Raises ConnectError, AuthenticationError."""
        secret = self._secret()
        pair = f"{quote(self._client, safe='')}:{quote(secret, safe='')}".encode()
        headers = {
            "Authorization": f"Basic {base64.b64encode(pair).decode()}",
            "Content-Type": "application/x-www-form-urlencoded",
            "Accept": "application/json",
        }
        form = urlencode(self._form).encode()
        try:
            answer = ask(
                self._endpoint, headers=headers, body=form, tls=self._tls, timeout=self._timeout, ca_key="token_ca"
            )
        except ConnectError as error:
            raise ConnectError(f"{self._cannot()}: {error}") from None
        if answer.status >= _FIRST_REFUSAL:
            raise self._refused(answer, secret)
        return self._token(answer.body)

    def _cannot(self) -> str:
        return f"OAUTHBEARER: cannot get a token from {self._endpoint.partition('?')[0]}"

    def _refused(self, answer: HttpAnswer, secret: str) -> BrokerError:
        try:
            said = json.loads(answer.body)
        except (ValueError, RecursionError):
            said = None
        words = [said.get(key) for key in ("error", "error_description")] if isinstance(said, dict) else []
        detail = _printable(": ".join(word for word in words if isinstance(word, str) and secret not in word))
        text = f"{self._cannot()}: status {answer.status}{f' ({detail})' if detail else ''}"
        if answer.transient:
            return ConnectError(text)
        return AuthenticationError(f"{text}; check token_endpoint, user and password, and token_scope")

    def _token(self, body: bytes) -> OAuthToken:
        try:
            answer = json.loads(body)
            value, lifetime = answer["access_token"], answer.get("expires_in")
            if not isinstance(value, str):
                raise TypeError
            return OAuthToken(value, lifetime_of(value) if lifetime is None else float(lifetime))
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError, RecursionError):
            raise AuthenticationError(
                f"{self._cannot()}: the response has no access_token; is this the URL of a token endpoint?"
            ) from None  # the cause may have the token


def _printable(text: str) -> str:
    return "".join(each if " " <= each <= "~" else "?" for each in text[:_MOST_CHARACTERS])


def read_token_file(path: Path | str) -> OAuthToken:
    """Return the token that a file has now. Raises ConfigError for a file that cannot be read."""
    try:
        text = Path(path).read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not ASCII text"
        raise ConfigError(f"cannot read the token file {path}: {reason}.") from None
    return OAuthToken(text)


def own_provider(name: str, made: object) -> TokenProvider:
    """Return a user's provider with its errors as ours. Raises ConfigError for an object that cannot be called."""
    if not callable(made):
        raise ConfigError(f"token provider {name!r} must be callable, and return an OAuthToken.")

    def provide() -> OAuthToken:
        try:
            token = made()
        except BrokerError:
            raise
        except Exception as error:
            raise ConnectError(f"token provider {name!r} failed: {reason_of(error)}") from error
        if not isinstance(token, OAuthToken):
            raise AuthenticationError(f"token provider {name!r} must return an OAuthToken, not {type(token).__name__}")
        return token

    return provide


def _log_failure(reason: str) -> None:
    log.warning("OAUTHBEARER: no new token yet, the former one is used on: %s", reason)


class TokenCache:
    """The present token of a provider, for all connections. Its methods are safe in several threads.

    `on_failure` is called with the reason when a new token cannot be had while the former one can still be used.
    """

    def __init__(
        self,
        provider: TokenProvider,
        *,
        on_failure: Callable[[str], None] = _log_failure,
        timeout: float = 10.0,
        monotonic: Callable[[], float] = SystemClock.monotonic,
    ) -> None:
        self._provider = provider
        self._on_failure = on_failure
        self._timeout = timeout
        self._monotonic = monotonic
        self._renewing = threading.Lock()
        self._token: OAuthToken | None = None
        self._renew_at = self._expires_at = 0.0
        #: Whether a broker accepted a token of this provider.
        self._accepted = False

    def now(self) -> OAuthToken:
        """Return a token that has not expired. May block. Raises as the provider does."""
        token, usable = self._token, self._monotonic() < self._expires_at
        if token is not None and self._monotonic() < self._renew_at:
            return token
        waits = 0.0 if usable else self._timeout
        if not self._renewing.acquire(timeout=waits):
            if token is not None and usable:
                return token
            raise ConnectError(f"OAUTHBEARER: no token within {waits:g} s: its provider does not answer")
        try:
            if self._token is not None and self._monotonic() < self._renew_at:
                return self._token  # of the thread that had the lock
            return self._renewed()
        finally:
            self._renewing.release()

    def _renewed(self) -> OAuthToken:
        begun = self._monotonic()
        try:
            token = self._provider()
        except (BrokerError, ConfigError) as error:
            if self._token is None or self._monotonic() >= self._expires_at:
                raise
            self._renew_at = min(self._expires_at, self._monotonic() + _RETRY_AFTER)
            self._on_failure(reason_of(error))
            return self._token
        lifetime = max(0.0, token.lifetime or 0.0)
        self._token, self._renew_at, self._expires_at = token, begun + lifetime * _FRESH_FOR, begun + lifetime
        return token

    def accepted(self) -> None:
        """A broker accepted a token."""
        self._accepted = True

    def refused(self, token: OAuthToken, reason: str) -> BrokerError:
        """Return the error for a token that a broker refused; the next one is a new one.

        Where an earlier token was accepted, the error is transient: brokers refuse tokens of a provider's new key until
        they have read its keys again.
        """
        if self._token is token:
            self._renew_at = self._expires_at = 0.0
        text = f"the broker refuses the token ({OAUTHBEARER}): {reason}"
        if self._accepted:
            return UnavailableError(f"{text}; it accepted an earlier one")
        return AuthenticationError(
            f"{text}; its log says why; check the audience, issuer and scope that it expects, and its clock"
        )


class OAuthBearer:
    """OAUTHBEARER: a token of `tokens`, and the extensions that a broker may expect, such as `logicalCluster`.

    Raises ConfigError for invalid extensions.
    """

    name = OAUTHBEARER
    ends_unanswered = False

    def __init__(self, tokens: TokenCache, extensions: Mapping[str, str] | None = None) -> None:
        self._tokens = tokens
        self._extensions = dict(extensions or {})
        if rule := check_extensions(self._extensions):
            raise ConfigError(f"extensions: {rule}.")
        self._token: OAuthToken | None = None
        self._reason: str | None = None

    def first(self, host: str) -> bytes:
        self._token = self._tokens.now()
        pairs = {"auth": f"Bearer {self._token.value}"} | self._extensions
        return _SEPARATOR.join(["n,,", *(f"{key}={value}" for key, value in pairs.items()), "", ""]).encode()

    def respond(self, challenge: bytes) -> bytes | None:
        """Return None once the token is accepted, and the answer to a refusal (RFC 7628, 3.2.3) otherwise."""
        if not challenge and self._reason is None:
            self._tokens.accepted()
            return None
        if self._reason is None:
            self._reason = _status(challenge)
            return _SEPARATOR.encode()
        raise self.refusal(self._reason)

    def without_lifetime(self) -> str:
        """Return the probable reason if a broker closes the connection that accepted the token without a lifetime.

        A broker tells the time that is left of a token. For one that has expired within the clock skew that it allows
        that is none, and it ends the session at the first request.
        """
        expires = None if self._token is None else _time_in(self._token.value, "exp")
        if expires is None:
            return ""
        left = expires - SystemClock.wall()
        when = f"in {left:.0f} s" if left >= 0 else f"{-left:.0f} s ago"
        return (
            f"it accepted the token ({OAUTHBEARER}) without a lifetime, as one that expires at that moment: by this "
            f"machine's clock it expires at {iso_time(expires)} ({when}); renew the token, and compare the clocks"
        )

    def refusal(self, reason: str) -> BrokerError:
        """Return the error for a broker's refusal; `reason` as the broker states it, unless a challenge said it."""
        assert self._token is not None
        return self._tokens.refused(self._token, self._reason or _printable(reason))


def _status(challenge: bytes) -> str:
    """Return the status of a refusal."""
    try:
        return _printable(str(json.loads(challenge)["status"]))
    except (KeyError, TypeError, ValueError, RecursionError):
        return "invalid response"
