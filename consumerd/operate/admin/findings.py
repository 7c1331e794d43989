"""The findings about a group and their fixes, which the diagnosis and the doctor share."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import NamedTuple

#: Things that a sentence lists.
_LISTED = 6


class GroupFindingKind(StrEnum):
    """The kind of a finding. The values are part of the output."""

    NO_BROKERS = "no-brokers"
    MIXED_DIALECTS = "mixed-dialects"
    BROKEN_ID = "broken-id"
    STALE_ID = "stale-id"
    FOREIGN_NODE = "foreign-node"
    BROKEN_OWNER = "broken-owner"
    STALE_OWNER = "stale-owner"
    ZOMBIE_OWNER = "zombie-owner"
    FOREIGN_SESSION = "foreign-session"
    OTHER_RULE = "other-rule"
    MIXED_RULES = "mixed-rules"
    MISPLACED = "misplaced"
    GAVE_UP = "gave-up"
    UNOWNED = "unowned"
    BLACK_HOLE = "black-hole"
    OPEN_TRANSACTION = "open-transaction"
    STANDING_STILL = "standing-still"
    BROKEN_OFFSET = "broken-offset"
    OUT_OF_RANGE = "offset-out-of-range"
    FORMER_LOG = "offset-of-former-log"
    TRUNCATED_LOG = "offset-of-truncated-log"
    INSIDE_MESSAGE = "offset-inside-message"
    NO_PARTITION = "offset-without-partition"
    SILENT_BROKER = "silent-broker"
    NO_LEADER = "no-leader"
    STORES_DIFFER = "stores-differ"
    REBALANCING = "rebalancing"
    NOT_CHECKED = "not-checked"
    NO_MEMBERS = "no-members"


#: A state that every rebalance causes for a moment: a finding only if a second snapshot has it, too.
TRANSIENT = frozenset(
    {
        GroupFindingKind.ZOMBIE_OWNER,
        GroupFindingKind.FOREIGN_SESSION,
        GroupFindingKind.MISPLACED,
        GroupFindingKind.GAVE_UP,
        GroupFindingKind.UNOWNED,
        GroupFindingKind.NO_LEADER,
        GroupFindingKind.REBALANCING,
    }
)
#: Worth knowing, but nothing that has to be mended.
NOTICES = frozenset(
    {
        GroupFindingKind.STANDING_STILL,
        GroupFindingKind.NO_PARTITION,
        GroupFindingKind.SILENT_BROKER,
        GroupFindingKind.NO_MEMBERS,
        GroupFindingKind.FOREIGN_NODE,
        GroupFindingKind.OTHER_RULE,
        GroupFindingKind.STORES_DIFFER,
        GroupFindingKind.NOT_CHECKED,
    }
)


class NudgeGroup(NamedTuple):
    """Make all members rebalance."""


class Removal(NamedTuple):
    """Delete one node. `created_zxid` says which incarnation (None: whichever); `safe`: nothing can depend on it."""

    path: str
    created_zxid: int | None
    safe: bool


class OffsetReset(NamedTuple):
    """Set the offset node at `path`, of this version, from `before` to `after`."""

    path: str
    version: int
    before: int
    after: int


Fix = NudgeGroup | Removal | OffsetReset


@dataclass(frozen=True, slots=True)
class GroupFinding:
    """One thing that is wrong. `says` explains it, `remedy` tells what to do, `fix` is what can be done from here."""

    kind: GroupFindingKind
    #: A partition (`topic/broker-partition`, `topic/partition`), a consumer id, a broker, or the path of a node.
    subject: str
    says: str
    remedy: str
    fix: Fix | None = None

    @property
    def is_notice(self) -> bool:
        """Whether it is a notice, and nothing has to be fixed."""
        return self.kind in NOTICES


_CONSUMER_ID = re.compile(r"(?P<host>.+)-(?P<ms>[0-9]{12,14})-[0-9a-f]{1,8}")


def process_of(group: str, consumer_id: str) -> str:
    """Return a phrase for the process of a member: generated ids have the host and the start time."""
    match = _CONSUMER_ID.fullmatch(consumer_id.removeprefix(f"{group}_"))
    if match is None:
        return f"the process of {consumer_id}"
    started = datetime.fromtimestamp(int(match["ms"]) / 1000, UTC)
    return f"the process on {match['host']} that started at {started:%Y-%m-%d %H:%M:%S} UTC"


def capital(text: str) -> str:
    """The text as the beginning of a sentence."""
    return text[:1].upper() + text[1:]


def listed(things: Sequence[object]) -> str:
    """The first few of `things`, and how many more there are."""
    names = ", ".join(map(str, things[:_LISTED]))
    return f"{names} and {len(things) - _LISTED} more" if len(things) > _LISTED else names
