"""Runs as a unit of a booted machine: drives consumerd's unit as an operator would, and writes down what it saw.

Uses nothing but the standard library: the machine has no other Python packages. Results go to /results, as JSON.
"""

from __future__ import annotations

import http.server
import json
import subprocess
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

RESULTS = Path("/results")
UNIT = "consumerd@events.service"
#: Its configuration is invalid.
BAD = "consumerd@bad.service"
#: Further handlers, each a group of its own: one runs a program, one posts to the receiver below.
OTHERS = ("consumerd@exec.service", "consumerd@print.service", "consumerd@null.service", "consumerd@http.service")
CONFIG = Path("/etc/consumerd/events.toml")
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


def journal(unit: str = UNIT) -> str:
    return run("journalctl", "--no-pager", "-o", "cat", "-u", unit)[1]


def wait_for_line(text: str, unit: str = UNIT) -> bool:
    """Whether the journal of the unit has a line with `text`, within a while."""
    limit = time.monotonic() + 60
    while text not in journal(unit):
        if time.monotonic() > limit:
            return False
        time.sleep(0.2)
    return True


def handled() -> int:
    """The number of messages that the daemon's handler has handled, by its metrics."""
    port = json.loads((RESULTS / "port.json").read_text())
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
        lines = page.read().decode().splitlines()
    return sum(int(float(line.split()[-1])) for line in lines if line.startswith("consumerd_messages_handled_total{"))


def wait_for_messages() -> int:
    """The number of handled messages: all expected ones, or those of 60 s."""
    expected: int = json.loads((RESULTS / "messages.json").read_text())
    limit = time.monotonic() + 60
    while True:
        found = handled()
        if found >= expected or time.monotonic() > limit:
            return found
        time.sleep(0.2)


class Receiver(http.server.BaseHTTPRequestHandler):
    """Takes what the handler `http` posts."""

    lines = 0

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        Receiver.lines += body.count(b"\n")
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the name of the class above
        """The journal has enough lines."""


def reload(seen: dict[str, Any]) -> None:
    """Reload what is valid, and what is not."""
    before, text = show(), CONFIG.read_text()
    CONFIG.write_text(text.replace("interval = 60.0", "interval = 61.0"))
    seen["reload"] = run("systemctl", "reload", UNIT)
    seen["reloaded"] = wait_for_line("configuration_reloaded")
    CONFIG.write_text(text.replace("interval = 60.0", "interval = -1"))
    run("systemctl", "reload", UNIT)
    seen["rejected"] = wait_for_line("configuration_rejected")
    seen["status of an invalid file"] = show()["StatusText"]
    CONFIG.write_text(text)
    after = show()
    seen["process after reload"] = (after["ActiveState"], after["MainPID"] == before["MainPID"])


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
    reload(seen)
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
    for unit in OTHERS:
        seen[unit] = [run("systemctl", "start", unit)]
        wait_for_page("/readyz")
        seen[unit] += [wait_for_messages(), run("systemctl", "stop", unit), show(unit)["Result"]]
    seen["posted"] = Receiver.lines
    seen["security"] = run("systemd-analyze", "security", "--no-pager", UNIT)[1].strip().splitlines()[-1]


def main() -> None:
    seen: dict[str, Any] = {}
    receiver = http.server.HTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=receiver.serve_forever, daemon=True).start()
    config = Path("/etc/consumerd/http.toml")
    config.write_text(config.read_text().replace("RECEIVER", str(receiver.server_port)))
    try:
        drive(seen)
    finally:
        (RESULTS / "seen.json").write_text(json.dumps(seen, indent=2))
        for unit in (UNIT, BAD, *OTHERS):
            (RESULTS / f"{unit}.log").write_text(journal(unit))
        run("systemctl", "poweroff", "--no-block")


if __name__ == "__main__":
    main()
