"""Access control: which clients may read data, and which may change something."""

from __future__ import annotations

import base64
import hmac

import pytest

from consumerd.base.errors import ConfigError
from consumerd.net.http.access import Access, AccessRefusedError, is_loopback

TOKEN = "0123456789abcdef"


def basic(text: str) -> dict[str, str]:
    return {"Authorization": f"Basic {base64.b64encode(text.encode()).decode()}"}


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.9.9.9", "::1"])
def test_recognises_loopback_addresses(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", "127.0.0.1.example.org", ""])
def test_recognises_addresses_reachable_by_others(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize("header", ["127.0.0.1:8080", "localhost:8080", "localhost", "[::1]:8080"])
def test_loopback_clients_that_name_the_host_may_read(header: str) -> None:
    Access("127.0.0.1").check({"Host": header})


@pytest.mark.parametrize("header", ["evil.example:8080", "127.0.0.1.evil.example", "", "[::2]:8080"])
def test_rejects_a_foreign_name_that_resolves_to_loopback(header: str) -> None:
    with pytest.raises(AccessRefusedError) as caught:
        Access("127.0.0.1").check({"Host": header})
    assert caught.value.status == 403


@pytest.mark.parametrize("headers", [{"Authorization": f"Bearer {TOKEN}"}, basic(f"anybody:{TOKEN}")])
def test_token_grants_access(headers: dict[str, str]) -> None:
    Access("0.0.0.0", TOKEN).check({"Host": "any.example", **headers})


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer"},
        {"Authorization": f"Bearer {TOKEN}0"},
        {"Authorization": TOKEN},
        {"Authorization": "Basic !!!"},
        {"Authorization": "Basic /w=="},
        {"Authorization": "Bearer \udcff"},
        basic(TOKEN),
        basic(f"{TOKEN}:"),
    ],
)
def test_answers_401_without_the_token_on_loopback_too(headers: dict[str, str]) -> None:
    with pytest.raises(AccessRefusedError) as caught:
        Access("127.0.0.1", TOKEN).check({"Host": "127.0.0.1", **headers})
    assert caught.value.status == 401


@pytest.mark.parametrize("shown", ["", "x", TOKEN[:-1] + "!", TOKEN, TOKEN * 1000, "\udcff"])
def test_time_of_the_comparison_depends_on_neither_token(shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sides are digests of one length, compared by `hmac.compare_digest`, which looks at all of both."""
    compared: list[tuple[bytes, bytes]] = []
    compare = hmac.compare_digest

    def noting(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return compare(one, other)

    monkeypatch.setattr(hmac, "compare_digest", noting)
    access = Access("127.0.0.1", TOKEN)
    if shown == TOKEN:
        access.check({"Authorization": f"Bearer {shown}"})
    else:
        with pytest.raises(AccessRefusedError):
            access.check({"Authorization": f"Bearer {shown}"})
    ((one, other),) = compared
    assert len(one) == len(other) == 32
    assert TOKEN.encode() not in (one, other)


def test_client_certificate_grants_access() -> None:
    Access("0.0.0.0", mutual=True).check({"Host": "any.example"})


def test_public_address_requires_token_or_certificate() -> None:
    access = Access("0.0.0.0")
    assert not access.is_private
    with pytest.raises(AccessRefusedError):
        access.check({"Host": "127.0.0.1"})


def test_changes_require_authentication_and_the_form_token() -> None:
    access, headers = Access("127.0.0.1", TOKEN), {"Authorization": f"Bearer {TOKEN}"}
    access.check_change(headers, access.word)
    for word in ("", "x", access.word[:-1], Access("127.0.0.1", TOKEN).word):
        with pytest.raises(AccessRefusedError):
            access.check_change(headers, word)
    with pytest.raises(AccessRefusedError):
        access.check_change({}, access.word)


def test_loopback_without_a_token_allows_no_changes() -> None:
    access = Access("127.0.0.1")
    assert not access.may_change
    with pytest.raises(AccessRefusedError, match=r"health\.token"):
        access.check_change({"Host": "127.0.0.1"}, access.word)


def test_rejects_a_short_token_without_showing_it() -> None:
    with pytest.raises(ConfigError, match="at least 16 characters, not 7") as caught:
        Access("0.0.0.0", "hunter2")
    assert "hunter2" not in str(caught.value)
    assert TOKEN not in repr(Access("0.0.0.0", TOKEN))
