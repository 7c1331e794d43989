from __future__ import annotations

import contextlib
import functools
from typing import Any

import pytest
import scramp
from hypothesis import given
from hypothesis import strategies as st

from consumerd.wire.scram import MOST_ROUNDS, ScramClient, ScramError

#: The example of RFC 7677, 3.
NONCE = "rOprNGfwEbeRWgbNEkqO"
OFFER = rb"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
PROOF = (
    rb"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
    rb"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SIGNATURE = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def begun() -> ScramClient:
    client = ScramClient("SCRAM-SHA-256", "user", "pencil", NONCE)
    assert client.first() == b"n,,n=user,r=" + NONCE.encode()
    return client


def test_computes_the_example_of_the_specification() -> None:
    client = begun()
    assert client.respond(OFFER) == PROOF
    assert client.respond(SIGNATURE) is None
    with pytest.raises(ScramError, match="sent a challenge before the first message"):
        client.respond(SIGNATURE)


@pytest.mark.parametrize("name", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("user", ["user", "a=b,c", "m\u00fcller"])
def test_authenticates_with_another_implementation_of_the_server(name: str, user: str) -> None:
    mechanism: Any = scramp.ScramMechanism(name)
    known = mechanism.make_auth_info("pass word=,1", iteration_count=4096)
    for password, right in (("pass word=,1", True), ("pass word=,2", False)):
        server = mechanism.make_server(functools.partial(lambda _: known))
        client = ScramClient(name, user, password, "nonce0")
        server.set_client_first(client.first().decode())
        proof = client.respond(server.get_server_first().encode())
        assert proof is not None
        with contextlib.nullcontext() if right else pytest.raises(scramp.ScramException):
            server.set_client_final(proof.decode())
            assert client.respond(server.get_server_final().encode()) is None


@pytest.mark.parametrize(
    ("offer", "words"),
    [
        (OFFER.replace(b"r=r", b"r=s"), "nonce does not extend the client's"),
        (OFFER.replace(b"%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0", b""), "nonce does not extend the client's"),
        (OFFER.replace(b"4096", b"4095"), "iteration count is 4095, and must be from 4096 to"),
        (OFFER.replace(b"4096", b"%d" % (MOST_ROUNDS + 1)), f"iteration count is {MOST_ROUNDS + 1},"),
        (OFFER.replace(b"4096", b"9" * 5000), "iteration count is invalid"),
        (OFFER.replace(b"4096", b"-1"), "iteration count is invalid"),
        (OFFER.replace(b"4096", b""), "iteration count is invalid"),
        (OFFER.replace(b"W22Z", b"W2!Z"), "not valid base64"),
        (OFFER.replace(b"W22ZaJ0SNY7soEsUEjb6gQ==", b""), "has no salt"),
        (b"m=x," + OFFER, "an unsupported extension"),
        (b"", "not a SCRAM message"),
        (b"\xff\xff", "not a SCRAM message"),
    ],
)
def test_rejects_invalid_server_first_messages(offer: bytes, words: str) -> None:
    with pytest.raises(ScramError, match=words):
        begun().respond(offer)


@pytest.mark.parametrize(
    ("last", "words"),
    [
        (SIGNATURE.replace(b"6rri", b"7rri"), "its signature is wrong"),
        (b"v=", "its signature is wrong"),
        (b"e=invalid-proof", "reported 'invalid-proof'"),
        (b"x=" + SIGNATURE, "its signature is wrong"),
        (b"v", "not a SCRAM message"),
    ],
)
def test_rejects_a_server_without_a_valid_signature(last: bytes, words: str) -> None:
    client = begun()
    client.respond(OFFER)
    with pytest.raises(ScramError, match=words):
        client.respond(last)


@given(st.binary() | st.binary().map(lambda data: b"r=" + NONCE.encode() + data), st.binary())
def test_raises_scram_errors_only(offer: bytes, last: bytes) -> None:
    client = begun()
    with pytest.raises(ScramError):
        client.respond(offer)
    client.respond(OFFER)
    with pytest.raises(ScramError):
        client.respond(last)
