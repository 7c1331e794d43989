"""The parts of GSSAPI that need no Kerberos; the rest is tested with real brokers in tests/interop."""

from __future__ import annotations

import sys

import pytest

from consumerd.client import AuthenticationError
from consumerd.client.sasl_gssapi import GssapiIdentity, choose_no_layer
from consumerd.errors import ConfigError


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
