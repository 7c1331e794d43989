"""DIGEST-MD5: the example of RFC 2831, another implementation as the server, and challenges that break the protocol."""

from __future__ import annotations

import hashlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumerd.wire.digest_md5 import DigestMd5Client, DigestMd5Error

#: RFC 2831, 4.
CHALLENGE = b'realm="elwood.innosoft.com",nonce="OA6MG9tEQGm2hh",qop="auth",\talgorithm=md5-sess,charset=utf-8'
PROOF = b"rspauth=ea40f60335c427b5527b84dbabcdfffd"


def client(user: str = "chris", password: str = "secret") -> DigestMd5Client:
    return DigestMd5Client(user, password, uri="imap/elwood.innosoft.com", nonce="OA6MHXh6VqTrRk")


def test_computes_the_example_of_the_specification() -> None:
    begun = client()
    answer = begun.respond(CHALLENGE)
    assert answer == (
        b'charset=utf-8,username="chris",realm="elwood.innosoft.com",nonce="OA6MG9tEQGm2hh",nc=00000001,'
        b'cnonce="OA6MHXh6VqTrRk",digest-uri="imap/elwood.innosoft.com",'
        b"response=d388dad90d4bbd760a152321f2143af7,qop=auth"
    )
    assert begun.respond(PROOF) is None


def test_rejects_a_server_that_does_not_know_the_password() -> None:
    for proof in (PROOF[:-1] + b"c", b"rspauth=", b"", b"qop=auth"):
        begun = client()
        begun.respond(CHALLENGE)
        with pytest.raises(DigestMd5Error):
            begun.respond(proof)


@pytest.mark.parametrize(
    ("challenge", "sentence"),
    [
        (b"", "no nonce"),
        (b'realm="r",algorithm=md5-sess', "no nonce"),
        (b'nonce="",algorithm=md5-sess', "no nonce"),
        (b'nonce="n"', "another algorithm than md5-sess"),
        (b'nonce="n",algorithm=sha-256', "another algorithm than md5-sess"),
        (b'nonce="n",algorithm=md5-sess,qop="auth-int,auth-conf"', "requires integrity or privacy"),
        (b'nonce="n",algorithm=md5-sess,qop="authority"', "requires integrity or privacy"),
        (b"hello", "cannot be parsed"),
        (b'nonce="n', "cannot be parsed"),
        (b'nonce="n" rest', "cannot be parsed"),
        (b'algorithm=md5-sess,nonce="' + b"n" * 2048 + b'"', "it must have fewer than 2048"),
    ],
)
def test_rejects_invalid_challenges(challenge: bytes, sentence: str) -> None:
    with pytest.raises(DigestMd5Error, match=re.escape(sentence)):
        client().respond(challenge)


def test_accepts_a_challenge_without_a_realm_and_with_several_protections() -> None:
    answer = client().respond(b'NONCE="n", qop="auth-int , auth", algorithm=MD5-sess')
    assert answer is not None
    assert answer.startswith(b'username="chris",nonce="n"')


def test_takes_only_latin_1_where_the_server_does_not_offer_utf_8() -> None:
    plain = CHALLENGE.replace(b",charset=utf-8", b"")
    assert client(user="m\u00fcller").respond(plain) is not None
    for begun in (client(user="\u0142"), client(password="\u0142")):
        with pytest.raises(DigestMd5Error, match="only characters of Latin-1"):
            begun.respond(plain)


@given(st.text(min_size=1), st.text(), st.text(alphabet=st.characters(codec="utf-8"), max_size=50))
def test_quotes_what_it_sends_and_hashes_what_it_means(user: str, password: str, realm: str) -> None:
    """The server's side of the digest, read from the fields of the answer as RFC 2831, 2.1.2 has it."""
    try:
        encoded = realm.encode()
        user.encode(), password.encode()
    except UnicodeEncodeError:
        return
    quoted = re.sub(rb'(["\\])', rb"\\\1", encoded)
    answer = client(user, password).respond(
        b'realm="' + quoted + b'",nonce="a\\"b",algorithm=md5-sess,charset=utf-8,qop="auth"'
    )
    assert answer is not None
    found = {
        name: re.sub(rb"\\(.)", rb"\1", value, flags=re.DOTALL)
        for name, value in re.findall(rb'([a-z-]+)="((?:[^"\\]|\\.)*)"', answer, flags=re.DOTALL)
    }
    assert (found[b"username"], found[b"realm"], found[b"nonce"]) == (user.encode(), encoded, b'a"b')

    def narrow(text: str) -> bytes:
        return text.encode("latin-1") if all(ord(each) < 256 for each in text) else text.encode()

    secret = hashlib.md5(b":".join(map(narrow, (user, realm, password)))).digest()
    session = hashlib.md5(secret + b':a"b:OA6MHXh6VqTrRk').hexdigest().encode()
    what = hashlib.md5(b"AUTHENTICATE:imap/elwood.innosoft.com").hexdigest().encode()
    expected = hashlib.md5(session + b':a"b:00000001:OA6MHXh6VqTrRk:auth:' + what).hexdigest().encode()
    assert b",response=" + expected + b"," in answer
