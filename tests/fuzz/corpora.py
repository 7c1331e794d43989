"""The inputs that are kept: one file for each target, with one input a line in base64, and comments.

`corpus/` has what fuzzing found to reach new code, `regressions/` what once broke a law. Text in one file, because
hundreds of binary files of some bytes each are neither reviewed nor merged well.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
CORPUS: Final = HERE / "corpus"
REGRESSIONS: Final = HERE / "regressions"


def kept_inputs(folder: Path, target: str) -> list[bytes]:
    """The inputs of `target` in `folder`; none where it has no file."""
    path = folder / f"{target}.txt"
    if not path.exists():
        return []
    lines = path.read_text(encoding="ascii").splitlines()
    return [base64.b64decode(line, validate=True) for line in lines if not line.startswith("#")]


def keep_inputs(target: str, inputs: Iterable[bytes]) -> None:
    """Replace the corpus of `target`; without inputs there is no file.

    An input of no bytes is left out: fuzzers begin with it anyway.
    """
    lines = sorted({base64.b64encode(data).decode() for data in inputs if data}, key=lambda line: (len(line), line))
    CORPUS.mkdir(exist_ok=True)
    path = CORPUS / f"{target}.txt"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="ascii")
    if not lines:
        path.unlink()
