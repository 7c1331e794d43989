"""The contexts of TLS: one way to make them of files, for every client and server."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Final

from consumerd.base.errors import ConfigError

#: The alerts by which a server refuses the certificate of a client, or says that it requires one (RFC 8446, 6.2).
_ABOUT_CERTIFICATES: Final = frozenset(
    {
        "access_denied",
        "bad_certificate",
        "certificate_expired",
        "certificate_required",
        "certificate_revoked",
        "certificate_unknown",
        "unknown_ca",
        "unsupported_certificate",
    }
)


def certificate_alert(error: BaseException | None) -> str | None:
    """Return the alert of an SSLError if it is about the client's certificate, by the name that TLS gives it."""
    # OpenSSL's names are such as TLSV13_ALERT_CERTIFICATE_REQUIRED.
    _, _, alert = str(getattr(error, "reason", None)).lower().partition("_alert_")
    return alert if alert in _ABOUT_CERTIFICATES else None


def certificate_remedy(certificate: Path | str | None, setting: str, key_setting: str) -> str:
    """Return what to check where a server refuses the client's certificate: the file, and the settings' names."""
    if certificate is None:
        return f"set {setting} and {key_setting}, because the broker requires a certificate of its clients"
    return f"{setting} is {certificate}; check which authority signed it, and whether it has expired"


def make_tls_context(
    *,
    ca: Path | str | None = None,
    certificate: Path | str | None = None,
    key: Path | str | None = None,
    password: Callable[[], str] | None = None,
    check_hostname: bool = True,
    server: bool = False,
) -> ssl.SSLContext:
    """Return the context of a client or a server, with the PEM files of its authorities, certificate and private key.

    A client trusts the system's authorities by default, a server asks for certificates of clients only with `ca`.
    `password` is called for an encrypted key; OpenSSL would otherwise ask at the terminal, where a service would wait.
    Raises ConfigError, whose text begins with the key of the file that cannot be used: `ca: FILE: ...`.
    """
    import ssl  # noqa: PLC0415 - not everyone speaks TLS

    what = f"{'client_ca' if server else 'ca'}: {ca}"
    try:
        if server:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=ca)
            context.verify_mode = ssl.CERT_NONE if ca is None else ssl.CERT_REQUIRED
        else:
            context = ssl.create_default_context(cafile=ca)
            context.check_hostname = check_hostname
        if certificate is not None:
            what = f"certificate: {' with the key '.join(str(file) for file in (certificate, key) if file is not None)}"
            context.load_cert_chain(certificate, key, password=password or _refuse_to_unlock)
    except OSError as error:  # SSLError is one
        reason = error.strerror if error.strerror and not isinstance(error, ssl.SSLError) else error
        raise ConfigError(f"{what}: {reason}.") from error
    return context


def _refuse_to_unlock() -> str:
    raise PermissionError(0, "the key is encrypted, and a service cannot ask for its password; use a key without one")
