"""Topic filters: the subscription of a member with a whitelist or blacklist.

Ring 0. The text is normalised as 0.7.2 does (golden notes, 4) and matched against the whole name with Java's rules
(`consumerd.wire.registry.regex`; docs/topic-filters.md). Every member of a group must compute the same set of topics,
so a construct whose meaning is not certain is refused instead of approximated.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache

from consumerd.wire.registry import regex
from consumerd.wire.registry.errors import RegistryError

#: Characters of a filter; room for a list of some hundreds of topics.
MAX_FILTER_LENGTH = 16_384

#: The characters that Java's `trim` removes at both ends: everything up to the blank.
_TRIMMED = "".join(map(chr, range(0x21)))


class FilterKind(Enum):
    """Whether the pattern names the topics to include or to exclude."""

    WHITELIST = "*"
    BLACKLIST = "!"


def normalise(text: str) -> str:
    """Normalise as 0.7.2: trimmed, each `,` a `|`, no blanks, no quotes around it (from property files)."""
    return text.strip(_TRIMMED).replace(",", "|").replace(" ", "").strip("\"'")


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> regex.Program:
    return regex.parse(pattern)


@lru_cache(maxsize=65_536)
def _matches(pattern: str, topic: str) -> bool | RegistryError:
    """Return the result or the error, so that the cache has the error, too: it takes the longest."""
    try:
        return regex.matches(_compiled(pattern), topic)
    except RegistryError as error:
        return error


@dataclass(frozen=True, slots=True)
class TopicFilter:
    """A whitelist or blacklist. `text` is normalised when it is made; equal filters compare equal.

    Raises RegistryError for a pattern that is too long or not in the supported subset.
    """

    kind: FilterKind
    text: str
    _size: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.text) > MAX_FILTER_LENGTH:
            raise RegistryError(
                f"a topic filter of {len(self.text)} characters is too long: at most {MAX_FILTER_LENGTH} are read"
            )
        object.__setattr__(self, "text", normalise(self.text))
        object.__setattr__(self, "_size", regex.size(_compiled(self.text)))

    def matches(self, topic: str) -> bool:
        """Whether `topic` is included: its whole name matches (whitelist), or does not match (blacklist).

        Raises RegistryError for a pattern so intricate that one name takes a hundred thousand steps.
        """
        found = _matches(self.text, topic)
        if isinstance(found, RegistryError):
            raise RegistryError(str(found))
        return found is (self.kind is FilterKind.WHITELIST)

    def require_re2(self) -> None:
        """Raise RegistryError for a pattern that a broker, which has RE2, does not match as this filter does."""
        regex.require_re2(self.text)

    def steps_for(self, topic: str) -> int:
        """Return the most steps, of about half a microsecond each, of a match of `topic`."""
        return min(self._size * (len(topic) + 1), regex.MAX_STEPS)


class Whitelist(TopicFilter):
    """The topics whose whole name matches `text`."""

    __slots__ = ()

    def __init__(self, text: str) -> None:
        super().__init__(FilterKind.WHITELIST, text)


class Blacklist(TopicFilter):
    """The topics whose whole name does not match `text`."""

    __slots__ = ()

    def __init__(self, text: str) -> None:
        super().__init__(FilterKind.BLACKLIST, text)
