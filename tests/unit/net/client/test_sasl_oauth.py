"""OAUTHBEARER: tokens of an endpoint, a file and a user's provider; one cache for all connections of a login."""

from __future__ import annotations

import base64
import json
import logging
import ssl
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from structlog.testing import capture_logs

from consumerd import OAuthBearer, OAuthToken, TokenCache
from consumerd.base.errors import BrokerError, ConfigError, HandlerLoadError
from consumerd.base.settings.servers import SaslSection
from consumerd.base.settings.setting import BrokenRulesError, SecretStr
from consumerd.net.client.errors import AuthenticationError, UnavailableError
from consumerd.net.client.retrying import passes
from consumerd.net.client.sasl_oauth import ClientCredentials, lifetime_of
from consumerd.net.errors import ConnectError
from consumerd.service.config.build_v08 import build_mechanism
from consumerd.wire.v08.apis import APIS
from consumerd.wire.v08.versions import BrokerRelease
from tests.support.token_server import CLIENT, CLIENT_SECRET, TokenServer
from tests.unit.net.client.test_sasl import Line, authenticated

ALL = {key: api.versions for key, api in APIS.items()}


@pytest.fixture(scope="module")
def shared_server() -> Iterator[TokenServer]:
    with TokenServer() as server:
        yield server


@pytest.fixture
def server(shared_server: TokenServer) -> Iterator[TokenServer]:
    yield shared_server
    shared_server.claims, shared_server.headers, shared_server.lifetime = {}, {}, 3600.0
    shared_server.requests.clear()
    shared_server.tokens.clear()
    assert not shared_server.script


def section(server: TokenServer, **keys: Any) -> SaslSection:
    given: dict[str, Any] = {"token_endpoint": server.url, "user": CLIENT, "password": SecretStr(CLIENT_SECRET)} | keys
    return SaslSection(mechanism="OAUTHBEARER", **given)


def token_in(first: bytes) -> str:
    assert first.startswith(b"n,,\x01auth=Bearer ")
    assert first.endswith(b"\x01\x01")
    return first.split(b"\x01")[1].removeprefix(b"auth=Bearer ").decode()


def test_requests_a_token_with_the_clients_credentials(server: TokenServer) -> None:
    extensions = {"logicalCluster": "lkc-1", "identityPoolId": "pool-1"}
    parameters = {"audience": "kafka", "resource": "a&b"}
    made = section(server, token_scope="a b", token_parameters=parameters, extensions=extensions)
    first = build_mechanism(made)().first("broker")
    (token,) = server.tokens
    assert first == f"n,,\x01auth=Bearer {token}\x01logicalCluster=lkc-1\x01identityPoolId=pool-1\x01\x01".encode()
    ((headers, form),) = server.requests
    assert form == {"grant_type": "client_credentials", "scope": "a b", **parameters}
    pair = base64.b64decode(headers["Authorization"].removeprefix("Basic "))
    assert pair == b"events-app:hush%3Ahush%2Fhush%20hush%25"  # each part is encoded as in a form: RFC 6749, 2.3.1


def test_clients_with_the_same_login_share_a_token(server: TokenServer) -> None:
    one, two = (build_mechanism(section(server)) for _ in range(2))
    other = build_mechanism(section(server, token_scope="other"))
    assert len({token_in(make().first("b")) for make in (one, two, one)}) == 1
    assert token_in(other().first("b")) != token_in(one().first("b"))
    assert len(server.tokens) == 2


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Provider:
    """Gives `t1`, `t2`, ..., each for 100 s, or raises `error`."""

    def __init__(self) -> None:
        self.error: BrokerError | None = None
        self.calls = 0

    def __call__(self) -> OAuthToken:
        self.calls += 1
        if self.error:
            raise self.error
        return OAuthToken(f"t{self.calls}", 100.0)


@pytest.fixture
def provider() -> Provider:
    return Provider()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def reasons() -> list[str]:
    return []


@pytest.fixture
def cache(provider: Provider, clock: Clock, reasons: list[str]) -> TokenCache:
    return TokenCache(provider, on_failure=reasons.append, timeout=0.05, monotonic=clock)


def test_new_token_is_requested_before_the_former_one_expires(cache: TokenCache, clock: Clock) -> None:
    found = []
    for clock.now in (1000.0, 1079.9, 1080.0, 1159.9, 1160.1):
        found.append(cache.now().value)
    assert found == ["t1", "t1", "t2", "t2", "t3"]


