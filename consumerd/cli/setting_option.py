"""An option whose default is that of a setting, which is imported only where the default is needed."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import partial
from typing import Any

import click

from consumerd.cli.config_option import Decorated


def fetch_isolation_option(about: str) -> Callable[[Decorated], Decorated]:
    """`--isolation` (parameter `isolation`, None where it is not given) of what fetches messages. `about`: its help."""
    return setting_option(
        "--isolation",
        setting="consumerd.base.settings.processing:FetchSection.isolation",
        type=click.Choice(["read_uncommitted", "read_committed"]),
        help=f"{about}  [default: {{default}}]",
    )


class SettingOption(click.Option):
    """`setting` is `module:Class.field`: the field, or the key of a table, whose default this option has.

    `words` makes the option's text of it.
    Where the help text has a `{default}`, the default is only shown, and the command gets None if the option is not
    given: it can then tell whether it was.
    """

    def __init__(self, *names: Any, setting: str, words: Callable[[Any], Any] | None = None, **attributes: Any) -> None:
        self._setting, self._words = setting, words
        self._only_shown = "{default}" in attributes["help"]
        super().__init__(*names, **attributes)

    def get_default(self, ctx: click.Context, call: bool = True) -> Any:
        """The default of the setting; None where it is only shown."""
        return None if self._only_shown else self._find()

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """The help text with the default."""
        template, self.help = self.help, (self.help or "").replace("{default}", f"{self._find()}")
        try:
            return super().get_help_record(ctx)
        finally:
            self.help = template

    def _find(self) -> Any:
        module, _, path = self._setting.partition(":")
        owner, _, name = path.partition(".")
        settings = getattr(importlib.import_module(module), owner)
        if is_dataclass(settings):
            default = next(field.default for field in fields(settings) if field.name == name)
        else:
            default = getattr(settings, name)
        if self._words is not None:
            return self._words(default)
        if isinstance(default, Enum):
            return default.name.lower()
        return f"{default:g}" if self._only_shown and isinstance(default, float) else default


#: As `click.option`, with `setting` and `words` of `SettingOption`.
setting_option = partial(click.option, cls=SettingOption)
