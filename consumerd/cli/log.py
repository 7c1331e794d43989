"""`consumerd log`: read segment files of any Kafka without a broker."""

from __future__ import annotations

import click

from consumerd.cli.lazy_commands import LazyCommands

COMMANDS: dict[str, tuple[str, str]] = {
    "ls": ("consumerd.cli.log_ls", "List the partitions in an archive: sizes, offsets and times."),
    "verify": ("consumerd.cli.log_verify", "Check every message of an archive, and how its segments fit together."),
    "dump": ("consumerd.cli.log_dump", "Show every message or batch of segment files."),
    "export": ("consumerd.cli.log_export", "Write an archive to NDJSON or Parquet, or replay it into a cluster."),
    "offsets": (
        "consumerd.cli.log_offsets",
        "Show the offsets of groups in an archive, and move them to a cluster.",
    ),
    "transactions": (
        "consumerd.cli.log_transactions",
        "Show the last transaction of each transactional id.",
    ),
}


@click.group("log", cls=LazyCommands, modules=COMMANDS)
def command() -> None:
    """Read segment files, .kafka of 0.7 and .log of 0.8 and later, without a broker."""
