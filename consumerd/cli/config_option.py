"""`-c`, `--config`, the option of all commands that read a configuration, and others that many commands have.

By itself, as `consumerd run` can be stopped by a signal before anything heavy is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

#: The function that a decorator of click takes and returns.
Decorated = TypeVar("Decorated", bound="Callable[..., Any]")


def together(*options: Callable[[Any], Any]) -> Callable[[Decorated], Decorated]:
    """One decorator of several options, which `--help` shows in this order."""

    def decorate(function: Decorated) -> Decorated:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def file_option(*flags: str, about: str) -> Callable[[Decorated], Decorated]:
    """An option that names a file. `about`: its help."""
    return click.option(*flags, type=click.Path(path_type=Path), metavar="FILE", help=about)


def servers_option(*flags: str, about: str, required: bool = False) -> Callable[[Decorated], Decorated]:
    """An option with the addresses of brokers, once or several times. `about`: its help."""
    return click.option(*flags, multiple=True, required=required, metavar="HOST:PORT,...", help=about)


def json_option(shape: str) -> Callable[[Decorated], Decorated]:
    """`--json` (parameter `as_json`); `shape` is its help text."""
    return click.option("--json", "as_json", is_flag=True, help=shape)


def subscription_option() -> Callable[[Decorated], Decorated]:
    """`--subscription`: of a configuration with several, the one whose handler is used."""
    return click.option(
        "--subscription", metavar="NAME", help="With -c: the handler of this one of [[subscriptions]]. [default: main]"
    )


def config_option(
    description: str = "Configuration file (TOML).", *, required: bool = True
) -> Callable[[Decorated], Decorated]:
    """`-c`, `--config` (parameter `path`): a configuration file, with this help text."""
    return click.option(
        "-c",
        "--config",
        "path",
        required=required,
        type=click.Path(path_type=Path),
        metavar="FILE",
        help=description,
    )
