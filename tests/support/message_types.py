"""Types of the messages of Kafka 0.8 and later, made from their schemas: `python -m tests.support.message_types`.

Strategy: one TypedDict for each message and for each structure in it, which is named for its field, and for the field
around it where an API has two of that name. A field that some version of its message lacks is not required, nor is one
of a request that has a default. What differs between versions (null, an array of names and later of structures) is a
union. Arrays of requests are sequences, so that any list of rows fits; those of responses are the lists of the codec.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from consumerd.wire.v08.apis import APIS, controller
from consumerd.wire.v08.schema import REQUIRED, Api, Direction, Field, FieldType

MODULE: Final = Path(__file__).parents[2] / "consumerd" / "wire" / "v08" / "message_types.py"
_HEAD: Final = '''\
"""Types of the messages, for type checkers: no other module imports this one at run time.

`python -m tests.support.message_types` makes it from the schemas in `consumerd.wire.v08.apis`. Do not edit it.
"""
# ruff: noqa: UP013  # the form with fewer lines
# fmt: off

from collections.abc import Sequence
from typing import NotRequired, TypedDict

'''
_WORDS: Final = {
    FieldType.BOOLEAN: "bool",
    FieldType.STRING: "str",
    FieldType.BYTES: "bytes",
    FieldType.RECORDS: "bytes | memoryview",
    FieldType.UUID: "bytes",
}
#: The APIs that no code of ours sends or serves: nothing has bodies of them to check.
UNTYPED: Final = [value.key for value in vars(controller).values() if isinstance(value, Api)]
#: In place of a space at which no line ends.
_GLUE: Final = "\0"


def source() -> str:
    """The text of the module."""
    definitions: dict[str, str] = {}
    for api in APIS.values():
        if api.key in UNTYPED:
            continue
        versions = range(api.versions[0], api.versions[1] + 1)
        for direction in ("request", "response"):
            message = api.name + direction.capitalize()
            _define(definitions, [message], message, getattr(api, direction), versions, direction)
    return _HEAD + "".join(map(_statement, definitions, definitions.values()))


def _define(
    definitions: dict[str, str],
    names: list[str],
    message: str,
    fields: tuple[Field, ...],
    versions: Iterable[int],
    direction: Direction,
) -> str:
    """Add a structure of messages of `versions`, after those in it. Return the first of `names` that is free for it."""
    entries = []
    for name in dict.fromkeys(field.name for field in fields):
        kinds: dict[str, None] = {}
        lacking, optional = set(versions), False
        for field in fields:
            present = list(filter(field.in_version, versions))
            if field.name != name or not present:
                continue
            lacking.difference_update(present)
            optional |= direction == "request" and field.default is not REQUIRED
            word = _WORDS.get(field.of if isinstance(field.of, FieldType) else field.type, "int")
            if isinstance(field.of, tuple) and field.of:
                row = name.title().replace("_", "").removesuffix("s")
                inner = [message + row, names[0] + row, f"{message}{row}s"]
                word = _define(definitions, inner, message, field.of, present, direction)
            if field.type is FieldType.ARRAY:
                word = f"Sequence[{word}]" if direction == "request" else f"list[{word}]"
            kinds.update(
                dict.fromkeys([word, "None"] if field.null_in(present[-1]) or field.default is None else [word])
            )
        words = " | ".join(sorted(kinds, key="None".__eq__))
        entries.append(f'"{name}": NotRequired[{words}]' if lacking or optional else f'"{name}": {words}')
    text = ", ".join(entry.replace(" ", _GLUE) for entry in entries)
    chosen = next(name for name in names if definitions.get(name, text) == text)
    definitions[chosen] = text
    return chosen


def _statement(name: str, text: str) -> str:
    lines = textwrap.wrap(
        f'{name} = TypedDict("{name}", {{{text}}})'.replace(" = ", f"{_GLUE}={_GLUE}"),
        120,
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines).replace(_GLUE, " ") + "\n"


if __name__ == "__main__":
    MODULE.write_text(source(), encoding="utf-8")
