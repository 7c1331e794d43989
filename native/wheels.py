"""Builds what a release of consumerd-native consists of: a wheel for each platform, and the sdist.

    python -m native.wheels --out FOLDER [--only PLATFORM ...]

It needs the programs of requirements/native-wheels.txt beside its Python: maturin, zig, auditwheel.

Strategy: one wheel serves all Pythons from 3.11 on (abi3), so only the platforms differ. zig compiles the C libraries
and links, against the oldest C library that the standard library of Rust supports, so that any Linux machine builds for
all platforms. What depends on the machine (paths, times) is left out: a second build gives the same bytes. A platform
whose standard library of Rust is not installed is named and left out; with CI=true that is a failure.
"""

from __future__ import annotations

import argparse
import base64
import csv
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from native import lock

HERE = Path(__file__).resolve().parent
#: The target of Rust for each platform tag. The standard library of Rust needs glibc 2.17.
PLATFORMS = {
    "manylinux_2_17_x86_64": "x86_64-unknown-linux-gnu",
    "manylinux_2_17_aarch64": "aarch64-unknown-linux-gnu",
    "musllinux_1_2_x86_64": "x86_64-unknown-linux-musl",
    "musllinux_1_2_aarch64": "aarch64-unknown-linux-musl",
}
#: Where the sources seem to lie in what is built.
_NEUTRAL = "/consumerd-native"


def is_installed(triple: str) -> bool:
    """Whether rustc has the standard library of a target."""
    command = ["rustc", "--print", "target-libdir", "--target", triple]
    folder = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    return any(Path(folder).glob("libstd-*.rlib"))


def environment(given: Mapping[str, str], triple: str = "") -> dict[str, str]:
    """The variables of a build for a target: a fixed time, and no path of this machine in the binary."""
    cargo_home = Path(given.get("CARGO_HOME") or Path.home() / ".cargo")
    remapped = {HERE: _NEUTRAL, cargo_home: "/cargo"}
    rust = [f"--remap-path-prefix={path}={neutral}" for path, neutral in remapped.items()]
    if triple.endswith("-musl"):
        rust.append("-Ctarget-feature=-crt-static")  # an extension uses the C library of its Python
    c = [f"-ffile-prefix-map={path}={neutral}" for path, neutral in remapped.items()]
    # Beside this Python are the programs of its environment.
    path = os.pathsep.join([str(Path(sys.executable).parent), given.get("PATH", os.defpath)])
    return {
        **given,
        "PATH": path,
        "SOURCE_DATE_EPOCH": given.get("SOURCE_DATE_EPOCH") or committed(),
        "CARGO_ENCODED_RUSTFLAGS": "\x1f".join(rust),
        "CFLAGS": " ".join(c),
    }


def committed() -> str:
    """The time of the last commit of this folder, in seconds since 1970: the time in what is built from a checkout."""
    command = ["git", "log", "-1", "--format=%ct", "--", "."]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False)
    if done.returncode or not done.stdout.strip():
        raise SystemExit("wheels.py: this is no checkout of git, so SOURCE_DATE_EPOCH must be set")
    return done.stdout.strip()


def build(platform: str, out: Path) -> Path:
    """The wheel for a platform, in `out`. Raises subprocess.CalledProcessError."""
    environ = environment(os.environ, PLATFORMS[platform])
    with tempfile.TemporaryDirectory() as folder:
        command = [
            "maturin", "build", "--quiet", "--release", "--locked", "--zig", "--target", PLATFORMS[platform],
            "--compatibility", platform.removesuffix("_x86_64").removesuffix("_aarch64"),
            "--manifest-path", str(HERE / "Cargo.toml"), "--out", folder,
        ]  # fmt: skip
        subprocess.run(command, check=True, env=environ)
        (wheel,) = Path(folder).iterdir()
        content = without_places(wheel.read_bytes())
    target = out / wheel.name
    target.write_bytes(content)
    return target


def without_places(wheel: bytes) -> bytes:
    """The wheel with `_NEUTRAL` for this folder in its bill of materials, where maturin writes the path."""
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        files = [(info, archive.read(info)) for info in archive.infolist()]
    done = {}
    for info, content in files:
        if "/sboms/" in info.filename:
            content = content.replace(HERE.as_posix().encode(), _NEUTRAL.encode())
        done[info.filename] = content
    (record,) = [name for name in done if name.endswith(".dist-info/RECORD")]
    rows = io.StringIO()
    for name, *_ in csv.reader(io.StringIO(done[record].decode())):
        digest = base64.urlsafe_b64encode(hashlib.sha256(done[name]).digest()).rstrip(b"=").decode()
        listed = [name, "", ""] if name == record else [name, f"sha256={digest}", str(len(done[name]))]
        csv.writer(rows, lineterminator="\n").writerow(listed)
    done[record] = rows.getvalue().encode()
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as archive:
        for info, _ in files:
            archive.writestr(info, done[info.filename], compresslevel=9)
    return written.getvalue()


def audit(wheel: Path, platform: str) -> None:
    """SystemExit unless auditwheel confirms that the wheel runs on every machine that its tag names."""
    with tempfile.TemporaryDirectory() as no_libraries:  # those of this machine say nothing about others
        command = ["auditwheel", "show", "--json", "--ldpaths", no_libraries, str(wheel)]
        done = subprocess.run(command, check=True, env=environment(os.environ), capture_output=True, text=True)
    if not confirms(json.loads(done.stdout), platform):
        raise SystemExit(f"wheels.py: auditwheel does not confirm {platform} for {wheel.name}: {done.stdout}")


def confirms(report: Mapping[str, Any], platform: str) -> bool:
    """Whether a report of `auditwheel show --json` confirms a platform tag.

    zig names musl `libc.so`, as musl itself does; its loader takes each `libc.` for itself. auditwheel knows the name
    that Alpine gives it (`libc.musl-x86_64.so.1`), so here it must be the only library that is left.
    """
    if platform.startswith("musllinux_"):
        return report["sym_tag"] == platform and set(report["external_libs"]) == {"libc.so"}
    return bool(report["overall_tag"] == platform)


def sdist(out: Path) -> Path:
    """The sdist, in `out`: with `crates.lock`, and with the `Cargo.lock` that is made from it."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["maturin", "sdist", "--manifest-path", str(HERE / "Cargo.toml"), "--out", folder]
        subprocess.run(command, check=True, env=environment(os.environ))
        (made,) = Path(folder).iterdir()
        return Path(shutil.copy(made, out / made.name))


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 1 if a platform was left out with CI=true, or if its wheel does not run where its tag says."""
    description = "Build the wheels and the sdist of consumerd-native."
    parser = argparse.ArgumentParser(prog="python -m native.wheels", description=description)
    parser.add_argument("--out", type=Path, required=True, help="the folder for what is built")
    parser.add_argument("--only", choices=PLATFORMS, nargs="+", help="build for these platforms (default: all)")
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    missing = []
    lock.restore()
    for platform in given.only or PLATFORMS:
        triple = PLATFORMS[platform]
        if not is_installed(triple):
            missing.append(platform)
            print(f"no wheel for {platform}: run `rustup target add {triple}` first", flush=True)
            continue
        wheel = build(platform, given.out)
        audit(wheel, platform)
        print(wheel, flush=True)
    print(sdist(given.out), flush=True)
    return int(bool(missing) and os.environ.get("CI", "").lower() == "true")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        sys.exit(f"wheels.py: {error.cmd[0]} failed, see above")
