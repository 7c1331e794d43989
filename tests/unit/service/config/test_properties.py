from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumerd.base.errors import ConfigError
from consumerd.service.config.properties import format_properties, parse_properties, read_properties


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"", {}),
        (b"# a=1\n  ! b=2\n\n \t\n", {}),
        (b"a=1\nb:2\nc 3\nd\t=\t4 \ne", {"a": "1", "b": "2", "c": "3", "d": "4 ", "e": ""}),
        (b"a = b = c\r\nd::e\rf =:g", {"a": "b = c", "d": ":e", "f": ":g"}),
        (b"a=1\na=2", {"a": "2"}),
        (b"a=1,\\\n   2,\\\r\n\t3\nb=\\\\\nc=4", {"a": "1,2,3", "b": "\\", "c": "4"}),
        (b"a=1\\\n#2\n", {"a": "1#2"}),
        (b"a=1\\", {"a": "1"}),
        (b"a\\ b\\=c\\:d=1", {"a b=c:d": "1"}),
        (b"a=\\t\\n\\x\\u00e9\\ud83d\\ude00", {"a": "\t\nx\u00e9\U0001f600"}),
        (b"a=\xe9\xc3\xa9", {"a": "\u00e9\u00c3\u00a9"}),
        (b"a=#b!c", {"a": "#b!c"}),
        (b"=1", {"": "1"}),
    ],
)
def test_reads_properties_as_java_does(text: bytes, expected: dict[str, str]) -> None:
    assert parse_properties(text, "here") == expected


@given(st.dictionaries(st.text(), st.text()))
def test_reads_back_what_it_writes(values: dict[str, str]) -> None:
    assert parse_properties(format_properties(values).encode(), "here") == values


def test_names_the_line_of_a_broken_escape(tmp_path: Path) -> None:
    path = tmp_path / "c.properties"
    path.write_bytes(b"\na=1\nb=\\u12")
    with pytest.raises(ConfigError, match=r"c.properties, line 3: \\u needs four"):
        read_properties(path)
    with pytest.raises(ConfigError, match=r"cannot read .*: No such file"):
        read_properties(tmp_path / "none")


def test_byte_order_mark_is_not_part_of_the_first_key() -> None:
    assert parse_properties(b"\xef\xbb\xbfgroupid=g\n", "consumer.properties") == {"groupid": "g"}
