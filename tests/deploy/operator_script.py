"""Runs as a unit of a booted machine: drives consumerd's unit as an operator would, and writes down what it saw.

Uses nothing but the standard library: the machine has no other Python packages. Results go to /results, as JSON.
"""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

RESULTS = Path("/results")
UNIT = "consumerd@events.service"
#: Its configuration is invalid.
BAD = "consumerd@bad.service"
PROPERTIES = (
    "ActiveState",
    "SubState",
    "Result",
    "NRestarts",
    "MainPID",
    "ExecMainStatus",
    "StatusText",
    "WatchdogUSec",
    "LimitCORE",
)


def run(*command: str) -> tuple[int, str]:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def show(unit: str = UNIT) -> dict[str, str]:
    _, text = run("systemctl", "show", unit, "-p", ",".join(PROPERTIES))
    return dict(line.split("=", 1) for line in text.splitlines())


def wait_for_restart(restarts: int) -> dict[str, str]:
    """The properties as soon as the unit is active after so many restarts. systemd is the outside world: polled."""
    limit = time.monotonic() + 120
    while True:
        seen = show()
        if seen["ActiveState"] == "active" and int(seen["NRestarts"]) >= restarts:
            return seen
        if time.monotonic() > limit:
            return {"timeout": "true", **seen}
        time.sleep(0.2)


def fetch(path: str, token: str | None = None) -> int:
    """The status of a page of the daemon."""
    port = json.loads((RESULTS / "port.json").read_text())
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    try:
        with urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)) as page:
            status: int = page.status
            return status
    except urllib.error.HTTPError as error:
        return error.code


def wait_for_page(path: str) -> None:
    """Until the daemon answers with 200, for a while: what it answers then is seen by those who look next."""
    limit = time.monotonic() + 60
    while time.monotonic() < limit:
        try:
            if fetch(path) == 200:
                return
        except urllib.error.URLError:
            pass  # it does not listen yet
        time.sleep(0.2)


def drive(seen: dict[str, Any]) -> None:
    """Note what is seen step by step, so that a step that fails leaves what came before."""
    # The image's own user, which a machine with the unit does not have.
    run("userdel", "--remove", "consumerd")
    seen["verify"] = run("systemd-analyze", "verify", UNIT)
    seen["start"] = run("systemctl", "start", UNIT)
    seen["started"] = show()
    wait_for_page("/readyz")
    seen["pages"] = {path: fetch(path) for path in ("/healthz", "/readyz", "/status.json")}
    seen["with token"] = fetch("/status.json", "from-the-credential-store")
    run("systemctl", "kill", "--kill-whom=main", "--signal=SIGKILL", UNIT)
    seen["killed"] = wait_for_restart(1)
    run("systemctl", "kill", "--kill-whom=main", "--signal=SIGSTOP", UNIT)
    seen["hung"] = wait_for_restart(2)
    wait_for_page("/readyz")
    began = time.monotonic()
    seen["stop"] = run("systemctl", "stop", UNIT)
    seen["stop seconds"] = time.monotonic() - began
    seen["stopped"] = show()
    seen["start bad"] = run("systemctl", "start", BAD)
    time.sleep(4)  # RestartSec twice: a restart would have been counted by then
    seen["bad"] = show(BAD)
    run("cp", "-r", "/var/lib/private/consumerd", str(RESULTS / "state"))
    seen["security"] = run("systemd-analyze", "security", "--no-pager", UNIT)[1].strip().splitlines()[-1]


def main() -> None:
    seen: dict[str, Any] = {}
    try:
        drive(seen)
    finally:
        (RESULTS / "seen.json").write_text(json.dumps(seen, indent=2))
        for unit in (UNIT, BAD):
            (RESULTS / f"{unit}.log").write_text(run("journalctl", "--no-pager", "-o", "cat", "-u", unit)[1])
        run("systemctl", "poweroff", "--no-block")


if __name__ == "__main__":
    main()
