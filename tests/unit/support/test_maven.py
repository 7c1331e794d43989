from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from consumerd.base.java import MissingRuntimeError
from tests.support.maven import fetch_jars

#: Stands for Maven: copies nothing but shows that it was asked, and for what.
_MVN = """#!/bin/sh
echo asked >> "$LOG"
for argument; do
    case $argument in
        -DoutputDirectory=*) mkdir -p "${argument#*=}"; touch "${argument#*=}/b.jar" "${argument#*=}/a.jar" ;;
        *.xml) cp "$argument" "$POM" ;;
    esac
done
"""


@pytest.fixture
def mvn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "bin" / "mvn"
    program.parent.mkdir()
    program.write_text(_MVN)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setenv("LOG", str(tmp_path / "log"))
    monkeypatch.setenv("POM", str(tmp_path / "pom.xml"))
    return program


def test_fetches_jars_once(tmp_path: Path, mvn: Path) -> None:
    for _ in range(2):
        jars = fetch_jars(["g.h:a-b:1.0"], cache=tmp_path / "cache")
        assert [jar.name for jar in jars] == ["a.jar", "b.jar"]
        assert all(jar.is_file() for jar in jars)
    assert (tmp_path / "log").read_text() == "asked\n"
    assert [path.name for path in (tmp_path / "cache" / "maven").iterdir()] == ["g.h_a-b_1.0"]
    project = ElementTree.parse(tmp_path / "pom.xml")
    wanted = project.find("dependencies/dependency")
    assert wanted is not None
    assert [wanted.findtext(tag) for tag in ("groupId", "artifactId", "version")] == ["g.h", "a-b", "1.0"]
    assert len(wanted.findall("exclusions/exclusion")) == 3


def test_reports_a_failure_and_leaves_no_files(tmp_path: Path, mvn: Path) -> None:
    mvn.write_text("#!/bin/sh\necho '[ERROR] '\necho '[ERROR] Could not find artifact'\nexit 1\n")
    with pytest.raises(MissingRuntimeError, match="Maven could not fetch g:a:1: Could not find artifact"):
        fetch_jars(["g:a:1"], cache=tmp_path / "cache")
    mvn.write_text("#!/bin/sh\nexit 0\n")
    with pytest.raises(MissingRuntimeError, match="it says nothing"):
        fetch_jars(["g:a:1"], cache=tmp_path / "cache")
    mvn.write_text("#!/bin/sh\nexec sleep 600\n")
    with pytest.raises(MissingRuntimeError, match=r"within 0\.1 s"):
        fetch_jars(["g:a:1"], cache=tmp_path / "cache", timeout=0.1)
    assert list((tmp_path / "cache" / "maven").iterdir()) == []


@pytest.mark.parametrize("text", ["g:a", "g:a:1:x:y:z", "../x:a:1", "g:a:1<", ""])
def test_rejects_invalid_coordinates(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError, match="group:artifact:version"):
        fetch_jars([text], cache=tmp_path)
