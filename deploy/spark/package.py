"""Package consumerd for a Spark cluster, from the environment that runs this.

    python deploy/spark/package.py -o dist/spark

Makes two files:

consumerd-source.zip          the source alone, for `--py-files`, where the nodes have its dependencies
consumerd-environment.tar.gz  source and dependencies with a `bin/python`, for `--archives`, where the nodes have no
                              more than Spark and the same minor version of Python

Strategy: what is installed here is what is packed, by the lists of files that distributions carry, so nothing is
fetched and the versions are those that were tested. Wheels relocate: their native libraries find each other by relative
paths. They cannot be imported from a zip, though, hence an archive that Spark unpacks beside each executor, and a
launcher in it that puts the unpacked packages before everything else. An interpreter does not relocate, and pyspark
comes with Spark: both are the node's own.
"""

from __future__ import annotations

import argparse
import io
import stat
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import IO, Final

from isal import igzip
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT: Final = Path(__file__).resolve().parents[2]
#: What the environment is made of, with all that these need. `--executors-only` packs what an executor imports.
EVERYTHING: Final = ("consumerd[spark]", "zstandard")
EXECUTORS: Final = (
    "cramjam", "fsspec", "google-crc32c", "isal", "msgspec", "pyarrow", "python-snappy", "xxhash", "zstandard",
)  # fmt: skip
#: Not packed: the source is taken from here, not from where it is installed; pyspark is part of Spark.
PROVIDED: Final = frozenset({"consumerd", "pyspark", "py4j"})
SOURCES: Final = ("consumerd", "pyspark_consumerd")
#: Folders of pyarrow that are for those who compile against it, or test it.
_LEFT_OUT: Final = ("pyarrow/include/", "pyarrow/src/", "pyarrow/tests/")
_LAUNCHER: Final = """#!/bin/sh
# The node's Python {version} with the packages of this archive, and with none of its own user's.
here=$(cd "$(dirname "$0")/.." && pwd) || exit 1
export PYTHONPATH="$here/lib${{PYTHONPATH:+:$PYTHONPATH}}" PYTHONNOUSERSITE=1
exec "${{CONSUMERD_NODE_PYTHON:-python{version}}}" "$@"
"""


def source_files() -> Iterator[tuple[str, Path]]:
    """Names in the package and where they are."""
    for package in SOURCES:
        for path in sorted((ROOT / package).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path.relative_to(ROOT).as_posix(), path


def needed(names: tuple[str, ...]) -> list[Distribution]:
    """These distributions and all that they require, by name."""
    found: dict[str, Distribution] = {}
    waiting = [(Requirement(name), "") for name in names]
    while waiting:
        requirement, extra = waiting.pop()
        name = canonicalize_name(requirement.name)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        new = name not in found
        found[name] = distribution(name)
        for wanted in requirement.extras or ([""] if new else []):
            waiting += [(Requirement(each), wanted) for each in found[name].requires or ()]
    return [found[name] for name in sorted(found) if name not in PROVIDED]


def installed_files(names: tuple[str, ...]) -> Iterator[tuple[str, Path]]:
    """The files of these distributions, and of all that they require."""
    for each in needed(names):
        for file in each.files or ():
            name = file.as_posix()
            path = Path(str(each.locate_file(file)))
            if not name.startswith(("../", *_LEFT_OUT)) and path.is_file():
                yield name, path


def write_zip(target: Path) -> None:
    """The source, for `--py-files`."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, path in source_files():
            entry = zipfile.ZipInfo(name)  # dated 1980: the same files give the same bytes
            entry.external_attr = stat.S_IMODE(path.stat().st_mode) << 16
            archive.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)


def write_environment(target: Path, names: tuple[str, ...] = EVERYTHING) -> None:
    """Source, dependencies and launcher, for `--archives`."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    with _compressed(target) as packed, tarfile.open(fileobj=packed, mode="w|") as archive:
        _add(archive, "bin/python", _LAUNCHER.format(version=version).encode(), executable=True)
        for name, path in (*source_files(), *installed_files(names)):
            status = path.stat()
            # Byte code that was installed along is good for a source of the same time, and spares every first start
            # some seconds of compiling.
            _add(
                archive, f"lib/{name}", path.read_bytes(), executable=bool(status.st_mode & 0o100),
                changed=int(status.st_mtime),
            )  # fmt: skip


def _compressed(target: Path) -> IO[bytes]:
    opened: IO[bytes] = igzip.open(target, "wb", compresslevel=1)  # type: ignore[no-untyped-call]
    return opened


def _add(archive: tarfile.TarFile, name: str, data: bytes, *, executable: bool, changed: int = 0) -> None:
    entry = tarfile.TarInfo(name)
    entry.mtime = changed
    entry.size, entry.mode = len(data), 0o755 if executable else 0o644
    archive.addfile(entry, io.BytesIO(data))


def main() -> None:
    """Write both files and say where they are."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("-o", "--output", type=Path, default=Path("dist/spark"), help="folder, made when missing")
    parser.add_argument(
        "--executors-only", action="store_true", help="leave out what drivers alone need, such as matplotlib"
    )
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    source, environment = (arguments.output / name for name in ("consumerd-source.zip", "consumerd-environment.tar.gz"))
    write_zip(source)
    write_environment(environment, EXECUTORS if arguments.executors_only else EVERYTHING)
    for path in (source, environment):
        print(f"{path}\t{path.stat().st_size}")  # noqa: T201 - what it is run for


if __name__ == "__main__":
    main()
