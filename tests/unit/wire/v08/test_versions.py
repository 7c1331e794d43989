from __future__ import annotations

import re

import pytest

from consumerd.wire.v08.apis import FETCH, JOIN_GROUP, METADATA, OFFSET_COMMIT, PRODUCE
from consumerd.wire.v08.errors import UnsupportedApiError
from consumerd.wire.v08.throttle import LONGEST, silence
from consumerd.wire.v08.versions import BrokerRelease, BrokerVersions, versions_of_answer
from tests.support.feature_needs import PAGE, feature_needs, field_names
from tests.support.kafka import RELEASES


def test_picks_the_highest_common_version() -> None:
    versions = BrokerVersions("b:1", BrokerRelease.V0_10_OR_NEWER, {METADATA.key: (2, 99), FETCH.key: (4, 6)})
    assert versions.pick(METADATA) == METADATA.versions[1]
    assert versions.pick(METADATA, at_most=4) == 4
    assert versions.pick(FETCH) == 6
    assert versions.has(FETCH, 6)
    assert not versions.has(FETCH, 7)
    assert not versions.has(PRODUCE)


@pytest.mark.parametrize(
    ("at_least", "at_most", "says"),
    [(7, None, "serves Fetch in versions 4 to 6, but one of 7 to"), (0, 3, "but one of 0 to 3 is needed")],
)
def test_error_names_both_ranges_without_a_common_version(at_least: int, at_most: int | None, says: str) -> None:
    versions = BrokerVersions("b:1", BrokerRelease.V0_10_OR_NEWER, {FETCH.key: (4, 6)})
    with pytest.raises(UnsupportedApiError, match=says):
        versions.pick(FETCH, at_least=at_least, at_most=at_most)


def test_knows_the_versions_of_brokers_without_api_versions() -> None:
    old = BrokerVersions.of("b:1", BrokerRelease.V0_8)
    assert old.pick(OFFSET_COMMIT) == 1
    with pytest.raises(UnsupportedApiError, match=r"broker b:1 \(Kafka 0\.8\) does not serve JoinGroup"):
        old.pick(JOIN_GROUP)
    newer = BrokerVersions.of("b:1", BrokerRelease.V0_9)
    assert (newer.pick(OFFSET_COMMIT), newer.pick(JOIN_GROUP), newer.pick(PRODUCE), newer.pick(METADATA)) == (
        2,
        0,
        1,
        0,
    )


def test_ignores_unknown_apis() -> None:
    versions = versions_of_answer(
        "b:1",
        [{"api_key": 3, "min_version": 0, "max_version": 4}, {"api_key": 9999, "min_version": 0, "max_version": 1}],
    )
    assert versions.ranges == {3: (0, 4)}


def test_respects_throttle_time_since_the_version_that_leaves_waiting_to_clients() -> None:
    assert silence(FETCH, 7, {"throttle_time_ms": 500}) == 0
    assert silence(FETCH, 8, {"throttle_time_ms": 500}) == 0.5
    assert silence(PRODUCE, 6, {}) == 0
    assert silence(PRODUCE, 6, {"throttle_time_ms": -5}) == 0
    assert silence(PRODUCE, 6, {"throttle_time_ms": 10**12}) == LONGEST


def test_table_of_features_names_the_version_that_adds_each_field() -> None:
    needs = feature_needs()
    assert len(needs) > 20
    for need in needs:
        first, last = need.api.versions
        assert first <= need.version <= last, need
        if need.field:
            having = [one for one in range(first, last + 1) if need.field in field_names(need.api, one)]
            assert having[0] == need.version, need
    assert [need.broker for need in needs] == sorted(need.broker for need in needs)


def test_page_of_brokers_names_every_release_that_the_tests_run() -> None:
    rows = PAGE.read_text("utf-8").partition("## Apache Kafka")[2].partition("## Features")[0]
    named = [name for cell in re.findall(r"^\| (\d[\d., ]+) \|", rows, re.MULTILINE) for name in cell.split(", ")]
    assert named == ["0.7", *RELEASES]


@pytest.mark.parametrize(("number", "release"), [((0, 8, 2), BrokerRelease.V0_8), ((0, 9), BrokerRelease.V0_9)])
def test_table_of_features_agrees_with_the_versions_of_old_brokers(
    number: tuple[int, ...], release: BrokerRelease
) -> None:
    served = BrokerVersions.of("b:1", release)
    offered = [need for need in feature_needs() if served.has(need.api, need.version)]
    assert offered == [need for need in feature_needs() if need.broker <= number]
