"""The codec in use, and how it is chosen."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from consumerd.base import native

SHOW = "from consumerd.base import native; print(native.codec() is not None, native.describe(), sep='|')"


def chosen(folder: Path | None = None, **environment: str) -> tuple[str, str]:
    """The output of a process with these variables, with modules of `folder` first on the path."""
    inherited = {name: value for name, value in os.environ.items() if name != native.PURE}
    if folder is not None:
        inherited["PYTHONPATH"] = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    script = [sys.executable, "-c", SHOW]
    out = subprocess.run(script, env=inherited | environment, check=True, capture_output=True, text=True).stdout
    runs, _, why = out.strip().partition("|")
    return runs, why


def test_the_environment_chooses_the_pure_codec(either_codec: str) -> None:
    if either_codec == "native":
        assert chosen()[0] == "True"
        assert chosen(CONSUMERD_PURE="0")[1].startswith("native codec ")
    assert chosen(CONSUMERD_PURE="1") == ("False", "pure codec, because CONSUMERD_PURE is set")


def test_a_native_codec_of_another_version_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "consumerd_native.py").write_text("INTERFACE, __version__ = 0, '0.0.1'\n")
    words = "pure codec, because consumerd-native 0.0.1 is for another version of consumerd"
    assert chosen(tmp_path) == ("False", words)


def test_a_native_codec_that_cannot_be_loaded_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "consumerd_native.py").write_text("raise ImportError('no such symbol')\n")
    words = "pure codec, because consumerd-native cannot be loaded: no such symbol"
    assert chosen(tmp_path) == ("False", words)


def test_another_codec_runs_for_a_while() -> None:
    before = native.codec()
    with native.using(None):
        assert native.codec() is None
    assert native.codec() is before
