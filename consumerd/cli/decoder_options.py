"""`--decoder` and `--decoder-option`, and options of plugins in the form KEY=VALUE."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from typing import Any

import click

from consumerd.cli.config_option import Decorated, together


def decoder_options(help_text: str) -> Callable[[Decorated], Decorated]:
    """`--decoder` (parameter `decoder`), with this help text, and `--decoder-option` (`decoder_options`)."""
    about = "An option of the decoder; VALUE is TOML."
    return together(
        click.option("--decoder", metavar="NAME", help=help_text),
        click.option("--decoder-option", "decoder_options", multiple=True, metavar="KEY=VALUE", help=about),
    )


def decoder_table(decoder: str | None, options: Sequence[str]) -> dict[str, Any]:
    """The keys of `[handler]` that these options stand for; none without a decoder. Raises UsageError."""
    if decoder is None:
        if options:
            raise click.UsageError("--decoder-option needs --decoder.")
        return {}
    return {"decoder": decoder, "decoder_options": plugin_options(options, "--decoder-option")}


def plugin_options(options: Sequence[str], hint: str) -> dict[str, Any]:
    """The options of a plugin from texts KEY=VALUE, given as `hint`. Raises BadParameter."""
    values: dict[str, Any] = {}
    for option in options:
        name, equals, text = option.partition("=")
        if not (name and equals):
            raise click.BadParameter(f"{option!r} must have the form KEY=VALUE.", param_hint=hint)
        try:
            values[name] = tomllib.loads(f"value = {text}")["value"]
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise click.BadParameter(
                f'the value of {name} must be TOML, such as "text", 5 or [1, 2]: {error}', param_hint=hint
            ) from None
    return values
