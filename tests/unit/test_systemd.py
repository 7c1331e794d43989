"""The systemd unit against the code: which failures it lets come again, how often, and for how long."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from consumerd.config.servers import KafkaSection, ZooKeeperSection
from consumerd.config.work import DaemonSection
from consumerd.daemon.service import STARTED_AFTER
from consumerd.errors import ExitCode

UNIT = Path(__file__).parents[2] / "systemd" / "consumerd@.service"


def keys() -> dict[str, dict[str, str]]:
    tables: defaultdict[str, dict[str, str]] = defaultdict(dict)
    table = ""
    for line in UNIT.read_text().splitlines():
        if line.startswith("["):
            table = line.strip("[]")
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            tables[table][key] = value
    return tables


def seconds(value: str) -> float:
    return float(value.removesuffix("s"))


def test_what_a_restart_does_not_mend_is_not_restarted() -> None:
    codes = {int(code) for code in keys()["Service"]["RestartPreventExitStatus"].split()}
    hopeless = {"USAGE", "CONFIG", "HANDLER", "CORRUPT", "ID_TAKEN", "REFUSED"}
    assert codes == {ExitCode[name] for name in hopeless}


def test_a_failure_that_comes_at_once_again_meets_the_limit_and_an_outage_does_not() -> None:
    unit, service = keys()["Unit"], keys()["Service"]
    interval, burst = seconds(unit["StartLimitIntervalSec"]), int(unit["StartLimitBurst"])
    pause = seconds(service["RestartSec"])
    assert burst * (pause + 10) < interval  # also on a machine that takes 10 s to start and fail
    for section in (ZooKeeperSection, KafkaSection):
        outage = section.model_fields["connection_timeout"].default
        assert burst * (pause + outage) > interval


def test_the_daemons_own_deadlines_come_first() -> None:
    service = keys()["Service"]
    assert seconds(service["TimeoutStopSec"]) > DaemonSection().stop_timeout + 3
    assert (
        seconds(service["TimeoutStartSec"])
        > ZooKeeperSection.model_fields["connection_timeout"].default + STARTED_AFTER
    )
