"""Tables: their keys by inheritance, values that no file sets, and what their constructors judge."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from consumerd.base.settings.setting import BrokenRulesError, Field, Seconds, Section, Tuned, as_json


class Times(Section):
    """Keys that several tables have."""

    limit: Seconds = Field(4.0, "Seconds.")

    def rules(self) -> Iterator[str]:
        """The rule that is broken."""
        if self.limit == 7.0:
            yield "limit must not be 7"


class Room(Times):
    """A table with more of them, and with what follows from them."""

    size: int = Field(8, "Bytes.", ge=1)
    half: int = Tuned(factory=lambda room: room.size // 2)
    pause: float = Tuned(0.5)


def test_an_heir_has_its_own_keys_before_those_of_its_bases() -> None:
    assert [*Room.fields] == ["size", "limit"]
    assert Room.fields["limit"] is Times.fields["limit"]
    assert "size" not in Times.fields
    assert (Room.limit, Room.pause) == (4.0, 0.5)


def test_tuned_values_follow_from_the_keys_unless_they_are_given() -> None:
    room = Room(size=6)
    assert (room.half, room.pause, room.replace(size=20).half) == (3, 0.5, 10)
    given = Room(size=6, half=1, pause=2.0)
    assert (given.half, given.pause, given.replace(size=20).half) == (1, 2.0, 1)
    assert room == Room(size=6, half=3)
    assert room != given
    assert as_json(room) == {"size": 6, "limit": 4.0}


def test_a_table_of_others_has_the_keys_that_were_given_to_them() -> None:
    made = Room.of(Times(limit=2.0), pause=1.0)
    assert (made.limit, made.pause, sorted(made.given)) == (2.0, 1.0, ["limit", "pause"])


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"limit": 0}, "limit must be a positive number of seconds, not 0"),
        ({"size": 0, "limit": True}, "size must be a positive whole number, not 0; limit must be a positive number"),
        ({"limit": 7.0}, "limit must not be 7"),
    ],
)
def test_a_constructor_judges_its_values(values: dict[str, float], says: str) -> None:
    with pytest.raises(BrokenRulesError, match=says):
        Room(**values)  # type: ignore[arg-type]


def test_a_constructor_takes_no_other_names() -> None:
    with pytest.raises(TypeError, match="Room has no key 'sise'"):
        Room(sise=1)  # type: ignore[call-arg]


def test_a_key_is_not_called_as_an_attribute_of_all_tables() -> None:
    with pytest.raises(TypeError, match=r"Broken\.fields is the name of an attribute of all tables"):

        class Broken(Section):
            fields: int = 1  # type: ignore[assignment, misc]
