"""The sequence of GSSAPI, with a library that takes notes; tests/interop has real brokers and Kerberos."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from consumerd.base.errors import ConfigError
from consumerd.net.client.errors import AuthenticationError
from consumerd.net.client.sasl_gssapi import GssapiIdentity, choose_no_layer
from consumerd.net.errors import ConnectError


@pytest.mark.parametrize("offer", [b"\1\0\0\0", b"\7\0\1\0", b"\3\xff\xff\xff"])
def test_chooses_no_security_layer_where_offered(offer: bytes) -> None:
    assert choose_no_layer(offer) == b"\1\0\0\0"


@pytest.mark.parametrize(
    ("offer", "says"),
    [
        (b"\6\0\1\0", "insists on a layer of protection: use TLS"),
        (b"\0\0\0\0", "insists"),
        (b"", "in 0 bytes"),
        (b"\1\0\0\0\0", "in 5 bytes"),
    ],
)
def test_rejects_invalid_security_layer_offers(offer: bytes, says: str) -> None:
    with pytest.raises(AuthenticationError, match=says):
        choose_no_layer(offer)


def test_names_missing_gssapi_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", None)
    with pytest.raises(ConfigError, match=r"pip install 'consumerd\[gssapi\]'"):
        GssapiIdentity()


class GSSError(Exception):
    """As the library's: the code is unsigned."""

    def __init__(self, code: int) -> None:
        super().__init__("Kerberos\n  says  no")
        self.min_code = code % (1 << 32)


class Context:
    """A security context that is established after two tokens of the server; `fails` at that step with a code."""

    made: dict[str, Any]
    fails: tuple[int, int] | None = None

    def __init__(self, **options: Any) -> None:
        type(self).made = options
        self.steps: list[bytes | None] = []
        self.wrapped: list[tuple[bytes, bool]] = []

    @property
    def complete(self) -> bool:
        return len(self.steps) == 3

    def step(self, token: bytes | None = None) -> bytes | None:
        if self.fails and self.fails[0] == len(self.steps):
            raise GSSError(self.fails[1])
        self.steps.append(token)
        return None if self.complete else b"step %d" % len(self.steps)

    def unwrap(self, token: bytes) -> Any:
        return SimpleNamespace(message=token.removeprefix(b"wrapped "))

    def wrap(self, choice: bytes, encrypt: bool) -> Any:
        assert not encrypt
        return SimpleNamespace(message=b"ours " + choice)


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch) -> type[Context]:
    class Fresh(Context):
        made: dict[str, Any] = {}  # noqa: RUF012 - of this test
        fails = None

    library = SimpleNamespace(
        Name=lambda name, kind: (name, kind),
        NameType=SimpleNamespace(kerberos_principal="principal", hostbased_service="service"),
        Credentials=lambda **options: options,
        SecurityContext=Fresh,
        MechType=SimpleNamespace(kerberos="kerberos"),
        RequirementFlag=SimpleNamespace(mutual_authentication="mutual", integrity="integrity"),
        exceptions=SimpleNamespace(GSSError=GSSError),
    )
    monkeypatch.setitem(sys.modules, "gssapi", library)
    return Fresh


def test_exchanges_tokens_until_both_sides_have_authenticated_and_then_chooses_no_layer(context: type[Context]) -> None:
    one = GssapiIdentity(service="broker")()
    assert one.name == "GSSAPI"
    assert one.first("h") == b"step 1"
    assert context.made == {
        "name": ("broker@h", "service"),
        "creds": None,
        "usage": "initiate",
        "mech": "kerberos",
        "flags": ["mutual", "integrity"],
    }
    assert one.respond(b"theirs") == b"step 2"
    assert one.respond(b"last") == b""  # the server still sends its layers
    before = one.ends_unanswered
    assert one.respond(b"wrapped \7\0\1\0") == b"ours \1\0\0\0"
    assert (before, one.ends_unanswered) == (False, True)
    assert one.respond(b"anything") is None


def test_first_token_may_be_empty(context: type[Context], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "step", lambda *_: None)
    assert GssapiIdentity()().first("h") == b""


def test_takes_the_credentials_that_are_configured(context: type[Context]) -> None:
    def credentials(**options: Any) -> Any:
        GssapiIdentity(**options)().first("h")
        return context.made["creds"]

    me = ("me@REALM", "principal")
    assert credentials() is None
    assert context.made["name"] == ("kafka@h", "service")
    assert credentials(principal="me@REALM") == {"name": me, "usage": "initiate", "store": None}
    first, second = (credentials(principal="me@REALM", keytab=Path("/keys"))["store"] for _ in range(2))
    assert first["client_keytab"] == "/keys"
    assert first["ccache"].startswith("MEMORY:")
    assert first["ccache"] != second["ccache"]
    alone = credentials(keytab=Path("/keys"))
    assert alone["name"] is None
    assert alone["store"].keys() == {"client_keytab", "ccache"}


@pytest.mark.parametrize(("step", "what"), [(0, "there is no ticket for kafka@h"), (1, "the server's token is not")])
@pytest.mark.parametrize(("code", "error"), [(-1765328228, ConnectError), (-1765328377, AuthenticationError)])
def test_kerberos_that_cannot_be_reached_is_tried_again_and_other_errors_are_not(
    context: type[Context], step: int, what: str, code: int, error: type[Exception]
) -> None:
    context.fails = step, code
    one = GssapiIdentity()()
    with pytest.raises(error, match=rf"GSSAPI: {what}.*: Kerberos says no$"):
        one.respond(one.first("h"))
