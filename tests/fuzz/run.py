"""`make fuzz`: coverage-guided fuzzing with atheris, one process for each target: `python -m tests.fuzz.run --help`.

Strategy: the parent writes seeds and kept inputs into a folder, where libFuzzer also puts what it finds, so that the
next run continues there. A child process instruments the package while it imports it. It ends at the first input that
breaks a law, takes more than `_TIMEOUT` seconds or brings the process over `_MEMORY`; the input is then in the folder.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.fuzz.corpora import CORPUS, HERE, REGRESSIONS, keep_inputs, kept_inputs

if TYPE_CHECKING:
    from tests.fuzz.targets.target import Target

ROOT: Final = HERE.parents[1]
#: Seconds for one input, and megabytes of the process. The longest input takes milliseconds when it is not traced.
_TIMEOUT: Final = 10
_MEMORY: Final = 1500
#: Bytes of a kept corpus.
_KEPT: Final = 8_000


def fuzz_target(name: str, options: list[str]) -> None:
    """Fuzz in this process, which libFuzzer ends."""
    import atheris

    with atheris.instrument_imports(include=["consumerd"]):
        from tests.fuzz.targets import TARGETS

    target = TARGETS[name]

    def mutate(data: bytes, max_size: int, seed: int) -> bytes:
        assert target.mutate is not None
        changed = target.mutate(data, lambda part: bytes(atheris.Mutate(part, max_size)), random.Random(seed))
        return changed[:max_size]

    arguments = [sys.argv[0], *options]
    if target.mutate is None:
        atheris.Setup(arguments, target.check)
    else:
        atheris.Setup(arguments, target.check, custom_mutator=mutate)
    atheris.Fuzz()


def native_environment(folder: Path) -> dict[str, str]:
    """The variables of a child that loads the native codec in `folder`, whose counters are those of the fuzzer.

    The counters call functions that must be there before the codec is loaded, so the fuzzer is loaded first.
    """
    atheris = importlib.util.find_spec("atheris")
    assert atheris is not None
    assert atheris.origin is not None
    fuzzer = Path(atheris.origin).parents[1] / "ubsan_with_fuzzer.so"
    return {"LD_PRELOAD": str(fuzzer), "PYTHONPATH": str(folder.resolve())}


def run_target(target: Target, seconds: int, folder: Path, environment: dict[str, str]) -> bool:
    """Fuzz in a process of its own, and print a line about it. Whether no law was broken."""
    inputs = folder / "corpus"
    inputs.mkdir(parents=True, exist_ok=True)
    for kept in (*target.seeds().values(), *kept_inputs(CORPUS, target.name), *kept_inputs(REGRESSIONS, target.name)):
        (inputs / hashlib.sha256(kept).hexdigest()[:20]).write_bytes(kept)
    limits = [f"-max_total_time={seconds}", f"-max_len={target.longest}", f"-timeout={_TIMEOUT}"]
    limits += [f"-rss_limit_mb={_MEMORY}", f"-artifact_prefix={folder}/broken-", "-print_final_stats=1"]
    log = folder / "log.txt"
    with log.open("wb") as file:
        command = [sys.executable, "-m", "tests.fuzz.run", "--child", target.name, *limits, str(inputs)]
        variables = {**os.environ, **environment}
        done = subprocess.run(command, cwd=ROOT, env=variables, stdout=file, stderr=subprocess.STDOUT, check=False)
    text = log.read_text(errors="replace")
    ran = re.search(r"number_of_executed_units: +(\d+)", text)
    reached = re.findall(r"cov: (\d+)", text)
    memory = re.search(r"peak_rss_mb: +(\d+)", text)
    outcome = "no law broken" if done.returncode == 0 else f"broken: see {log}"
    sys.stdout.write(
        f"{target.name}: {ran[1] if ran else '?'} executions in {seconds} s, {reached[-1] if reached else '?'} edges, "
        f"{memory[1] if memory else '?'} MB, {outcome}\n"
    )
    sys.stdout.flush()
    return done.returncode == 0


def keep(target: Target, folder: Path) -> None:
    """Keep the shortest inputs that reach new code, beyond the seeds, which are made again, and what is kept anyway."""
    from tests.fuzz.tracing import chosen_inputs

    given = [*target.seeds().values(), *kept_inputs(REGRESSIONS, target.name)]
    found = {path.read_bytes() for path in (folder / "corpus").iterdir()} - {*given}
    keep_inputs(target.name, chosen_inputs(target.check, given, found, _KEPT))


def main() -> int:
    if sys.argv[1:2] == ["--child"]:
        fuzz_target(sys.argv[2], sys.argv[3:])
        return 0
    from tests.fuzz.targets import TARGETS

    parser = argparse.ArgumentParser(description="Fuzz parsers of hostile bytes.")
    parser.add_argument("--seconds", type=int, default=60, help="for each target; 0 only keeps")
    parser.add_argument("--keep", action="store_true", help="then write the shortest inputs into tests/fuzz/corpus")
    parser.add_argument("--native", type=Path, help="folder of a native codec with counters: see `make fuzz-native`")
    parser.add_argument("--folder", type=Path, default=ROOT / "dist" / "fuzz", help="of inputs and logs")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}; all without any")
    given = parser.parse_args()
    if unknown := set(given.targets) - set(TARGETS):
        parser.error(f"unknown target {', '.join(sorted(unknown))}; there are {', '.join(TARGETS)}")
    if given.seconds and importlib.util.find_spec("atheris") is None:
        parser.error("atheris is not installed: see `make fuzz`")
    intact, environment = True, native_environment(given.native) if given.native else {}
    for name in given.targets or TARGETS:
        folder = given.folder.resolve() / name
        if given.seconds:
            intact &= run_target(TARGETS[name], given.seconds, folder, environment)
        if given.keep:
            keep(TARGETS[name], folder)
    return 0 if intact else 1


if __name__ == "__main__":
    sys.exit(main())
