"""The choice of an API's version for a broker.

Strategy: the highest one that both sides have. Brokers since 0.10 return their versions (API_VERSIONS); they are
requested on every connection, because the broker behind an address may be upgraded. Earlier ones close the connection
on an unknown request; their versions are a table here (golden: unsupported requests).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from consumerd.wire.v08.apis import APIS
from consumerd.wire.v08.errors import UnsupportedApiError
from consumerd.wire.v08.schema import Api

if TYPE_CHECKING:
    from consumerd.wire.v08.message_types import ApiVersionsResponseApiKey, ApiVersionsResponseFinalizedFeature


class BrokerRelease(Enum):
    """Kafka's release, as far as it decides how a broker's API versions are known."""

    V0_8 = "0.8"
    V0_9 = "0.9"
    #: Answers API_VERSIONS.
    V0_10_OR_NEWER = "0.10 or newer"


_OF_0_8: Final = {0: (0, 0), 1: (0, 0), 2: (0, 0), 3: (0, 0), 8: (0, 1), 9: (0, 1), 10: (0, 0)}
#: Releases without API_VERSIONS: API key -> first and last version.
KNOWN: Final[Mapping[BrokerRelease, Mapping[int, tuple[int, int]]]] = {
    BrokerRelease.V0_8: _OF_0_8,
    BrokerRelease.V0_9: _OF_0_8 | {0: (0, 1), 1: (0, 1), 8: (0, 2)} | dict.fromkeys((11, 12, 13, 14, 15, 16), (0, 0)),
}


@dataclass(frozen=True, slots=True)
class BrokerVersions:
    """The versions that one broker serves: API key -> first and last version. `broker` is its address, for messages.

    `features`: the last level of each feature that the cluster uses, as far as the broker knows.
    """

    broker: str
    release: BrokerRelease
    ranges: Mapping[int, tuple[int, int]]
    features: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, broker: str, release: BrokerRelease) -> BrokerVersions:
        """Return the versions of a release without API_VERSIONS."""
        return cls(broker, release, KNOWN[release])

    def has(self, api: Api[Any, Any], version: int = 0) -> bool:
        """Whether the broker serves the API in `version` or a later one that this client knows."""
        first, last = self.ranges.get(api.key, (0, -1))
        lowest, highest = api.versions
        common = min(highest, last)
        return first <= common and lowest <= common and version <= common

    def pick(self, api: Api[Any, Any], *, at_least: int = 0, at_most: int | None = None) -> int:
        """The highest version of `api` within the bounds. Raises UnsupportedApiError."""
        # Each message that is sent by itself comes here, and to `has`: so both do without most of `min` and `max`.
        first, last = self.ranges.get(api.key, (0, -1))
        lowest, highest = api.versions
        if at_most is not None and at_most < highest:
            highest = at_most
        version = min(highest, last)
        if first <= version and lowest <= version and at_least <= version:
            return version
        served = self.ranges.get(api.key)
        if served is None:
            raise UnsupportedApiError(
                f"broker {self.broker} (Kafka {self.release.value}) does not serve {api.name}: use a newer broker"
            )
        raise UnsupportedApiError(
            f"broker {self.broker} serves {api.name} in versions {served[0]} to {served[1]}, but one of "
            f"{max(api.versions[0], at_least)} to {api.versions[1] if at_most is None else at_most} is needed"
        )


def versions_of_answer(
    broker: str,
    api_versions: list[ApiVersionsResponseApiKey],
    features: Iterable[ApiVersionsResponseFinalizedFeature] = (),
) -> BrokerVersions:
    """Return the versions of an answer to API_VERSIONS, without APIs that this client does not support."""
    ranges = {
        entry["api_key"]: (entry["min_version"], entry["max_version"])
        for entry in api_versions
        if entry["api_key"] in APIS
    }
    levels = {each["name"]: each["max_version_level"] for each in features}
    return BrokerVersions(broker, BrokerRelease.V0_10_OR_NEWER, ranges, levels)
