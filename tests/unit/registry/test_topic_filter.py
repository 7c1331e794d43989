from __future__ import annotations

import pytest

from consumerd.registry import MAX_FILTER_LENGTH, FilterKind, RegistryError, TopicFilter
from consumerd.registry.topic_filter import normalise


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
def test_text_is_normalised_as_072_does(text: str, normal: str) -> None:
    assert normalise(text) == normal


def test_the_whole_name_has_to_match() -> None:
    assert allowed("alpha|beta", "alpha", "beta", "alphabet", "xbeta", "") == ["alpha", "beta"]
    assert allowed("a|ab", "a", "ab", "abb") == ["a", "ab"]
    assert allowed("", "", "a") == [""]


def test_a_blacklist_lets_the_others_through() -> None:
    assert allowed("gamma.*", "gamma", "gamma-x", "alpha", kind=FilterKind.BLACKLIST) == ["alpha"]


def test_equal_filters_are_equal() -> None:
    assert TopicFilter(FilterKind.WHITELIST, "a , b") == TopicFilter(FilterKind.WHITELIST, "a|b")
    assert TopicFilter(FilterKind.WHITELIST, "a") != TopicFilter(FilterKind.BLACKLIST, "a")
    assert len({TopicFilter(FilterKind.WHITELIST, "a , b"), TopicFilter(FilterKind.WHITELIST, "a|b")}) == 1


def test_commas_inside_braces_become_what_072_makes_of_them() -> None:
    with pytest.raises(RegistryError, match="is no repetition"):
        TopicFilter(FilterKind.WHITELIST, "a{1,2}")


def test_a_filter_has_a_greatest_length() -> None:
    TopicFilter(FilterKind.WHITELIST, "a" * MAX_FILTER_LENGTH)
    with pytest.raises(RegistryError, match="too long"):
        TopicFilter(FilterKind.WHITELIST, "a" * (MAX_FILTER_LENGTH + 1))


def test_a_list_of_hundreds_of_topics_fits() -> None:
    topics = [f"service.{number}.events" for number in range(600)]
    assert allowed(",".join(topics), *topics, "service.600.events") == topics
