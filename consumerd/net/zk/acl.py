"""Access control for created nodes: `open`, `creator`, `creator-all`, or a list of `scheme:id:perms`.

Strategy: the scheme ends at the first colon and the permissions begin after the last, so that ids may hold colons
(`digest:user:hash:cdrwa`, `ip:2001:db8::/32:r`). Permissions are ZooKeeper's letters: create, delete, read, write,
admin.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aiozk.protocol import acl as wire

from consumerd.base.errors import ConfigError

AclSetting = str | Sequence[str]

_NAMED = {
    "open": ["world:anyone:cdrwa"],
    "creator": ["auth::cdrwa", "world:anyone:r"],
    "creator-all": ["auth::cdrwa"],
}
_BITS = {
    "r": wire.ACL.READ_PERM,
    "w": wire.ACL.WRITE_PERM,
    "c": wire.ACL.CREATE_PERM,
    "d": wire.ACL.DELETE_PERM,
    "a": wire.ACL.ADMIN_PERM,
}


def parse_acl(setting: AclSetting) -> list[Any]:
    """Return the ACL entries (aiozk's `ACL`) of a setting. Raises ConfigError."""
    if isinstance(setting, str):
        if setting not in _NAMED:
            raise ConfigError(
                f"the ACL must be `open`, `creator`, `creator-all` or a list of scheme:id:perms, not {setting!r}"
            )
        setting = _NAMED[setting]
    if not setting:
        raise ConfigError("the list of ACL entries is empty; write `open` for nodes that everybody may change")
    return [_parse_entry(entry) for entry in setting]


def split_acl(text: str) -> AclSetting:
    """Return the setting of a configuration's text: a name, or entries separated by commas."""
    return text if text in _NAMED else text.split(",")


def needs_identity(setting: AclSetting) -> bool:
    """Whether an entry stands for the creator, so that the server refuses it without credentials or a certificate."""
    entries = _NAMED.get(setting, []) if isinstance(setting, str) else setting
    return any(entry.startswith("auth:") for entry in entries)


def _parse_entry(entry: str) -> Any:
    scheme, first, rest = entry.partition(":")
    identity, last, letters = rest.rpartition(":")
    if not (scheme and first and last and letters and set(letters) <= _BITS.keys()):
        raise ConfigError(f"the ACL entry {entry!r} is not scheme:id:perms with perms of the letters cdrwa")
    perms = 0
    for letter in letters:
        perms |= _BITS[letter]
    return wire.ACL(perms=perms, id=wire.ID(scheme=scheme, id=identity))
