"""Types of options whose values must be positive, with the sentence that says so."""

from __future__ import annotations

from typing import Any

import click


def _reject(value: Any, param: click.Parameter | None, ctx: click.Context | None) -> click.BadParameter:
    return click.BadParameter(f"must be a positive number, not {value}.", ctx=ctx, param=param)


class PositiveFloat(click.FloatRange):
    """A number greater than 0."""

    def __init__(self) -> None:
        super().__init__(0, min_open=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Raises BadParameter."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            raise _reject(value, param, ctx) from None


class PositiveInt(click.IntRange):
    """A whole number of at least 1, and of at most `most`."""

    def __init__(self, most: int | None = None) -> None:
        super().__init__(1, most)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Raises BadParameter."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            if str(value).strip().isdecimal() and int(value) > 0:
                raise  # too large: the range says so
            raise _reject(value, param, ctx) from None
