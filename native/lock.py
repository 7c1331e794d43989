"""`Cargo.lock` without the address of a registry: `crates.lock` has the versions and checksums of all crates.

    lock.py restore   crates.lock -> Cargo.lock, with the address that cargo on this machine uses
    lock.py save      Cargo.lock -> crates.lock

Builds run with `--locked`: cargo then takes these versions, and checks the checksums.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
SAVED, LOCK = HERE / "crates.lock", HERE / "Cargo.lock"
_SOURCE = re.compile(r'^source = ".*"\n', re.MULTILINE)
_CHECKSUM = re.compile(r"^checksum = ", re.MULTILINE)


def save() -> None:
    """Keep what cargo resolved."""
    SAVED.write_text(_SOURCE.sub("", LOCK.read_text("utf-8")), "utf-8")


def restore() -> None:
    """Make the lock file that cargo reads, unless it is there."""
    saved = SAVED.read_text("utf-8")
    if LOCK.exists() and _SOURCE.sub("", LOCK.read_text("utf-8")) == saved:
        return
    source = _source()
    LOCK.write_text(_CHECKSUM.sub(lambda _: f"{source}checksum = ", saved), "utf-8")


def _source() -> str:
    """The line that cargo writes for a crate of the registry."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "src").mkdir()
        (Path(folder) / "src" / "lib.rs").touch()
        (Path(folder) / "Cargo.toml").write_bytes((HERE / "Cargo.toml").read_bytes())
        subprocess.run(["cargo", "generate-lockfile", "--quiet"], cwd=folder, check=True)
        match = _SOURCE.search((Path(folder) / "Cargo.lock").read_text("utf-8"))
    if match is None:
        raise SystemExit("lock.py: cargo wrote a lock file without the source of any crate")
    return match[0]


if __name__ == "__main__":
    if sys.argv[1:] not in (["save"], ["restore"]):
        raise SystemExit(__doc__)
    save() if sys.argv[1] == "save" else restore()
