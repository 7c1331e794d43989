"""From the configuration to who we are for brokers that ask."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumerd.client import Plain, Scram
from consumerd.client.sasl_gssapi import GssapiIdentity
from consumerd.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from consumerd.client import Mechanism
    from consumerd.config.servers import SaslSection


def build_mechanism(section: SaslSection) -> Callable[[], Mechanism]:
    """What begins to prove who we are. Raises ConfigError, also where the extra of a mechanism is missing."""
    if section.mechanism == "GSSAPI":
        return _gssapi(section)
    user, password = section.user or "", ""
    if section.password is not None:
        password = section.password.get_secret_value()
    if section.password_file is not None:
        try:
            password = section.password_file.read_text("utf-8").partition("\n")[0].rstrip("\r")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"kafka.sasl.password_file: {error}.") from error
    if not password:
        raise ConfigError(f"kafka.sasl.password_file: {section.password_file} holds no password in its first line.")

    def make() -> Mechanism:  # no partial, whose repr() has the password
        return Plain(user, password) if section.mechanism == "PLAIN" else Scram(section.mechanism, user, password)

    make()  # a mechanism that cannot be had is known before the first connection
    return make


def _gssapi(section: SaslSection) -> GssapiIdentity:
    if section.keytab is not None:
        try:
            section.keytab.open("rb").close()
        except OSError as error:
            raise ConfigError(f"kafka.sasl.keytab: {error}.") from error
    return GssapiIdentity(service=section.service, principal=section.principal, keytab=section.keytab)
