"""Known vulnerabilities of pinned requirements, by pip-audit: `python deploy/audit.py requirements/core.txt ...`.

Strategy: pip-audit asks the package index about each requirement, and skips those of which the index knows nothing. A
mirror without vulnerability data skips all of them, and a machine without a network reaches nothing: either is one
line here, and no success that nobody has seen. Exit code: 0 for no vulnerability or no data, 1 for any vulnerability,
or another failure of pip-audit. With `CI=true` missing data are a failure, too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

_TIMEOUT: Final = 300.0
#: What pip-audit's own errors say where the index cannot be reached.
_UNREACHABLE: Final = ("ConnectionError", "Max retries exceeded", "ServiceError", "timed out", "Failed to upgrade")


def audit(requirements: Path) -> dict[str, Any] | str:
    """The findings of pip-audit for a file, or the reason why there are none. Raises RuntimeError for its failures."""
    program = Path(sys.executable).with_name("pip-audit")
    command = [
        str(program),
        "--requirement",
        str(requirements),
        "--require-hashes",
        "--disable-pip",
        "--format",
        "json",
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        return f"no answer within {_TIMEOUT:g} s"
    try:
        found: dict[str, Any] = json.loads(done.stdout)
        return found
    except ValueError:
        words = (done.stderr.strip().splitlines() or ["no output"])[-1]
        if any(word in done.stderr for word in _UNREACHABLE):
            return words
        raise RuntimeError(f"pip-audit failed for {requirements}: {words}") from None


def report(requirements: Path, found: dict[str, Any] | str) -> int:
    """Print what was found; the number of vulnerabilities, or -1 where there are no data."""
    if isinstance(found, str):
        print(f"{requirements}: not audited, because vulnerability data cannot be reached: {found}")
        return -1
    checked = [each for each in found["dependencies"] if "skip_reason" not in each]
    if not checked:
        print(f"{requirements}: not audited, because the package index has no vulnerability data")
        return -1
    count = 0
    for each in checked:
        for vulnerability in each["vulns"]:
            count += 1
            fixed = ", ".join(vulnerability["fix_versions"]) or "no release"
            print(f"{requirements}: {each['name']} {each['version']}: {vulnerability['id']}, fixed in {fixed}")
    skipped = len(found["dependencies"]) - len(checked)
    print(f"{requirements}: {len(checked)} packages checked, {skipped} unknown to the index, {count} vulnerabilities")
    return count


def main(files: list[str]) -> int:
    """The exit code for these requirements."""
    counts = [report(Path(file), audit(Path(file))) for file in files]
    without_data = os.environ.get("CI", "").lower() == "true" and -1 in counts
    return int(without_data or any(count > 0 for count in counts))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
