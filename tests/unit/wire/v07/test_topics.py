from __future__ import annotations

import pytest

from consumerd.wire import InvalidTopicError
from consumerd.wire.v07 import validate_new_topic, validate_topic


@pytest.mark.parametrize(
    "name", ["events", "a.b", "a-b-0", "...", "with space", "a:b", "a,b", "a*b", "привет", "x" * 255, "\ufe00", "😀"]
)
def test_accepts_valid_topics(name: str) -> None:
    validate_topic(name)


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "a/b", "a\0b", "\x1f", "\x7f", "\x85", "\x9f", "\ud800", "\ue000", "\uf8ff", "\ufff0", "\uffff"],
)
def test_rejects_invalid_topics(name: str) -> None:
    with pytest.raises(InvalidTopicError):
        validate_topic(name)


def test_rejects_characters_up_to_the_borders_of_the_ranges() -> None:
    for accepted in ("\x20", "\x7e", "\xa0", "\ud7ff", "\uf900", "\uffef"):
        validate_topic(accepted)


def test_counts_length_in_utf_16_units() -> None:
    with pytest.raises(InvalidTopicError, match="longer than 255"):
        validate_topic("x" * 256)
    validate_topic("😀" * 127)
    with pytest.raises(InvalidTopicError, match="longer than 255"):
        validate_topic("😀" * 128)
    validate_topic("😀" * 127 + "x")


def test_takes_the_longest_name_as_an_argument() -> None:
    validate_topic("abc", max_length=3)
    with pytest.raises(InvalidTopicError, match="longer than 3"):
        validate_topic("abcd", max_length=3)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (".hidden", "begins with a dot"),
        ("evil\u202egnp.exe", r"holds '\\u202e', which nobody sees"),
        ("a\u2066b", "which nobody sees"),
        ("a\u200eb", "which nobody sees"),
        ("a\ufeffb", "which nobody sees"),
        ("a\u2028b", "which nobody sees"),
        ("a\u00adb", "which nobody sees"),
        ("a\x9bb", "which brokers refuse"),
        ("a🎈b", "holds '🎈', a character above U\\+FFFF, which no ZooKeeper node can have in its name"),
        ("\U00010000", "above U"),
    ],
)
def test_rejects_names_for_new_topics(name: str, sentence: str) -> None:
    with pytest.raises(InvalidTopicError, match=sentence):
        validate_new_topic(name)


@pytest.mark.parametrize("name", ["words", "a.b", "Größe", "می\u200cشود", "क्\u200dष", "a b", "\uffef"])
def test_accepts_names_for_new_topics(name: str) -> None:
    validate_new_topic(name)
