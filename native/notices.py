"""`THIRD-PARTY-NOTICES.txt`: the licences of what is linked into the extension, which every wheel carries.

    python -m native.notices save    write the file anew, after a change of `crates.lock`
    python -m native.notices check   exit code 1 if it is not what `save` would write

Strategy: cargo says which crates are linked (normal dependencies on any platform of a release, without macros, which
only run during a build), and their sources contain the texts. Where a crate may be used under MIT or another licence,
it is used under MIT. Equal texts are printed once. C libraries in crates are included: their texts are there, too.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from native import lock

HERE = Path(__file__).resolve().parent
NOTICES = HERE / "THIRD-PARTY-NOTICES.txt"
#: What wheels are built for (`wheels.py`).
TRIPLES = (
    "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu", "x86_64-unknown-linux-musl", "aarch64-unknown-linux-musl",
)  # fmt: skip
_TEXT = re.compile(r"(LICEN[CS]E|COPYING|UNLICENSE|NOTICE)\b.*", re.IGNORECASE)
#: Texts of licences under which the crate is not used: the C library zstd is also offered under the GPL.
_NOT_CHOSEN = {("zstd-sys", "zstd/COPYING")}
_HEADER = """\
Third-party notices of consumerd-native

The extension module contains the following crates and C libraries, statically linked. Their licences follow, each with
the names of those that it applies to.

It also contains parts of the standard library of Rust (MIT OR Apache-2.0, Copyright (c) The Rust Project Contributors;
the notices of its own dependencies are in COPYRIGHT-library.html of each release of Rust), and in released wheels
libunwind and compiler-rt of LLVM (Apache-2.0 WITH LLVM-exception).
"""


def linked() -> list[dict[str, Any]]:
    """The packages that are linked on any of the platforms, as cargo describes them, by name and version."""
    found: dict[str, dict[str, Any]] = {}
    for triple in TRIPLES:
        command = ["cargo", "metadata", "--quiet", "--locked", "--format-version", "1", "--filter-platform", triple]
        done = subprocess.run(command, cwd=HERE, check=True, capture_output=True, text=True)
        graph = json.loads(done.stdout)
        packages = {package["id"]: package for package in graph["packages"]}
        nodes = {node["id"]: node for node in graph["resolve"]["nodes"]}
        root = graph["resolve"]["root"]
        seen, waiting = {root}, [root]
        while waiting:
            for dependency in nodes[waiting.pop()]["deps"]:
                name = dependency["pkg"]
                macros = any("proc-macro" in target["kind"] for target in packages[name]["targets"])
                normal = any(kind["kind"] is None for kind in dependency["dep_kinds"])
                if normal and not macros and name not in seen:
                    seen.add(name)
                    waiting.append(name)
        found |= {name: packages[name] for name in seen - {root}}
    return sorted(found.values(), key=lambda package: (package["name"], package["version"]))


def texts(package: dict[str, Any]) -> list[str]:
    """The texts of the licences under which a package is used. SystemExit where its sources have none."""
    folder = Path(package["manifest_path"]).parent
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and _TEXT.fullmatch(path.name)]
    paths = [path for path in paths if (package["name"], path.relative_to(folder).as_posix()) not in _NOT_CHOSEN]
    if "MIT" in re.split(r"\s+OR\s+|/", package["license"] or ""):
        paths = [path for path in paths if path.parent != folder or "MIT" in path.name.upper()] or paths
        paths = [path for path in paths if "APACHE" not in path.name.upper()]
    if not paths:
        raise SystemExit(f"notices.py: the sources of {package['name']} {package['version']} have no text of a licence")
    return ["\n".join(line.rstrip() for line in path.read_text("utf-8").strip("\n").splitlines()) for path in paths]


def notices() -> str:
    """The whole file."""
    packages = linked()
    users: dict[str, list[str]] = {}
    for package in packages:
        for text in texts(package):
            names = users.setdefault(text, [])
            name = f"{package['name']} {package['version']}"
            if name not in names:
                names.append(name)
    table = "".join(f"  {each['name']} {each['version']}: {each['license']}\n" for each in packages)
    rule = "-" * 100
    sections = [f"{rule}\n{', '.join(names)}\n{rule}\n\n{text}\n" for text, names in users.items()]
    return "\n".join([_HEADER, table, *sections])


def main() -> int:
    """The exit code."""
    if sys.argv[1:] not in (["save"], ["check"]):
        raise SystemExit(__doc__)
    lock.restore()
    text = notices()
    if sys.argv[1] == "save":
        NOTICES.write_text(text, "utf-8")
        return 0
    if NOTICES.read_text("utf-8") != text:
        print(f"{NOTICES.name} is not of these crates: write it anew with `python -m native.notices save`")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
