from __future__ import annotations

import pytest

from consumerd.wire.registry.errors import RegistryError
from consumerd.wire.registry.topic_filter import MAX_FILTER_LENGTH, FilterKind, TopicFilter, normalise


def allowed(pattern: str, *topics: str, kind: FilterKind = FilterKind.WHITELIST) -> list[str]:
    topic_filter = TopicFilter(kind, pattern)
    return [topic for topic in topics if topic_filter.matches(topic)]


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("alpha, beta", "alpha|beta"),
        ("\t alpha\n", "alpha"),
        ("'alpha'", "alpha"),
        ("\"'alpha , beta'\"", "alpha|beta"),
        ('alpha , "beta', 'alpha|"beta'),
        ("a b", "ab"),
        ("a\tb", "a\tb"),
        ("a{1,2}", "a{1|2}"),
        ("\u00a0a\u00a0", "\u00a0a\u00a0"),
        ('"""', ""),
    ],
)
def test_normalises_text_as_0_7_2_does(text: str, normal: str) -> None:
    assert normalise(text) == normal


def test_matches_whole_names() -> None:
    assert allowed("alpha|beta", "alpha", "beta", "alphabet", "xbeta", "") == ["alpha", "beta"]
    assert allowed("a|ab", "a", "ab", "abb") == ["a", "ab"]
    assert allowed("", "", "a") == [""]


def test_blacklist_excludes_what_matches() -> None:
    assert allowed("gamma.*", "gamma", "gamma-x", "alpha", kind=FilterKind.BLACKLIST) == ["alpha"]


def test_filters_compare_by_value() -> None:
    assert TopicFilter(FilterKind.WHITELIST, "a , b") == TopicFilter(FilterKind.WHITELIST, "a|b")
    assert TopicFilter(FilterKind.WHITELIST, "a") != TopicFilter(FilterKind.BLACKLIST, "a")
    assert len({TopicFilter(FilterKind.WHITELIST, "a , b"), TopicFilter(FilterKind.WHITELIST, "a|b")}) == 1


def test_turns_commas_inside_braces_into_what_0_7_2_makes_of_them() -> None:
    with pytest.raises(RegistryError, match="is not a repetition"):
        TopicFilter(FilterKind.WHITELIST, "a{1,2}")


def test_limits_the_length_of_a_filter() -> None:
    TopicFilter(FilterKind.WHITELIST, "a" * MAX_FILTER_LENGTH)
    with pytest.raises(RegistryError, match="too long"):
        TopicFilter(FilterKind.WHITELIST, "a" * (MAX_FILTER_LENGTH + 1))


def test_allows_a_list_of_hundreds_of_topics() -> None:
    topics = [f"service.{number}.events" for number in range(600)]
    assert allowed(",".join(topics), *topics, "service.600.events") == topics
