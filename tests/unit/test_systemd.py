"""The systemd unit against the code: which failures it lets come again, how often, and for how long."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

from consumerd.base.errors import ExitCode
from consumerd.base.settings.processing import DaemonSection
from consumerd.base.settings.servers import KafkaSection, ZooKeeperSection
from consumerd.service.daemon.health import STUCK_AFTER
from consumerd.service.daemon.service import STARTED_AFTER

UNIT = Path(__file__).parents[2] / "systemd" / "consumerd@.service"


def keys() -> dict[str, dict[str, str]]:
    tables: defaultdict[str, dict[str, str]] = defaultdict(dict)
    table = ""
    for line in UNIT.read_text().splitlines():
        if line.startswith("["):
            table = line.strip("[]")
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            tables[table][key] = f"{tables[table][key]}\n{value}" if key in tables[table] else value
    return tables


def seconds(value: str) -> float:
    return float(value.removesuffix("s"))


def test_permanent_errors_prevent_a_restart() -> None:
    codes = {int(code) for code in keys()["Service"]["RestartPreventExitStatus"].split()}
    hopeless = {"USAGE", "CONFIG", "HANDLER", "CORRUPT", "ID_TAKEN", "REFUSED"}
    assert codes == {ExitCode[name] for name in hopeless}


def test_start_limit_stops_immediate_failures_but_not_outages() -> None:
    unit, service = keys()["Unit"], keys()["Service"]
    interval, burst = seconds(unit["StartLimitIntervalSec"]), int(unit["StartLimitBurst"])
    pause = seconds(service["RestartSec"])
    assert burst * (pause + 10) < interval  # also on a machine that takes 10 s to start and fail
    for section in (ZooKeeperSection, KafkaSection):
        outage = section().connection_timeout
        assert burst * (pause + outage) > interval


def test_deadlines_of_the_daemon_are_shorter_than_those_of_systemd() -> None:
    service = keys()["Service"]
    assert seconds(service["TimeoutStopSec"]) > DaemonSection().stop_timeout + 3
    assert seconds(service["TimeoutStartSec"]) > ZooKeeperSection().connection_timeout + STARTED_AFTER


def test_watchdog_is_more_patient_than_the_health_check() -> None:
    # One notification more may have been sent just before the daemon counted as stuck.
    assert seconds(keys()["Service"]["WatchdogSec"]) > STUCK_AFTER * 1.5


def test_credentials_may_be_missing() -> None:
    """An absolute path of LoadCredential= must exist; a name is looked up in /etc/credstore, and may be missing."""
    for credential in keys()["Service"]["LoadCredential"].split("\n"):
        name, _, source = credential.partition(":")
        assert re.fullmatch(r"[a-z-]+", name)
        assert source == f"%i.{name}"


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The unit as an instance, with a program that is on this machine."""
    path = tmp_path / "consumerd@events.service"
    path.write_text(UNIT.read_text().replace("/opt/consumerd/bin/consumerd", "/bin/true"))
    return path


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed")
    command = [program, "--no-pager", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_systemd_accepts_the_unit(installed: Path) -> None:
    done = analyze("verify", str(installed))
    assert (done.returncode, installed.name in done.stderr) == (0, False), done.stderr


def test_systemd_reports_unknown_keys_of_the_unit(installed: Path) -> None:
    installed.write_text(installed.read_text().replace("WatchdogSec=", "WatchDogSec="))
    assert "WatchDogSec" in analyze("verify", str(installed)).stderr


def test_systemd_finds_little_exposure(installed: Path) -> None:
    done = analyze("security", "--offline=true", "--threshold=20", str(installed))  # tenths: at most 2.0 of 10
    if "unrecognized option" in done.stderr:
        pytest.skip("systemd-analyze is older than version 250")
    assert done.returncode == 0, done.stdout + done.stderr


def test_only_the_daemon_itself_reads_the_file() -> None:
    service = keys()["Service"]
    assert service["ExecReload"] == "/bin/sh -c 'kill -HUP $MAINPID'"  # anything else could not read credentials
    assert "ExecStartPre" not in service  # its failure would be repeated, whatever the exit code
