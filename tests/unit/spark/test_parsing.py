from __future__ import annotations

import pytest

from consumerd.spark.parsing import group_numbers


@pytest.mark.parametrize(
    ("pattern", "numbers"),
    [
        (r"(?<a>x)(?<b>y)", {"a": 1, "b": 2}),
        (r"(x)(?:y)(?=z)(?<!q)(?<=q)(?<b>y)", {"b": 2}),
        (r"\((?<a>[(]+)\)[^)(\]]((?<b>.)|x)", {"a": 1, "b": 3}),
        (r"\Q((\E(?<a>.)", {"a": 1}),
        (r"[a[(b]&&(]](?<a>.)", {"a": 1}),
        (r"(?>(?i)x)(?<a>.)(?i:y)", {"a": 1}),
        ("no groups", {}),
    ],
)
def test_numbers_groups_as_java_does(pattern: str, numbers: dict[str, int]) -> None:
    assert group_numbers(pattern) == numbers
