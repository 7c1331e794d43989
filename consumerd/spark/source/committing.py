"""Where the offsets that a stream has reached are written for tools that show lag, if anywhere.

Strategy: one question with three answers, so that a stream and `land` need not know of places: nowhere, ZooKeeper,
where 0.7 keeps offsets, or the brokers, where those of 0.9 and later do. Nothing ever reads them back here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from consumerd.spark.source.options import BootstrapPlace, ZooKeeperPlace

if TYPE_CHECKING:
    from consumerd.spark.source.offsets import Offsets
    from consumerd.spark.source.options import SourceOptions


class Committer(Protocol):
    """Writes the offsets of one group, which has to be nobody else's. Methods raise RefusedError where it is."""

    def check(self) -> None:
        """Raise where nothing could be written: the group is in use, or cannot be one."""
        ...

    def commit(self, offsets: Offsets) -> int:
        """Write where a stream is; returns how many offsets changed. Raises a ConsumerdError."""
        ...

    def commit_if_possible(self, offsets: Offsets) -> None:
        """As `commit`, but only a warning where nobody can be asked now."""
        ...


def committer_of(options: SourceOptions) -> Committer | None:
    """None: nothing is to be written."""
    if not options.commit_offsets or options.group_id is None:
        return None
    # Few streams write offsets, so what it takes is loaded only then.
    if isinstance(options.place, ZooKeeperPlace):
        from consumerd.spark.source.v07.commits import ZooKeeperCommitter  # noqa: PLC0415

        return ZooKeeperCommitter(options.place.connect, options.group_id)
    if isinstance(options.place, BootstrapPlace):
        from consumerd.spark.source.v08.commits import V08Committer  # noqa: PLC0415

        return V08Committer(options.place, options.group_id, options.timeout)
    return None
