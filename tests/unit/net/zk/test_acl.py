from __future__ import annotations

from collections.abc import Sequence

import pytest

from consumerd.base.errors import ConfigError
from consumerd.net.zk.acl import needs_identity, parse_acl, split_acl


def entries(setting: str | Sequence[str]) -> list[tuple[str, str, int]]:
    return [(entry.id.scheme, entry.id.id, entry.perms) for entry in parse_acl(setting)]


def test_open_grants_everything_to_everybody() -> None:
    assert entries("open") == [("world", "anyone", 31)]


def test_creator_all_grants_everything_to_the_authenticated() -> None:
    assert entries("creator-all") == [("auth", "", 31)]


def test_creator_grants_others_reading_alone() -> None:
    assert entries("creator") == [("auth", "", 31), ("world", "anyone", 1)]


@pytest.mark.parametrize("name", ["open", "creator", "creator-all"])
def test_splits_entries_and_keeps_names(name: str) -> None:
    assert split_acl(name) == name
    assert split_acl("auth::cdrwa,world:anyone:r") == ["auth::cdrwa", "world:anyone:r"]


def test_allows_colons_in_ids() -> None:
    assert entries(["digest:bob:aGFzaA==:rw", "ip:2001:db8::/32:r", "world:anyone:a", "auth::cd"]) == [
        ("digest", "bob:aGFzaA==", 3),
        ("ip", "2001:db8::/32", 1),
        ("world", "anyone", 16),
        ("auth", "", 12),
    ]


@pytest.mark.parametrize(
    "setting", ["", "closed", [], ["world:anyone"], ["world:anyone:"], ["world:anyone:x"], [":a:r"]]
)
def test_rejects_invalid_entries(setting: str | Sequence[str]) -> None:
    with pytest.raises(ConfigError):
        parse_acl(setting)


def test_entries_for_the_creator_need_credentials() -> None:
    assert needs_identity("creator-all")
    assert needs_identity("creator")
    assert needs_identity(["world:anyone:r", "auth::cdrwa"])
    assert not needs_identity("open")
    assert not needs_identity(["digest:a:b:r"])
