"""`LazyCommands`: a group of commands that live in modules of their own, which are imported when they are called."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click

from consumerd.base.errors import did_you_mean


class LazyCommands(click.Group):
    """A group whose commands are imported on first use.

    `modules`: command -> (module, what the list of commands says about it), in the order of `--help`; each module has a
    `command`.
    """

    def __init__(self, *arguments: Any, modules: Mapping[str, tuple[str, str]], **extra: Any) -> None:
        super().__init__(*arguments, **extra)
        self.modules = modules

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of `modules`."""
        return list(self.modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's module; None for an unknown name."""
        if cmd_name not in self.modules:
            return None
        command = importlib.import_module(self.modules[cmd_name][0]).command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click, with the nearest name for one that does not exist."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError:
            ctx.fail(f"No such command {args[0]!r}{did_you_mean(args[0], self.modules)}")

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in self.modules.items()])
