"""What keeps a member out of its group."""

from __future__ import annotations

from consumerd.errors import ZooKeeperError


class GroupRefusedError(ZooKeeperError):
    """The group speaks a dialect that must not be mixed with 0.7's."""

    def __init__(self, group: str, reason: str) -> None:
        super().__init__(f"cannot join group {group!r}: {reason}")
