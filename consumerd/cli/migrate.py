"""`consumerd migrate`: the tools for leaving an old cluster, beside the mirror.

Strategy: a group whose commands live in modules of their own, named here and imported when called.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping

import click

#: command -> (module, what the list of commands says about it); each module has a `command`.
COMMANDS: dict[str, tuple[str, str]] = {
    "verify": ("consumerd.cli.migrate_verify", "Compare what an old cluster or archive holds with a new cluster."),
    "offsets": ("consumerd.cli.migrate_offsets", "Move a group's committed offsets to another store or cluster."),
}


class LazyCommands(click.Group):
    """A group whose commands are imported on first use. `modules`: as `COMMANDS`."""

    modules: Mapping[str, tuple[str, str]] = COMMANDS

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order in which they are used."""
        return list(self.modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's module; None for an unknown name."""
        if cmd_name not in self.modules:
            return None
        command = importlib.import_module(self.modules[cmd_name][0]).command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in self.modules.items()])


@click.group("migrate", cls=LazyCommands)
def command() -> None:
    """Leave an old cluster: verify what was copied, move committed offsets."""
