"""Entry points of installed packages are those that `importlib.metadata` finds."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import pytest

from consumerd.base.plugins import KINDS, EntryPoint, entry_points


def expected(group: str) -> list[EntryPoint]:
    return sorted(EntryPoint(each.name, each.value) for each in metadata.entry_points(group=group))


@pytest.mark.parametrize("group", [*(kind.group for kind in KINDS), "pytest11", "console_scripts", "nobody's"])
def test_finds_what_importlib_finds(group: str) -> None:
    assert sorted(entry_points(group)) == expected(group)


def install(folder: Path, name: str, lines: Iterable[str]) -> None:
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("\n".join(lines))


def test_takes_the_package_that_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "a", "my_pack", ["[g]", "# one", "one = a:One [extra]", "", "[h]", "two = a:Two"])
    install(tmp_path / "b", "My.Pack", ["[g]", "one = b:One"])
    install(tmp_path / "b", "other", ["[g]", "three=b:Three"])
    monkeypatch.syspath_prepend(str(tmp_path / "b"))
    monkeypatch.syspath_prepend(str(tmp_path / "a"))
    assert entry_points("g") == [EntryPoint("one", "a:One [extra]"), EntryPoint("three", "b:Three")]
    assert sorted(entry_points("g")) == expected("g")


def test_finds_packages_in_an_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "packed", ["[g]", "four = p:Four"])
    with zipfile.ZipFile(tmp_path / "packed.zip", "w") as archive:
        for name in ("METADATA", "entry_points.txt"):
            archive.write(tmp_path / "packed-1.0.dist-info" / name, f"packed-1.0.dist-info/{name}")
    monkeypatch.syspath_prepend(str(tmp_path / "packed.zip"))
    assert EntryPoint("four", "p:Four") in entry_points("g")
