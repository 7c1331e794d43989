"""The rule for topic names that a 0.7.2 broker accepts (golden notes, 1: everything but this)."""

from __future__ import annotations

import re
from functools import lru_cache

from consumerd.wire.errors import InvalidTopicError

#: The broker's max.topic.name.length.
MAX_TOPIC_LENGTH = 255

_ILLEGAL = re.compile("[/\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]")


#: A broker is asked for the same names again and again; what is raised is not kept.
@lru_cache(maxsize=256)
def validate_topic(name: str, *, max_length: int = MAX_TOPIC_LENGTH) -> None:
    """Raise InvalidTopicError for a name that the broker would refuse; `max_length` counts UTF-16 units as the JVM
    does.
    """
    if not name:
        raise InvalidTopicError("the topic name is empty")
    if name in {".", ".."}:
        raise InvalidTopicError(f"the topic name {name!r} would be a directory of its own kind; choose another")
    if len(name.encode("utf-16-le", "surrogatepass")) > 2 * max_length:
        raise InvalidTopicError(f"the topic name {name[:20]!r}... is longer than {max_length} characters")
    found = _ILLEGAL.search(name)
    if found:
        raise InvalidTopicError(
            f"the topic name {name!r} holds {found.group()!r}, which brokers refuse: no slash, control, surrogate or "
            "private-use characters"
        )


#: Invisible characters that change how a name is shown, or how a program reads it: controls, marks of
#: direction, ends of lines. The two joiners of letters are part of many alphabets.
_UNSEEN = frozenset({"Cc", "Cf", "Zl", "Zp"})
_JOINERS = "\u200c\u200d"


def validate_new_topic(name: str, *, max_length: int = MAX_TOPIC_LENGTH) -> None:
    """As `validate_topic`, for a topic that does not exist yet, with stricter rules than those of 0.7.2.

    Also raises InvalidTopicError for a name that begins with a dot, which tools take for a hidden folder, for one with
    invisible characters, and for one with a character above U+FFFF, which no ZooKeeper node can have in its name.
    """
    validate_topic(name, max_length=max_length)
    if name.startswith("."):
        raise InvalidTopicError(f"no topic {name!r} is made, because its name begins with a dot; choose another name")
    highest = max(name)
    if highest > "\uffff":
        raise InvalidTopicError(
            f"no topic {name!r} is made, because its name holds {highest!r}, a character above U+FFFF, which no "
            "ZooKeeper node can have in its name; choose another name"
        )
    import unicodedata  # noqa: PLC0415 - a table of 1 MiB, and only new topics need it

    found = next((char for char in name if unicodedata.category(char) in _UNSEEN and char not in _JOINERS), None)
    if found is not None:
        raise InvalidTopicError(
            f"no topic {name!r} is made, because its name holds {found!r}, which nobody sees; choose another name"
        )