def test_former_token_is_used_while_the_provider_fails_and_until_it_expires(
    cache: TokenCache, clock: Clock, provider: Provider, reasons: list[str]
) -> None:
    cache.now()
    provider.error = ConnectError("down")
    clock.now = 1080.0
    assert [cache.now().value, cache.now().value] == ["t1", "t1"]
    assert (provider.calls, reasons) == (2, ["down"])
    clock.now = 1095.0
    assert cache.now().value == "t1"
    assert (provider.calls, reasons) == (3, ["down"] * 2)
    clock.now = 1100.0
    with pytest.raises(ConnectError, match="down"):
        cache.now()
    provider.error = None
    assert cache.now().value == "t5"


def test_other_threads_go_on_with_the_former_token_while_one_requests_the_next(clock: Clock) -> None:
    asked, answered = threading.Event(), threading.Event()
    tokens = iter([OAuthToken("old", 100.0), OAuthToken("new", 100.0)])

    def provide() -> OAuthToken:
        token = next(tokens)
        if token.value == "new":
            asked.set()
            assert answered.wait(60)
        return token

    cache = TokenCache(provide, timeout=0.05, monotonic=clock)
    cache.now()
    clock.now = 1090.0
    thread = threading.Thread(target=cache.now)
    thread.start()
    assert asked.wait(60)
    assert cache.now().value == "old"
    clock.now = 1100.0  # it has expired: now they wait, and not for ever
    with pytest.raises(ConnectError, match=r"no token within 0\.05 s: its provider does not answer"):
        cache.now()
    answered.set()
    thread.join()
    assert cache.now().value == "new"


@pytest.mark.parametrize("lifetime", [None, 0.0, -5.0, float("nan")])
def test_token_of_unknown_lifetime_is_used_once(lifetime: float | None) -> None:
    calls: list[None] = []

    def provide() -> OAuthToken:
        calls.append(None)
        return OAuthToken("t", lifetime)

    cache = TokenCache(provide)
    cache.now()
    cache.now()
    assert len(calls) == 2


def jwt(claims: Any) -> str:
    return f"e30.{base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip('=')}.x"


@pytest.mark.parametrize(
    ("token", "seconds"),
    [
        (jwt({"iat": 5, "exp": 65}), 60.0),
        (jwt({"exp": 65}), None),
        (jwt({"iat": [], "exp": 65}), None),
        (jwt([]), None),
        (jwt({"iat": 0, "exp": 10**400}), None),
        ("opaque", None),
        ("a.b.c", None),
        ("a.%.c", None),
    ],
)
def test_lifetime_is_that_between_two_times_of_the_token(token: str, seconds: float | None) -> None:
    """So that the clock of this machine does not matter, however wrong it is."""
    assert lifetime_of(token) == seconds


def test_lifetime_is_the_tokens_where_the_response_has_none(server: TokenServer) -> None:
    server.lifetime = 77.0
    token = server.issue()
    server.script.append((200, json.dumps({"access_token": token}).encode()))
    made = ClientCredentials(server.url, CLIENT, lambda: CLIENT_SECRET)()
    assert made.value == token
    assert made.lifetime == 78.0  # that of the token


def drip() -> tuple[int, bytes]:
    threading.Event().wait(0.3)
    return 200, b"{}"


#: What the endpoint answers, whether a later request may succeed, and what the error says.
FAILURES: dict[str, tuple[Any, bool, str]] = {
    "unavailable": ((503, b"<html>busy"), True, "status 503$"),
    "quota": ((429, b'{"error": "slow_down"}'), True, r"status 429 \(slow_down\)$"),
    "credentials": (
        (401, b'{"error": "invalid_client", "error_description": "no\\u001b[31m such client"}'),
        False,
        r"status 401 \(invalid_client: no\?\[31m such client\); check token_endpoint, user and password",
    ),
    "echo": ((400, json.dumps({"error": "bad", "error_description": CLIENT_SECRET}).encode()), False, r"400 \(bad\);"),
    "strange": ((400, b'{"error": 5}'), False, r"status 400; check"),
    "deep": ((400, b"[" * 100_000), False, r"status 400; check"),
    "garbage": ((200, b"\xff\xfe"), False, "the response has no access_token"),
    "html": ((200, b"<html>"), False, "the response has no access_token"),
    "array": ((200, b"[]"), False, "the response has no access_token"),
    "empty": ((200, b"{}"), False, "the response has no access_token"),
    "number": ((200, b'{"access_token": 5}'), False, "the response has no access_token"),
    "forever": ((200, b'{"access_token": "t", "expires_in": "soon"}'), False, "the response has no access_token"),
    "separator": ((200, b'{"access_token": "t\\u0001host=x"}'), False, "characters that no bearer token has"),
    "large": ((200, b" " * (3 << 20)), False, "the response has no access_token"),
    "slow": (drip, True, "no answer in time"),
}


