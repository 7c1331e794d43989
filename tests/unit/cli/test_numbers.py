"""Options that take positive numbers."""

from __future__ import annotations

import click
import pytest

from consumerd.cli.numbers import PositiveFloat, PositiveInt


def test_accepts_positive_numbers() -> None:
    assert PositiveFloat().convert("0.5", None, None) == 0.5
    assert (PositiveInt().convert("7", None, None), PositiveInt(7).convert("7", None, None)) == (7, 7)


@pytest.mark.parametrize("text", ["0", "-1", "x", "", "8"])
def test_rejects_other_values_with_the_sentence_of_settings(text: str) -> None:
    for option_type, words in (
        (PositiveFloat(), "a positive number"),
        (PositiveInt(), "a positive whole number"),
        (PositiveInt(7), "a positive whole number up to 7"),
    ):
        if text == "8" and words != "a positive whole number up to 7":
            continue
        with pytest.raises(click.BadParameter, match=f"^must be {words}, not {text}.$"):
            option_type.convert(text, None, None)
