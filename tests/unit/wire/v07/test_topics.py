from __future__ import annotations

import pytest

from consumerd.wire import InvalidTopicError
from consumerd.wire.v07 import validate_topic


@pytest.mark.parametrize(
    "name", ["events", "a.b", "a-b-0", "...", "with space", "a:b", "a,b", "a*b", "привет", "x" * 255, "\ufe00", "😀"]
)
def test_accepted(name: str) -> None:
    validate_topic(name)


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "a/b", "a\0b", "\x1f", "\x7f", "\x85", "\x9f", "\ud800", "\ue000", "\uf8ff", "\ufff0", "\uffff"],
)
def test_refused(name: str) -> None:
    with pytest.raises(InvalidTopicError):
        validate_topic(name)


def test_the_borders_of_the_refused_ranges() -> None:
    for accepted in ("\x20", "\x7e", "\xa0", "\ud7ff", "\uf900", "\uffef"):
        validate_topic(accepted)


def test_length_counts_utf_16_units() -> None:
    with pytest.raises(InvalidTopicError, match="longer than 255"):
        validate_topic("x" * 256)
    validate_topic("😀" * 127)
    with pytest.raises(InvalidTopicError, match="longer than 255"):
        validate_topic("😀" * 128)


def test_the_longest_name_is_an_argument() -> None:
    validate_topic("abc", max_length=3)
    with pytest.raises(InvalidTopicError, match="longer than 3"):
        validate_topic("abcd", max_length=3)
