"""Types of parameters and their options: positive numbers, files that exist, addresses; each with its sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from consumerd.base.errors import ConsumerdError, NotFoundError
from consumerd.base.settings.kind import Ge, Gt, Le, ValueKind
from consumerd.cli.config_option import Decorated


class ExistingFile(click.Path):
    """A file to read. Raises NotFoundError if it does not exist, and BadParameter for a directory."""

    def __init__(self, *, allow_dash: bool = False, path_type: type | None = None) -> None:
        super().__init__(dir_okay=False, allow_dash=allow_dash, path_type=path_type)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Raises NotFoundError, BadParameter."""
        found = super().convert(value, param, ctx)
        if not (self.allow_dash and value == "-") and not Path(value).exists():
            raise NotFoundError(f"{value} does not exist: check its name, and the directory that it is in")
        return found


class ZooKeeperAddress(click.types.StringParamType):
    """Servers and chroot of ZooKeeper, as text."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Raises BadParameter."""
        from consumerd.net.zk.connect_string import parse_connect_string  # noqa: PLC0415 - only where it is given

        try:
            parse_connect_string(value)
        except ConsumerdError as error:
            raise click.BadParameter(f"{error}.", ctx=ctx, param=param) from None
        return value


def zookeeper_option(flag: str, about: str, **more: Any) -> Callable[[Any], Any]:
    """An option with servers and chroot of a ZooKeeper. `about`: its help."""
    return click.option(flag, type=ZooKeeperAddress(), help=about, **{"metavar": "HOST:PORT/CHROOT", **more})


def seconds_option(
    flag: str, default: float | None, about: str, *, from_zero: bool = False
) -> Callable[[Decorated], Decorated]:
    """An option with a time in seconds, positive or `from_zero` on. `about`: its help."""
    kind = click.FloatRange(0) if from_zero else PositiveFloat()
    return click.option(flag, type=kind, default=default, show_default=True, metavar="SECONDS", help=about)


class _Judged:
    """A number; the sentence about a value that is not allowed is that of settings of this kind."""

    kind: ValueKind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Raises BadParameter."""
        try:
            return super().convert(value, param, ctx)  # type: ignore[misc]
        except click.BadParameter:
            raise click.BadParameter(f"must be {self.kind.words()}, not {value}.", ctx=ctx, param=param) from None


class PositiveFloat(_Judged, click.FloatRange):
    """A number greater than 0."""

    def __init__(self) -> None:
        super().__init__(0, min_open=True)
        self.kind = ValueKind(float, bounds=(Gt(0),))


class PositiveInt(_Judged, click.IntRange):
    """A whole number of at least 1, and of at most `most`."""

    def __init__(self, most: int | None = None) -> None:
        super().__init__(1, most)
        self.kind = ValueKind(int, bounds=(Ge(1), *(() if most is None else (Le(most),))))
