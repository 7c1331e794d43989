"""Which origin has the partitions of a query: files, live brokers of either dialect, the daemon's own files.

Strategy: one function; each kind of place has a module of its own, which is loaded only when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumerd.spark.source.options import BootstrapPlace, FilesPlace, PathPlace

if TYPE_CHECKING:
    from consumerd.spark.source.logs import Origin
    from consumerd.spark.source.options import SourceOptions


def open_origin(options: SourceOptions) -> Origin:
    """The origin of these options; nothing is looked at yet."""
    if isinstance(options.place, PathPlace):
        from consumerd.spark.source.v07.archive_origin import ArchiveOrigin  # noqa: PLC0415

        return ArchiveOrigin(options.place, options)
    if isinstance(options.place, FilesPlace):
        from consumerd.spark.source.files.origin import FilesOrigin  # noqa: PLC0415

        return FilesOrigin(options.place, options)
    if isinstance(options.place, BootstrapPlace):
        from consumerd.spark.source.v08.origin import V08Origin  # noqa: PLC0415

        return V08Origin(options.place, options)
    from consumerd.spark.source.v07.origin import BrokerOrigin  # noqa: PLC0415

    return BrokerOrigin(options.place, options)
