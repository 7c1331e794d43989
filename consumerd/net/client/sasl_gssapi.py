"""GSSAPI, that is Kerberos, as a mechanism of SASL (RFC 4752): tickets instead of passwords.

Strategy: the system's Kerberos library does all that is Kerberos, by the package `gssapi`; here is the sequence. Tokens
are exchanged until the context is established; then the server offers layers of protection as a bit mask, and we choose
none, as Java's clients do by default: encryption is TLS's. The server has no token for our choice.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from consumerd.net.client.errors import AuthenticationError
from consumerd.net.client.sasl import GSSAPI, extra
from consumerd.net.errors import ConnectError

#: Bits of the layers of protection that a server may offer: none, integrity, confidentiality.
NO_LAYER: Final = 1
#: A mask and the largest message, which has no effect without a layer.
_OFFER_BYTES: Final = 4
#: Kerberos's code for a key distribution centre that does not answer: a transient error.
_KDC_UNREACHABLE: Final = -1765328228
_caches = itertools.count(1)


class GssapiIdentity:
    """The client's principal in Kerberos, and the servers' service name.

    `service`: the first part of the servers' principals (a broker's sasl.kerberos.service.name; `zookeeper`), whose
    second is the server's host. `principal`: ours; by default that of the credential cache, or the first of the
    keytab. `keytab`: a file with our keys; without one the credential cache must hold a ticket ($KRB5CCNAME, kinit).
    Raises ConfigError where the extra `gssapi` is missing.
    """

    def __init__(self, *, service: str = "kafka", principal: str | None = None, keytab: Path | None = None) -> None:
        self.gssapi: Any = extra("gssapi", GSSAPI, "gssapi")
        self.service = service
        self._principal = principal
        self._store = (
            # Tickets obtained with the keytab are kept for the next connection, in memory of this process.
            {"client_keytab": str(keytab), "ccache": f"MEMORY:consumerd-{next(_caches)}"} if keytab else None
        )

    def __call__(self) -> Gssapi:
        """Begin an authentication."""
        return Gssapi(self)

    def context(self, host: str) -> Any:
        """Create a security context with the server at `host`. May contact the key distribution centre."""
        gssapi = self.gssapi
        principal = self._principal and gssapi.Name(self._principal, gssapi.NameType.kerberos_principal)
        credentials = None
        if principal or self._store:
            credentials = gssapi.Credentials(name=principal, usage="initiate", store=self._store)
        return gssapi.SecurityContext(
            name=gssapi.Name(f"{self.service}@{host}", gssapi.NameType.hostbased_service),
            creds=credentials,
            usage="initiate",
            mech=gssapi.MechType.kerberos,
            flags=[gssapi.RequirementFlag.mutual_authentication, gssapi.RequirementFlag.integrity],
        )


@dataclass
class Gssapi:
    """One authentication with GSSAPI. Its methods block while Kerberos contacts the key distribution centre."""

    identity: GssapiIdentity
    name = GSSAPI
    ends_unanswered = False
    _context: Any = None

    def first(self, host: str) -> bytes:
        return self._guarded(lambda: self._open(host), f"there is no ticket for {self.identity.service}@{host}")

    def respond(self, challenge: bytes) -> bytes | None:
        if self.ends_unanswered:
            return None
        return self._guarded(lambda: self._answer(challenge), "the server's token is not what Kerberos expects")

    def _open(self, host: str) -> bytes:
        self._context = self.identity.context(host)
        return self._context.step() or b""

    def _answer(self, challenge: bytes) -> bytes:
        context = self._context
        if not context.complete:
            return context.step(challenge) or b""  # the context is established when the server has authenticated, too
        choice = choose_no_layer(context.unwrap(challenge).message)
        self.ends_unanswered = True
        answer: bytes = context.wrap(choice, False).message
        return answer

    def _guarded(self, step: Any, what: str) -> bytes:
        try:
            token: bytes = step()
        except self.identity.gssapi.exceptions.GSSError as error:
            if error.min_code - (1 << 32) == _KDC_UNREACHABLE:
                raise ConnectError(f"GSSAPI: {what}: {_said(error)}") from error
            raise AuthenticationError(f"GSSAPI: {what}: {_said(error)}") from error
        return token


def choose_no_layer(offer: bytes) -> bytes:
    """Return the answer to the server's layers: none, and no name but the ticket's. Raises AuthenticationError."""
    if len(offer) != _OFFER_BYTES:
        raise AuthenticationError(
            f"GSSAPI: the server sent its security layers in {len(offer)} bytes; there must be {_OFFER_BYTES}"
        )
    if not offer[0] & NO_LAYER:
        raise AuthenticationError(
            "GSSAPI: the server insists on a layer of protection: use TLS for that, and let it offer auth"
        )
    return bytes([NO_LAYER, 0, 0, 0])


def _said(error: Any) -> str:
    """Return Kerberos's own message, in one line."""
    return " ".join(str(error).split())
