"""The wheels and the sdist of consumerd-native, as a release publishes them: what they hold, and that they work.

Those in the folder `$CONSUMERD_NATIVE_WHEELS` are checked (`make native-wheels` names it). Without it one wheel for
this machine is built, as for a release, where `make native-wheels` has installed what that needs.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest
from packaging.tags import sys_tags
from packaging.utils import parse_wheel_filename

from native.wheels import PLATFORMS

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / "build" / "wheel-tools" / "bin"
#: Other names that installers know a platform by.
ALIASES = {"manylinux_2_17": "manylinux2014"}

#: Building takes minutes, and fetches what an environment needs.
pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]


def wheels_command(out: Path, *more: str) -> list[str]:
    return [str(TOOLS / "python"), "-m", "native.wheels", "--out", str(out), *more]


def of_this_machine() -> str:
    (platform,) = {tag.platform for tag in sys_tags()} & PLATFORMS.keys()
    return platform


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    named = os.environ.get("CONSUMERD_NATIVE_WHEELS")
    if named:
        return ROOT / named
    if not (TOOLS / "maturin").exists():
        pytest.skip("`make native-wheels` has not installed what builds wheels")
    out = tmp_path_factory.mktemp("wheels")
    subprocess.run(wheels_command(out, "--only", of_this_machine()), cwd=ROOT, check=True, timeout=600)
    return out


@pytest.fixture(scope="module")
def wheels(folder: Path) -> list[Path]:
    found = sorted(folder.glob("consumerd_native-*.whl"))
    assert found, f"{folder} has no wheel of consumerd-native"
    return found


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return message_from_bytes(archive.read(name))


def test_tags_name_one_platform_and_every_python_from_3_11(wheels: list[Path]) -> None:
    for wheel in wheels:
        _, _, _, tags = parse_wheel_filename(wheel.name)
        assert {(tag.interpreter, tag.abi) for tag in tags} == {("cp311", "abi3")}
        platforms = {tag.platform for tag in tags}
        (platform,) = platforms & PLATFORMS.keys()
        base, _, _ = platform.partition("_x86_64" if platform.endswith("x86_64") else "_aarch64")
        assert platforms - {platform} == ({platform.replace(base, ALIASES[base])} if base in ALIASES else set())
        assert metadata(wheel)["Requires-Python"] == ">=3.11"


def test_wheel_has_the_extension_and_its_licences_only(wheels: list[Path]) -> None:
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            names = {re.sub(r"^consumerd_native-[\d.]+\.dist-info/", "info/", name) for name in archive.namelist()}
            binary = archive.read("consumerd_native/consumerd_native.abi3.so")
            everything = b"".join(map(archive.read, archive.namelist()))
        assert names == {
            "consumerd_native/__init__.py", "consumerd_native/consumerd_native.abi3.so",
            "info/METADATA", "info/RECORD", "info/WHEEL", "info/sboms/consumerd-native.cyclonedx.json",
            "info/licenses/LICENSE", "info/licenses/THIRD-PARTY-NOTICES.txt",
        }  # fmt: skip
        assert binary[:4] == b"\x7fELF"
        machine = {62: "x86_64", 183: "aarch64"}[int.from_bytes(binary[18:20], "little")]
        assert wheel.stem.endswith(machine)
        for place in (ROOT, Path.home()):
            assert os.fsencode(place) + b"/" not in everything


def test_record_has_the_digest_of_every_file(wheels: list[Path], tmp_path: Path) -> None:
    """An installer refuses a wheel whose record is wrong; `wheel unpack` compares the digests."""
    for wheel in wheels:
        command = [sys.executable, "-m", "wheel", "unpack", "--dest", str(tmp_path / wheel.stem), str(wheel)]
        subprocess.run(command, check=True, capture_output=True)


def test_sdist_has_what_a_build_needs(folder: Path) -> None:
    (sdist,) = folder.glob("consumerd_native-*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    sources = {path.relative_to(ROOT / "native").as_posix() for path in (ROOT / "native" / "src").rglob("*.rs")}
    needed = {
        "Cargo.toml", "Cargo.lock", "crates.lock", "pyproject.toml", "LICENSE", "THIRD-PARTY-NOTICES.txt", "PKG-INFO",
    }  # fmt: skip
    assert sources | needed <= names
    assert not {name for name in names if name.startswith("target/")}


def test_second_build_gives_the_same_bytes(wheels: list[Path], folder: Path, tmp_path: Path) -> None:
    if not (TOOLS / "maturin").exists():
        pytest.skip("`make native-wheels` has not installed what builds wheels")
    (first,) = [wheel for wheel in wheels if of_this_machine() in wheel.name]
    environ = os.environ | {"CARGO_TARGET_DIR": str(tmp_path / "target")}
    command = wheels_command(tmp_path, "--only", of_this_machine())
    subprocess.run(command, cwd=ROOT, env=environ, check=True, timeout=600)
    assert (tmp_path / first.name).read_bytes() == first.read_bytes()
    (sdist,) = tmp_path.glob("*.tar.gz")
    assert sdist.read_bytes() == (folder / sdist.name).read_bytes()


def test_codec_tests_pass_on_the_installed_wheel(wheels: list[Path], tmp_path: Path) -> None:
    """Beside the wheel of consumerd, in an environment with the pinned requirements: as on a user's machine."""
    for wheel in wheels:
        (tmp_path / wheel.name).symlink_to(wheel.resolve())
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True, timeout=100)
    environ = os.environ | {"PYTHON": sys.executable}
    command = [str(ROOT / ".ci" / "native-wheel"), str(tmp_path)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "native codec " in done.stdout.splitlines()[0]
    assert re.search(r"^\d+ passed", done.stdout, re.MULTILINE), done.stdout


def test_notices_have_all_that_cargo_links(wheels: list[Path]) -> None:
    assert wheels  # so there is a cargo
    done = subprocess.run(
        [sys.executable, "-m", "native.notices", "check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
