"""The implementation that serves a query's options: an origin for its partitions, a committer for its offsets.

Strategy: two functions; each dialect has modules of its own, which are imported only when they are needed.
"""

from __future__ import annotations

from typing import Protocol

from consumerd.spark.source.logs import Origin
from consumerd.spark.source.offsets import Offsets
from consumerd.spark.source.option_values import BootstrapLocation, FilesLocation, PathLocation, ZooKeeperLocation
from consumerd.spark.source.options import SourceOptions


class Committer(Protocol):
    """Writes the offsets of one group for tools that show lag; the source never reads them.

    Methods raise RefusedError while the group is in use by consumers.
    """

    def check(self) -> None:
        """Raise if nothing could be written: the group is in use, or its name is invalid."""
        ...

    def commit(self, offsets: Offsets) -> int:
        """Write the offsets that a stream has reached; returns how many changed. Raises a ConsumerdError."""
        ...

    def commit_if_possible(self, offsets: Offsets) -> None:
        """As `commit`, but only log a warning while ZooKeeper or the brokers are unavailable."""
        ...


def open_origin(options: SourceOptions) -> Origin:
    """The origin of these options; nothing is read yet."""
    if isinstance(options.location, PathLocation):
        from consumerd.spark.source.v07.archive_origin import ArchiveOrigin  # noqa: PLC0415

        return ArchiveOrigin(options.location, options)
    if isinstance(options.location, FilesLocation):
        from consumerd.spark.source.files.origin import FilesOrigin  # noqa: PLC0415

        return FilesOrigin(options.location, options)
    if isinstance(options.location, BootstrapLocation):
        from consumerd.spark.source.v08.origin import V08Origin  # noqa: PLC0415

        return V08Origin(options.location, options)
    from consumerd.spark.source.v07.origin import BrokerOrigin  # noqa: PLC0415

    return BrokerOrigin(options.location, options)


def committer_of(options: SourceOptions) -> Committer | None:
    """The committer of these options; None where no offsets are to be written."""
    if not options.commit_offsets or options.group_id is None:
        return None
    if isinstance(options.location, ZooKeeperLocation):
        from consumerd.spark.source.v07.commits import ZooKeeperCommitter  # noqa: PLC0415

        return ZooKeeperCommitter(options.location.connect, options.group_id)
    if isinstance(options.location, BootstrapLocation):
        from consumerd.spark.source.v08.commits import V08Committer  # noqa: PLC0415

        return V08Committer(options.location, options.group_id, options.timeout)
    return None
