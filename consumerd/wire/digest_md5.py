"""DIGEST-MD5 (RFC 2831), the client's side, as ZooKeeper's servers speak it: qop `auth`, one authentication each.

Strategy: tokens in, tokens out; the nonce is an argument, so that nothing here is random. The server sends a challenge,
we answer with a digest of the password and both nonces, and the server proves in the same way that it knows the
password. MD5 is what the mechanism is made of, and a reader of the exchange can try passwords: TLS is what protects
it. What a server says is hostile: a challenge is shorter than 2,048 bytes, and its fields are parsed to the last byte.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import Final

from consumerd.wire.errors import WireError

#: Challenges of this size and above are invalid (RFC 2831, 2.1.1).
CHALLENGE_LIMIT: Final = 2048
#: name=value or name="value", and the comma after it.
_FIELD: Final = re.compile(
    rb'[ \t]*([A-Za-z0-9-]+)[ \t]*=[ \t]*(?:"((?:[^"\\]|\\.)*)"|([^\s",;]+))[ \t]*(?:,|\Z)', re.DOTALL
)
_ESCAPED: Final = re.compile(rb"\\(.)", re.DOTALL)
#: The count of answers to one challenge: there is only one.
_COUNT: Final = b"00000001"


class DigestMd5Error(WireError):
    """The server breaks the protocol, offers what we do not have, or has not proved that it knows the password."""


class DigestMd5Client:
    """One authentication: `respond` to the server's challenge, then to its proof. The first token is empty.

    `uri` is service and server name, `zookeeper/zk-sasl-md5` with ZooKeeper; `nonce`: printable ASCII without quotes
    and backslashes, never used before.
    """

    def __init__(self, user: str, password: str, *, uri: str, nonce: str) -> None:
        self._user = user
        self._password = password
        self._uri = uri.encode("ascii")
        self._nonce = nonce.encode("ascii")
        self._proof: bytes | None = None

    def respond(self, challenge: bytes) -> bytes | None:
        """The token after the server's; None when it has proved itself. Raises DigestMd5Error."""
        if self._proof is None:
            return self._answer(challenge)
        proof, self._proof = self._proof, None
        if not hmac.compare_digest(_fields(challenge).get(b"rspauth", b""), proof):
            raise DigestMd5Error("the server's proof that it knows the password (rspauth) is wrong")
        return None

    def _answer(self, challenge: bytes) -> bytes:
        offer = _fields(challenge)
        nonce = offer.get(b"nonce", b"")
        if not nonce:
            raise DigestMd5Error("the challenge has no nonce")
        if offer.get(b"algorithm", b"").lower() != b"md5-sess":
            raise DigestMd5Error("the challenge names another algorithm than md5-sess")
        if b"auth" not in re.split(rb"[ \t]*,[ \t]*", offer.get(b"qop", b"auth").strip()):
            raise DigestMd5Error("the server requires integrity or privacy: let it offer qop auth, and use TLS")
        unicode = offer.get(b"charset", b"").lower() == b"utf-8"
        realm = offer.get(b"realm", b"")
        user, _ = (_encoded(text, unicode=unicode) for text in (self._user, self._password))
        # What Latin-1 can express is hashed in it, whatever the character set of the fields is (2.1.2.1).
        secret = _md5(b":".join((_narrow(self._user), _narrow_bytes(realm), _narrow(self._password))))
        session = _md5(b":".join((secret, nonce, self._nonce))).hex().encode()
        between = b":".join((nonce, _COUNT, self._nonce, b"auth"))

        def digest(method: bytes) -> bytes:
            what = _md5(method + b":" + self._uri).hex().encode()
            return _md5(b":".join((session, between, what))).hex().encode()

        self._proof = digest(b"")
        fields = [b"charset=utf-8"] if unicode else []
        fields.append(b"username=" + _quoted(user))
        if b"realm" in offer:
            fields.append(b"realm=" + _quoted(realm))
        fields += [
            b"nonce=" + _quoted(nonce),
            b"nc=" + _COUNT,
            b"cnonce=" + _quoted(self._nonce),
            b"digest-uri=" + _quoted(self._uri),
            b"response=" + digest(b"AUTHENTICATE"),
            b"qop=auth",
        ]
        return b",".join(fields)


def _fields(challenge: bytes) -> dict[bytes, bytes]:
    """The values by their names in lower case, the first of each."""
    if len(challenge) >= CHALLENGE_LIMIT:
        raise DigestMd5Error(f"the challenge has {len(challenge)} bytes; it must have fewer than {CHALLENGE_LIMIT}")
    found: dict[bytes, bytes] = {}
    position = 0
    while position < len(challenge):
        field = _FIELD.match(challenge, position)
        if field is None:
            raise DigestMd5Error("the challenge cannot be parsed")
        name, quoted, plain = field.groups()
        found.setdefault(name.lower(), plain if quoted is None else _ESCAPED.sub(rb"\1", quoted))
        position = field.end()
    return found


def _quoted(value: bytes) -> bytes:
    return b'"' + re.sub(rb'(["\\])', rb"\\\1", value) + b'"'


def _encoded(text: str, *, unicode: bool) -> bytes:
    try:
        return text.encode("utf-8" if unicode else "latin-1")
    except UnicodeEncodeError:
        raise DigestMd5Error("the server accepts only characters of Latin-1 in user and password") from None


def _narrow(text: str) -> bytes:
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        return text.encode()


def _narrow_bytes(utf8: bytes) -> bytes:
    try:
        return _narrow(utf8.decode())
    except UnicodeDecodeError:
        return utf8


def _md5(data: bytes) -> bytes:
    return hashlib.md5(data, usedforsecurity=False).digest()