@pytest.mark.parametrize("case", FAILURES)
def test_failures_of_the_endpoint_say_whether_and_why(server: TokenServer, case: str) -> None:
    answer, transient, words = FAILURES[case]
    server.script.append(answer)
    credentials = ClientCredentials(server.url, CLIENT, lambda: CLIENT_SECRET, timeout=0.1 if case == "slow" else 8.0)
    with pytest.raises(BrokerError, match=words) as raised:
        credentials()
    assert passes(raised.value) == transient
    assert server.url in str(raised.value) or case == "separator"
    said = "".join(traceback.format_exception(raised.value))
    secrets = (CLIENT_SECRET, "hush%3A", server.requests[0][0]["Authorization"].split()[1])
    assert not [secret for secret in secrets if secret in said]


def test_follows_no_redirect(server: TokenServer) -> None:
    server.headers = {"Location": f"{server.url}2"}
    server.script.append((307, b""))
    with pytest.raises(AuthenticationError, match="status 307"):
        ClientCredentials(server.url, CLIENT, lambda: CLIENT_SECRET)()
    assert len(server.requests) == 1


def test_endpoint_that_cannot_be_reached_is_tried_again() -> None:
    with pytest.raises(ConnectError, match=r"cannot get a token from http://127\.0\.0\.1:1/t: .*refused"):
        ClientCredentials("http://127.0.0.1:1/t?audience=x", CLIENT, lambda: CLIENT_SECRET)()


def test_trusts_the_authority_of_token_ca_only(tmp_path: Path) -> None:
    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    file = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(file)
    with TokenServer(tls=context) as server:
        assert token_in(build_mechanism(section(server, token_ca=file))().first("b")) == server.tokens[0]
        with pytest.raises(ConnectError, match=r"its certificate is not accepted \(.*\); check token_ca"):
            build_mechanism(section(server))().first("b")
        assert len(server.requests) == 1
    with pytest.raises(ConfigError, match=r"kafka\.sasl\.token_ca: .*none"):
        build_mechanism(section(server, token_ca=tmp_path / "none"))


def test_token_of_a_file_is_that_of_its_time(tmp_path: Path) -> None:
    path = tmp_path / "token"
    with pytest.raises(ConfigError, match="cannot read the token file"):
        build_mechanism(SaslSection(mechanism="OAUTHBEARER", token_file=path))
    path.write_text("first\n")
    make = build_mechanism(SaslSection(mechanism="OAUTHBEARER", token_file=path))
    assert token_in(make().first("b")) == "first"
    beside = tmp_path / "new"
    beside.write_text("second")
    beside.rename(path)
    assert token_in(make().first("b")) == "second"
    path.write_text("not a token")
    with capture_logs() as logs:
        assert token_in(make().first("b")) == "second"
    assert [each["event"] for each in logs] == ["credentials_rejected"]
    assert "not a token" not in str(logs)


def own(name: str = "own", *, fails: bool = False) -> Callable[[], Any]:
    """A user's provider."""

    def provide() -> Any:
        if fails:
            raise KeyError("region")
        return OAuthToken(name, 60.0) if name else "text"

    return provide


def test_tokens_of_a_users_provider() -> None:
    def made(**options: Any) -> Any:
        name = f"{__name__}:own"
        return build_mechanism(SaslSection(mechanism="OAUTHBEARER", token_provider=name, token_options=options))()

    assert token_in(made(name="mine").first("b")) == "mine"
    with pytest.raises(ConnectError, match=r"token provider .*:own' failed: KeyError: 'region'"):
        made(fails=True).first("b")
    with pytest.raises(AuthenticationError, match="must return an OAuthToken, not str"):
        made(name="").first("b")
    with pytest.raises(HandlerLoadError, match="has no option 'nane', did you mean 'name'"):
        made(nane="x")
    with pytest.raises(HandlerLoadError, match="unknown token provider 'nobody'"):
        build_mechanism(SaslSection(mechanism="OAUTHBEARER", token_provider="nobody"))


@pytest.mark.parametrize(
    ("keys", "rule"),
    [
        ({}, "OAUTHBEARER needs exactly one of token_endpoint, token_file, token_provider"),
        ({"token_file": Path("a"), "token_provider": "b"}, "OAUTHBEARER needs exactly one of"),
        ({"token_endpoint": "https://h/t"}, r"token_endpoint needs user \(the client id\)"),
        ({"token_endpoint": "https://h/t", "user": "u"}, "token_endpoint needs user"),
        ({"token_file": Path("a"), "user": "u"}, "user is for token_endpoint: remove it"),
        ({"token_file": Path("a"), "token_scope": "s"}, "token_scope is for token_endpoint: remove it"),
        ({"token_file": Path("a"), "token_options": {"a": 1}}, "token_options is for token_provider: remove it"),
        ({"token_file": Path("a"), "keytab": Path("k")}, "principal and keytab are for GSSAPI, not for OAUTHBEARER"),
        ({"mechanism": "PLAIN", "user": "u", "extensions": {"a": "b"}}, "extensions is for OAUTHBEARER, not for PLAIN"),
    ],
)
def test_keys_that_contradict_each_other_are_refused(keys: dict[str, Any], rule: str) -> None:
    with pytest.raises(BrokenRulesError, match=rule):
        SaslSection(**{"mechanism": "OAUTHBEARER"} | keys)


