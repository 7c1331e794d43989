"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677), the client's side: neither side shows the password.

Strategy: tokens in, tokens out; the nonce is an argument, so that nothing here is random. There is no channel binding,
which brokers do not have. As brokers do it, user and password are UTF-8 as they stand, and are not normalised. What a
server says is hostile: it must take up our nonce, and its number of rounds has bounds, below which a password could be
guessed from our proof, and above which a server could keep us busy.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
from base64 import b64decode, b64encode
from typing import Final

from consumerd.wire.errors import WireError

#: Mechanism -> its hash.
SCRAM_HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
#: The fewest rounds that RFC 7677 allows, and more than anybody has.
FEWEST_ROUNDS: Final = 4096
MOST_ROUNDS: Final = 1 << 20
#: "No channel binding, and no other name than the user's", as it begins the first token and, in base64, the last.
_HEADER: Final = b"n,,"


class ScramError(WireError):
    """The server breaks the protocol, or has not proved that it knows the password."""


class ScramClient:
    """One authentication: `first`, then `respond` until there is nothing left to say.

    `mechanism` is a key of `SCRAM_HASHES`; `nonce`: printable ASCII without a comma, never used before.
    """

    def __init__(self, mechanism: str, user: str, password: str, nonce: str) -> None:
        self._hash = SCRAM_HASHES[mechanism]
        self._password = password.encode()
        self._nonce = nonce.encode("ascii")
        name = user.replace("=", "=3D").replace(",", "=2C").encode()
        self._bare = b"n=" + name + b",r=" + self._nonce
        self._signature: bytes | None = None
        self._begun = False

    def first(self) -> bytes:
        """The first token."""
        self._begun = True
        return _HEADER + self._bare

    def respond(self, challenge: bytes) -> bytes | None:
        """The token after the server's; None when it has proved itself. Raises ScramError."""
        if not self._begun:
            raise ScramError("it sent a challenge before the first message")
        if self._signature is None:
            return self._prove(challenge)
        proof = _fields(challenge)
        if b"e" in proof:
            raise ScramError(f"it reported {proof[b'e'].decode('ascii', 'replace')!r}")
        if not hmac.compare_digest(_decoded(proof.get(b"v", b"")), self._signature):
            raise ScramError("its signature is wrong")
        self._begun = False
        return None

    def _prove(self, challenge: bytes) -> bytes:
        offer = _fields(challenge)
        if b"m" in offer:
            raise ScramError("it requires an unsupported extension")
        nonce, rounds = offer.get(b"r", b""), offer.get(b"i", b"")
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise ScramError("its nonce does not extend the client's")
        if not (rounds.isdigit() and len(rounds) <= len(str(MOST_ROUNDS))):
            raise ScramError("its iteration count is invalid")
        if not FEWEST_ROUNDS <= int(rounds) <= MOST_ROUNDS:
            raise ScramError(f"its iteration count is {int(rounds)}, and must be from {FEWEST_ROUNDS} to {MOST_ROUNDS}")
        if not (salt := _decoded(offer.get(b"s", b""))):
            raise ScramError("it has no salt")
        salted = hashlib.pbkdf2_hmac(self._hash, self._password, salt, int(rounds))
        last = b"c=" + b64encode(_HEADER) + b",r=" + nonce
        said = b",".join((self._bare, challenge, last))
        key = self._keyed(salted, b"Client Key")
        ours = self._keyed(hashlib.new(self._hash, key).digest(), said)
        self._signature = self._keyed(self._keyed(salted, b"Server Key"), said)
        return last + b",p=" + b64encode(bytes(one ^ other for one, other in zip(key, ours, strict=True)))

    def _keyed(self, key: bytes, text: bytes) -> bytes:
        return hmac.digest(key, text, self._hash)


def _fields(token: bytes) -> dict[bytes, bytes]:
    """The values of a token by their letters, the first of each."""
    found: dict[bytes, bytes] = {}
    for part in token.split(b","):
        letter, sign, value = part.partition(b"=")
        if not (sign and len(letter) == 1):
            raise ScramError("it is not a SCRAM message")
        found.setdefault(letter, value)
    return found


def _decoded(text: bytes) -> bytes:
    try:
        return b64decode(text, validate=True)
    except binascii.Error:
        raise ScramError("it is not valid base64") from None
