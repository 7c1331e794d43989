"""`consumerd migrate`: the tools for leaving an old cluster, beside the mirror."""

from __future__ import annotations

import click

from consumerd.cli.lazy_commands import LazyCommands

COMMANDS: dict[str, tuple[str, str]] = {
    "verify": ("consumerd.cli.migrate_verify", "Compare what an old cluster or archive holds with a new cluster."),
    "offsets": ("consumerd.cli.migrate_offsets", "Move a group's committed offsets to another store or cluster."),
}


@click.group("migrate", cls=LazyCommands, modules=COMMANDS)
def command() -> None:
    """Leave an old cluster: verify what was copied, move committed offsets."""
