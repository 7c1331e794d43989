"""What a release of consumerd-native is made with. tests/integration/test_native_wheels.py builds it."""

from __future__ import annotations

import base64
import hashlib
import io
import re
import tomllib
import zipfile
from pathlib import Path

import pytest

from native import lock, notices, wheels

ROOT = Path(__file__).resolve().parents[2]
NATIVE = ROOT / "native"


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The platforms that were built, where nothing is: those of glibc have a standard library."""
    done: list[str] = []

    def build(platform: str, out: Path) -> Path:
        done.append(platform)
        return out / platform

    monkeypatch.setattr(lock, "restore", lambda: None)
    monkeypatch.setattr(wheels, "is_installed", lambda triple: triple.endswith("-gnu"))
    monkeypatch.setattr(wheels, "build", build)
    monkeypatch.setattr(wheels, "audit", lambda wheel, platform: None)
    monkeypatch.setattr(wheels, "sdist", lambda out: out / "sdist")
    monkeypatch.delenv("CI", raising=False)
    return done


def test_platform_without_its_target_is_named(
    built: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert wheels.main(["--out", str(tmp_path)]) == 0
    assert built == ["manylinux_2_17_x86_64", "manylinux_2_17_aarch64"]
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("no wheel")]
    assert said == [
        f"no wheel for musllinux_1_2_{machine}: run `rustup target add {machine}-unknown-linux-musl` first"
        for machine in ("x86_64", "aarch64")
    ]


def test_missing_platform_is_a_failure_in_the_workflow(
    built: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")
    assert wheels.main(["--out", str(tmp_path)]) == 1
    assert wheels.main(["--out", str(tmp_path), "--only", "manylinux_2_17_x86_64"]) == 0
    assert len(built) == 3


def test_extension_for_musl_uses_the_c_library_of_its_python() -> None:
    given = {"SOURCE_DATE_EPOCH": "1700000000"}
    flags = {
        triple: wheels.environment(given, triple)["CARGO_ENCODED_RUSTFLAGS"].split("\x1f")
        for triple in wheels.PLATFORMS.values()
    }
    assert {triple for triple, found in flags.items() if "-Ctarget-feature=-crt-static" in found} == {
        "x86_64-unknown-linux-musl", "aarch64-unknown-linux-musl",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("platform", "overall", "symbols", "libraries", "confirmed"),
    [
        ("manylinux_2_17_x86_64", "manylinux_2_17_x86_64", "manylinux_2_17_x86_64", [], True),
        ("manylinux_2_17_x86_64", "manylinux_2_28_x86_64", "manylinux_2_28_x86_64", [], False),
        ("manylinux_2_17_x86_64", "linux_x86_64", "manylinux_2_17_x86_64", ["libunwind.so.8"], False),
        ("musllinux_1_2_x86_64", "linux_x86_64", "musllinux_1_2_x86_64", ["libc.so"], True),
        ("musllinux_1_2_x86_64", "linux_x86_64", "musllinux_1_2_x86_64", ["libc.so", "libgcc_s.so.1"], False),
        ("musllinux_1_2_x86_64", "linux_x86_64", "linux_x86_64", ["libc.so"], False),
    ],
)
def test_wheel_is_confirmed_for_its_platform_if_it_needs_no_other_library(
    platform: str, overall: str, symbols: str, libraries: list[str], confirmed: bool
) -> None:
    report = {"overall_tag": overall, "sym_tag": symbols, "external_libs": dict.fromkeys(libraries)}
    assert wheels.confirms(report, platform) is confirmed


def test_bill_of_materials_has_no_path_of_the_machine_and_the_record_fits() -> None:
    place, info = NATIVE.as_posix(), "consumerd_native-0.1.0.dist-info"
    content = {"consumerd_native/__init__.py": b"", f"{info}/sboms/a.json": f"file://{place}#a".encode()}
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as archive:
        for name, data in content.items():
            archive.writestr(name, data)
        archive.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in [*content, f"{info}/RECORD"]))
    with zipfile.ZipFile(io.BytesIO(wheels.without_places(written.getvalue()))) as archive:
        assert archive.read(f"{info}/sboms/a.json") == b"file:///consumerd-native#a"
        rows = [row.split(",") for row in archive.read(f"{info}/RECORD").decode().splitlines()]
        assert rows.pop() == [f"{info}/RECORD", "", ""]
        for name, digest, size in rows:
            data = archive.read(name)
            encoded = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
            assert (digest, size) == (f"sha256={encoded}", str(len(data)))


def test_notices_are_of_the_locked_crates() -> None:
    crates = tomllib.loads((NATIVE / "crates.lock").read_text())["package"]
    locked = {(crate["name"], crate["version"]) for crate in crates}
    table = re.findall(r"^  ([\w-]+) (\S+): ", notices.NOTICES.read_text("utf-8"), re.MULTILINE)
    assert set(table) <= locked
    direct = tomllib.loads((NATIVE / "Cargo.toml").read_text())["dependencies"].keys()
    assert direct <= {name for name, _ in table}


def test_wheel_carries_the_licence_of_the_project() -> None:
    assert (NATIVE / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    project = tomllib.loads((NATIVE / "pyproject.toml").read_text())["project"]
    assert project["license-files"] == ["LICENSE", notices.NOTICES.name]


def test_workflow_installs_every_target() -> None:
    workflow = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    installed = re.search(r"rustup target add ((?:\S+\s+)+)- run: make native-wheels", workflow)
    assert installed is not None
    assert set(installed[1].split()) == set(wheels.PLATFORMS.values()) == set(notices.TRIPLES)
