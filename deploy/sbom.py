"""The software bill of materials of the wheel in `dist`: CycloneDX JSON, beside the wheel.

Strategy: the wheel is installed with the pinned requirements into an empty environment, as a user would install it,
and what is there then is listed with its versions and licences. So the list is that of an installation, not of a
declaration.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any


def make(tools: Path, wheel: Path, requirements: Path) -> Path:
    """Write the bill of materials of `wheel`; returns its path. Raises subprocess.CalledProcessError."""
    version = wheel.name.split("-")[1]
    target = wheel.with_name(f"consumerd-{version}.cdx.json")
    with tempfile.TemporaryDirectory() as directory:
        environment = Path(directory) / "environment"
        venv.create(environment, with_pip=False)
        python = environment / "bin" / "python"
        pip = [
            sys.executable,
            "-m",
            "pip",
            "--python",
            str(python),
            "--disable-pip-version-check",
            "--quiet",
            "install",
        ]
        subprocess.run([*pip, "--require-hashes", "-r", str(requirements)], check=True)
        subprocess.run([*pip, "--no-deps", str(wheel)], check=True)
        listing = [str(tools / "cyclonedx-py"), "environment", "--output-reproducible", "--output-file", str(target)]
        subprocess.run([*listing, "--mc-type", "application", str(python)], check=True)
    target.write_text(json.dumps(_without_places(json.loads(target.read_text("utf-8"))), indent=2) + "\n", "utf-8")
    return target


def _without_places(bill: dict[str, Any]) -> dict[str, Any]:
    """The bill without the places on this machine that packages were installed from."""
    for component in bill["components"]:
        references = [each for each in component.pop("externalReferences", []) if not each["url"].startswith("file:")]
        if references:
            component["externalReferences"] = references
    return bill


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description="Write the bill of materials of the wheel in a folder.")
    parser.add_argument("--tools", type=Path, required=True, help="the folder of the program cyclonedx-py")
    parser.add_argument("--wheels", type=Path, required=True, help="the folder that `make dist` has filled")
    parser.add_argument("--requirements", type=Path, required=True, help="the pinned requirements of an installation")
    given = parser.parse_args()
    wheels = sorted(given.wheels.glob("consumerd-*.whl"))
    if len(wheels) != 1:
        print(f"{given.wheels} must hold one wheel of consumerd, not {len(wheels)}: run `make dist`", file=sys.stderr)
        return 1
    print(make(given.tools, wheels[0], given.requirements))
    return 0


if __name__ == "__main__":
    sys.exit(main())
