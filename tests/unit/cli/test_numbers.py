"""Options that take positive numbers."""

from __future__ import annotations

import click
import pytest

from consumerd.cli.numbers import PositiveFloat, PositiveInt


def test_accepts_positive_numbers() -> None:
    assert PositiveFloat().convert("0.5", None, None) == 0.5
    assert (PositiveInt().convert("7", None, None), PositiveInt(7).convert("7", None, None)) == (7, 7)


@pytest.mark.parametrize("text", ["0", "-1", "x", ""])
def test_rejects_what_is_not_positive(text: str) -> None:
    for option_type in (PositiveFloat(), PositiveInt(), PositiveInt(7)):
        with pytest.raises(click.BadParameter, match=f"^must be a positive number, not {text}.$"):
            option_type.convert(text, None, None)


def test_names_the_range_of_a_number_that_is_too_large() -> None:
    with pytest.raises(click.BadParameter, match="8 is not in the range 1<=x<=7"):
        PositiveInt(7).convert("8", None, None)
