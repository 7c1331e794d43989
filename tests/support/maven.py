"""Fetch another project's jars by Maven coordinates, once, into our cache.

Strategy: Maven itself resolves (it knows mirrors, proxies and credentials of this machine), copying the jars into a
folder that is renamed into place when it is complete; from then on neither Maven nor a network is needed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

from consumerd.base.java import MissingRuntimeError

_PLUGIN: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
_COORDINATES = re.compile(r"[\w.-]+:[\w.-]+:[\w.-]+(:[\w.-]+){0,2}")
#: Optional parts of old log4j releases that no public repository has ever held.
_NEVER_PUBLISHED: Final = (("com.sun.jmx", "jmxri"), ("com.sun.jdmk", "jmxtools"), ("javax.jms", "jms"))


def cache_directory(environ: Mapping[str, str] | None = None) -> Path:
    """`$XDG_CACHE_HOME/consumerd`, else `~/.cache/consumerd`."""
    environ = os.environ if environ is None else environ
    base = environ.get("XDG_CACHE_HOME", "")
    # The XDG specification: a relative path is to be ignored.
    return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "consumerd"


def _project(coordinates: Sequence[str]) -> str:
    return (
        '<?xml version="1.0" encoding="UTF-8"?><project><modelVersion>4.0.0</modelVersion>'
        "<groupId>consumerd</groupId><artifactId>fetched</artifactId><version>1</version><packaging>pom</packaging>"
        f"<dependencies>{''.join(_dependency(*text.split(':')) for text in coordinates)}</dependencies></project>\n"
    )


def _dependency(group: str, artifact: str, version: str, classifier: str = "", kind: str = "") -> str:
    """`kind`: the type of an archive, which has in it what it needs."""
    excluded = [("*", "*")] if kind else _NEVER_PUBLISHED
    exclusions = "".join(
        f"<exclusion><groupId>{left_out}</groupId><artifactId>{name}</artifactId></exclusion>"
        for left_out, name in excluded
    )
    named = {"groupId": group, "artifactId": artifact, "version": version, "classifier": classifier, "type": kind}
    tags = "".join(f"<{tag}>{escape(text)}</{tag}>" for tag, text in named.items() if text)
    return f"<dependency>{tags}<exclusions>{exclusions}</exclusions></dependency>"


def fetch_jars(coordinates: Sequence[str], *, cache: Path | None = None, timeout: float = 300.0) -> list[Path]:
    """The jars of `group:artifact:version` coordinates, and of all they need at run time. Blocks while Maven works.

    A fourth part is the classifier, a fifth the type, such as `tar.gz`.

    Raises MissingRuntimeError when Maven is missing, fails (with what it says first) or takes longer than `timeout`
    seconds, ValueError for text that is not a coordinate.
    """
    for text in coordinates:
        if not _COORDINATES.fullmatch(text):
            raise ValueError(f"{text!r} is not group:artifact:version")
    root = (cache or cache_directory()) / "maven"
    target = root / "+".join(coordinates).replace(":", "_")
    if not target.is_dir():
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="fetch-", dir=root) as work:
            _run_maven(coordinates, Path(work), timeout)
            try:
                (Path(work) / "jars").rename(target)
            except OSError:
                if not target.is_dir():  # else another process was faster
                    raise
    return sorted(target.iterdir())


def _run_maven(coordinates: Sequence[str], work: Path, timeout: float) -> None:
    maven = shutil.which("mvn")
    named = ", ".join(coordinates)
    if maven is None:
        raise MissingRuntimeError(f"{named} is fetched with Maven, and there is no `mvn` on PATH: install Maven")
    (work / "pom.xml").write_text(_project(coordinates), "utf-8")
    command = [
        maven, "--batch-mode", "--quiet", "--no-transfer-progress", "--file", str(work / "pom.xml"), _PLUGIN,
        f"-DoutputDirectory={work / 'jars'}", "-DincludeScope=runtime",
    ]  # fmt: skip
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace", timeout=timeout, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise MissingRuntimeError(f"Maven did not fetch {named} within {timeout:g} s: look at the network") from None
    if done.returncode or not any((work / "jars").glob("*")):
        said = [line.removeprefix("[ERROR]").strip() for line in done.stdout.splitlines()]
        reason = next((line for line in said if line), "it says nothing")
        raise MissingRuntimeError(f"Maven could not fetch {named}: {reason}")
