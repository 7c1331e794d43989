"""Line numbers of keys, compared with what `tomllib` reads."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumerd.service.config.key_lines import KeyPath, key_lines
from consumerd.service.config.toml_text import toml_key, toml_value

ROOT = Path(__file__).resolve().parents[4]


def paths(value: Any, path: KeyPath = ()) -> set[KeyPath]:
    inner: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return {path} - {()} | {found for name, each in inner for found in paths(each, (*path, name))}


TEXT = '''\
# a = 1
top = 1 # b = 2
"quoted.key" . 'literal' = "x = 1 # \\" ]"

[table]
multi = """
fake = 1
[no]
""\\""""" # five quotes end it
literal = \'\'\'
fake = 1 \\\'\'\'
date = 1979-05-27 07:32:00
dotted.inner = true
inline = { a = [1, { b = 2 }], c.d = "}" }
list = [ # a comment ]
  [1,
   2],

  { name = "]" },
]
[ table . sub ]
"\\u00e9" = 1
[[many]]
a = 1
[[many]]
a = 2
[many.sub]
b = 3
[[many.deep]]
[many.deep.last]
c = ""
'''


def test_gives_the_line_of_every_key() -> None:
    lines = key_lines(TEXT)
    assert set(lines) == paths(tomllib.loads(TEXT))
    expected: dict[KeyPath, int] = {
        ("top",): 2,
        ("quoted.key", "literal"): 3,
        ("table",): 5,
        ("table", "multi"): 6,
        ("table", "literal"): 10,
        ("table", "date"): 12,
        ("table", "dotted", "inner"): 13,
        ("table", "inline", "a", 1, "b"): 14,
        ("table", "inline", "c", "d"): 14,
        ("table", "list", 0, 1): 17,
        ("table", "list", 1, "name"): 19,
        ("table", "sub", "\u00e9"): 22,
        ("many", 0, "a"): 24,
        ("many", 1, "a"): 26,
        ("many", 1, "sub", "b"): 28,
        ("many", 1, "deep", 0, "last", "c"): 31,
    }
    assert {path: lines[path] for path in expected} == expected


@pytest.mark.parametrize("name", ["config.example.toml", "pyproject.toml"])
def test_finds_every_key_of_a_file(name: str) -> None:
    text = (ROOT / name).read_text()
    lines = key_lines(text)
    assert set(lines) == paths(tomllib.loads(text))
    written = text.splitlines()
    for path, line in lines.items():
        if isinstance(path[-1], str):
            assert path[-1] in written[line - 1]


def test_counts_lines_that_end_in_crlf() -> None:
    assert key_lines("a = 1\r\n\r\n[b]\r\nc = 2\r\n")["b", "c"] == 4


_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
_VALUES = st.recursive(
    st.booleans() | st.integers(-9, 9) | _TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(_TEXTS, st.dictionaries(_TEXTS, _VALUES, max_size=4), max_size=4))
def test_finds_the_keys_of_any_document(document: dict[str, dict[str, Any]]) -> None:
    rows: list[str] = []
    expected: dict[KeyPath, int] = {}
    for table, values in document.items():
        rows.append(f"[{toml_key(table)}]")
        expected[(table,)] = len(rows)
        for key, value in values.items():
            rows += ["", f"{toml_key(key)} = {toml_value(value)}"]
            expected |= dict.fromkeys({(table, key), *paths(value, (table, key))}, len(rows))
    assert key_lines("\n".join(rows)) == expected