@pytest.mark.parametrize(
    ("keys", "rule"),
    [
        ({"token_endpoint": "idp/token"}, r"kafka\.sasl: the token endpoint must be a URL such as https://"),
        ({"token_endpoint": "https://idp:x/t"}, "must be a URL such as"),
        ({"token_endpoint": "file:///etc/passwd"}, "must be a URL such as"),
        ({"token_endpoint": "https://u:hush@idp/t"}, "must not have a user or password"),
        ({"token_endpoint": "http://idp.example.org/t"}, "must begin with https://, because the password is sent"),
        ({"extensions": {"auth": "x"}}, "'auth' must be letters only, and not auth"),
        ({"extensions": {"a b": "x"}}, "'a b' must be letters only"),
        ({"extensions": {"a": "x\x01auth=y"}}, "the value of a must be printable ASCII"),
    ],
)
def test_invalid_endpoints_and_extensions_are_refused(server: TokenServer, keys: dict[str, Any], rule: str) -> None:
    with pytest.raises(ConfigError, match=rule) as raised:
        build_mechanism(section(server, **keys))
    assert "hush" not in str(raised.value)


class BearerLine(Line):
    """A broker that refuses tokens as Kafka's do: with a status, and with an error after our answer to it."""

    def __init__(self, *statuses: bytes) -> None:
        super().__init__(BrokerRelease.V0_10_OR_NEWER, ALL)
        self.statuses = list(statuses)

    async def call(self, api: Any, body: dict[str, Any], **options: Any) -> Any:
        answer = await super().call(api, body, **options)
        if self.sent[-1] == ("wrapped", b"\x01"):
            return {"error_code": 58, "error_message": '{"status":"invalid_token"}', "auth_bytes": b""}
        if "auth_bytes" in answer:
            answer["auth_bytes"] = self.statuses.pop(0) if self.statuses else b""
        return answer


async def test_accepted_token_ends_the_authentication(cache: TokenCache) -> None:
    line = BearerLine()
    await authenticated(line, OAuthBearer(cache))
    assert [sent for sent, _ in line.sent] == ["handshake 1", "wrapped"]


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (b'{"status":"invalid_token\\u001b"}', r"invalid_token\?;"),
        (b"\xff", "invalid response;"),
        (b"[]", "invalid response;"),
        (b"[" * 100_000, "invalid response;"),
    ],
)
async def test_refused_token_is_an_error_and_the_next_one_is_new(cache: TokenCache, status: bytes, said: str) -> None:
    line = BearerLine(status)
    with pytest.raises(AuthenticationError, match=rf"the broker refuses the token \(OAUTHBEARER\): {said}.*its clock"):
        await authenticated(line, OAuthBearer(cache))
    assert line.sent[-1] == ("wrapped", b"\x01")
    assert cache.now().value == "t2"


async def test_refusal_after_an_accepted_token_is_transient(cache: TokenCache) -> None:
    """Brokers refuse tokens of a provider's new key until they have read its keys again."""
    await authenticated(BearerLine(), OAuthBearer(cache))
    with pytest.raises(UnavailableError, match="it accepted an earlier one") as raised:
        await authenticated(BearerLine(b"{}"), OAuthBearer(cache))
    assert passes(raised.value)
    await authenticated(BearerLine(), OAuthBearer(cache))


async def test_refusal_without_a_status_has_the_brokers_words(cache: TokenCache) -> None:
    line = Line(BrokerRelease.V0_10_OR_NEWER, ALL)
    line.rejects = True
    with pytest.raises(AuthenticationError, match=r"refuses the token .*wrong password"):
        await authenticated(line, OAuthBearer(cache))


def test_shows_no_token_and_no_secret(server: TokenServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with capture_logs() as logs:
        make = build_mechanism(section(server))
        mechanism: Any = make()
        token = token_in(mechanism.first("b"))
        said = [make, mechanism, mechanism._token, mechanism._tokens, section(server), caplog.text, logs]
    assert not [each for each in said for secret in (token, CLIENT_SECRET) if secret in f"{each!r} {each}"]
